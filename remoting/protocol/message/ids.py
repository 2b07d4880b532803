"""The two ids of a message, both upper-case hexadecimal.

==========  ====================================================================  ==========
id          bytes                                                                 characters
==========  ====================================================================  ==========
offset id   broker's IP (4 or 16), int32 port, int64 physical offset              32 or 56
unique id   producer's IP (4 or 16), int16 process id, int32 hash of the class    32 or 56
            loader, int32 ms since the month began, int16 counter
==========  ====================================================================  ==========

The broker assigns the offset id and finds the message by it. The producer assigns the unique id
before it sends the message, so the id stays the same when a send is retried (cf.
MessageClientIDSetter).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import count, islice
from struct import Struct
from typing import Final, NamedTuple

from remoting.protocol.message.record import host_bytes, host_of, ip_bytes
from remoting.protocol.queue import PhysicalOffset

_OFFSET: Final = Struct(">q")
_LENGTHS: Final = (32, 56)


class OffsetId(NamedTuple):
    """The content of an offset id: the broker's address and the message's physical offset."""

    ip: str
    port: int
    physical_offset: PhysicalOffset


def offset_id(ip: str, port: int, physical_offset: int) -> str:
    """Return the offset id of a message.

    Raises:
        ValueError: ``ip`` or ``port`` is invalid.
    """
    return offset_id_of(host_bytes(ip, port), physical_offset)


def offset_id_of(host: bytes, physical_offset: int) -> str:
    """Return the offset id of a message, given the 8 or 20 bytes of the broker's address."""
    return (host + _OFFSET.pack(physical_offset)).hex().upper()


def parse_offset_id(text: str) -> OffsetId:
    """Parse an offset id in upper or lower case.

    Raises:
        ValueError: it is invalid.
    """
    try:
        raw = bytes.fromhex(text)
    except ValueError:
        raw = b""
    # Lengths are compared because fromhex skips white space.
    if len(text) not in _LENGTHS or len(raw) * 2 != len(text):
        raise ValueError(f"{text[:80]!r} is no offset id: these have 32 or 56 hexadecimal digits")
    ip, port = host_of(raw[:-8])
    return OffsetId(ip, port, PhysicalOffset(_OFFSET.unpack(raw[-8:])[0]))


def local_month(now_ms: int) -> tuple[int, int]:
    """Return begin and end of the month of ``now_ms`` in local time; all in ms since 1970."""
    now = time.localtime(now_ms / 1000)
    start = (now.tm_year, now.tm_mon, 1, 0, 0, 0, 0, 0, -1)
    end = (now.tm_year, now.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1)
    return int(time.mktime(start)) * 1000, int(time.mktime(end)) * 1000


class UniqueIdGenerator:
    """Makes the unique ids of one process; thread-safe.

    The prefix, which changes at most once a millisecond, is cached, and ``itertools.count`` is
    atomic, so an id costs one formatting and takes no lock. Ids repeat only if the counter wraps
    (65,536 ids) within one millisecond.
    """

    __slots__ = ("_counter", "_fixed", "_month", "_month_bounds", "_now_ms", "_prefix")

    def __init__(
        self,
        ip: str,
        process_id: int,
        class_hash: int,
        now_ms: Callable[[], int],
        *,
        month_bounds: Callable[[int], tuple[int, int]] = local_month,
    ) -> None:
        """Create a generator.

        Args:
            ip: the machine's address.
            process_id: only its low 16 bits are used.
            class_hash: 32 bits that distinguish this generator from others of the process.
            now_ms: the wall clock, ms since 1970.
            month_bounds: returns begin and end of the month of a time; all in ms since 1970.

        Raises:
            ValueError: ``ip`` is not a numeric address.
        """
        self._fixed = b"".join(
            (
                ip_bytes(ip),
                (process_id & 0xFFFF).to_bytes(2, "big"),
                (class_hash & 0xFFFFFFFF).to_bytes(4, "big"),
            )
        )
        self._now_ms = now_ms
        self._month_bounds = month_bounds
        self._month = (0, 0)
        self._prefix = (-1, "")
        self._counter = count()

    def next(self) -> str:
        """Return a new id of 32 (IPv4) or 56 (IPv6) characters."""
        now_ms = self._now_ms()
        made_ms, prefix = self._prefix
        if made_ms != now_ms:
            prefix = self._renew(now_ms)
        return f"{prefix}{next(self._counter) & 0xFFFF:04X}"

    def take(self, number: int) -> list[str]:
        """Return ``number`` new ids, at a fraction of the cost of ``next`` per id."""
        now_ms = self._now_ms()
        made_ms, prefix = self._prefix
        if made_ms != now_ms:
            prefix = self._renew(now_ms)
        counters = [counter & 0xFFFF for counter in islice(self._counter, number)]
        return (f"{prefix}%04X " * number % tuple(counters)).split()

    def _renew(self, now_ms: int) -> str:
        month = self._month
        if not month[0] <= now_ms < month[1]:
            month = self._month = self._month_bounds(now_ms)
        since = (now_ms - month[0]) & 0xFFFFFFFF
        prefix = (self._fixed + since.to_bytes(4, "big")).hex().upper()
        self._prefix = (now_ms, prefix)
        return prefix
