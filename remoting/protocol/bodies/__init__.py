"""Typed classes of the JSON bodies of commands, and their decoder and encoder.

``decode`` accepts what Java, Go and C++ peers write (see ``relaxed_json``), ``encode`` writes what
RocketMQ writes. Each module of this package has the bodies of one subject.
"""

from remoting.protocol.bodies.body import Body, decode, encode

__all__ = ["Body", "decode", "encode"]
