"""The remoting protocol and the sockets that carry it."""
