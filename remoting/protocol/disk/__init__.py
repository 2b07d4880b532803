"""Layouts of the store's files other than the commit log. No I/O: the store passes buffers."""
