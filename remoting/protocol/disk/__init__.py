"""Layouts of the files beside the commit log. No I/O: the store hands in buffers."""
