"""TLS and credentials of clients and servers."""
