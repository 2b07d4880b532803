"""Requests and their answers without I/O, shared with the Spark connector."""
