"""The bodies that commands carry as JSON, typed, and the one way in and out of them.

``decode`` accepts whatever a Java, Go or C++ peer writes (see ``relaxed_json``), ``encode`` writes
what Java writes. The body classes live in the modules of this package by subject.
"""

from remoting.protocol.bodies.body import Body, decode, encode

__all__ = ["Body", "decode", "encode"]
