"""Bytes and their meaning: frames, headers, bodies, message records. No I/O, no clock."""
