"""The log that members of a group write about handled messages, and its reader.

A line is an event: ``call`` (the handler began and ended at once), ``begin`` or ``end`` of a call
that waited. Each is one ``write`` to the file, so that ``kill -9`` tears none and loses none. Times
are of the machine's monotonic clock, which all its processes share; in one file they increase.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple


class Event(NamedTuple):
    """Something that happened in a member's handler.

    Attributes:
        at: when, in nanoseconds.
        member: whose handler.
        kind: ``call``, ``begin`` or ``end``.
        queue: ``topic:queue id``.
        offset: of the message, in that queue.
        number: what the sender called the message.
        failed: the handler raised.
    """

    at: int
    member: str
    kind: str
    queue: str
    offset: int
    number: int
    failed: bool


def line(kind: str, at: int, queue: str, offset: int, number: int, *, failed: bool) -> bytes:
    """Return an event as a member writes it."""
    return f"{kind}\t{at}\t{queue}\t{offset}\t{number}\t{int(failed)}\n".encode()


def events(files: Mapping[str, Path]) -> Iterator[Event]:
    """All events of all members, in the order in which they happened.

    Args:
        files: member -> what it wrote.
    """
    return heapq.merge(*(_of(member, file) for member, file in files.items()))


def _of(member: str, file: Path) -> Iterator[Event]:
    with file.open(encoding="ascii") as lines:
        for text in lines:
            if not text.endswith("\n"):
                return  # it is still being written
            kind, at, queue, offset, number, failed = text.split("\t")
            yield Event(
                int(at), member, kind, queue, int(offset), int(number), failed.strip() == "1"
            )
