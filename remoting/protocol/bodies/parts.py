"""Encoding a body with a large map a part at a time, so that nobody has to wait for all of it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from remoting.protocol.bodies.body import encode


class MapParts:
    """The text of a body, put together from texts of its map's entries.

    Args:
        empty: the body with its map empty; the map has to be the last of its members to be
            written, by name.
        pretty: as of ``encode``.
    """

    __slots__ = ("_closing", "_head", "_pretty", "_tail")

    def __init__(self, empty: msgspec.Struct, *, pretty: bool = False) -> None:
        head, _, tail = encode(empty, pretty=pretty).rpartition(b"{}")
        self._head = head + b"{"
        self._tail = b"}" + tail
        line = head.rpartition(b"\n")[2]
        # What ends a map that isn't empty: a line of its own, indented as the map's own name.
        self._closing = b"\n" + line[: len(line) - len(line.lstrip())] if pretty else b""
        self._pretty = pretty

    def part(self, body: msgspec.Struct) -> bytes:
        """The text of some entries, given as the same body with nothing else in its map."""
        text = encode(body, pretty=self._pretty)
        return text[len(self._head) : -len(self._closing + self._tail)]

    def whole(self, parts: Sequence[bytes]) -> bytes:
        """The body's text with all these entries."""
        entries = b",".join([part for part in parts if part])
        closing = self._closing if entries else b""
        return b"".join((self._head, entries, closing, self._tail))
