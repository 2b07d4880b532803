"""The history of a run: what producers and readers called, and what came of it.

Each recorder writes a file of its own. A line is an event, written by one ``write``, so ``kill -9``
of the recorder tears none and loses none. Times are of the machine's monotonic clock, which all its
processes share. A call that has no outcome in the history is unknown, as one that a kill cut off.

kind        meaning; the fields that it has
send        a send begins: number, detail (see ``Sent``)
stored      it was acknowledged, as safely as the broker is configured: number; queue and offset,
            unless the message waits for a commit or a delay
failed      it failed, and the message is certainly not stored: number
unknown     it failed, and the message may be stored: number
decided     a transaction was decided, before the broker is told: number, detail
            ``commit`` or ``rollback``
read        a message was read: number, queue, offset
committed   a group's offset was committed: queue, offset, detail: the group
found       a group's offset was asked for: queue, offset (-1: none), detail: the group
reset       a group's offset is about to be reset: queue, detail: the group
crash       a broker has lost its memory, and perhaps its store: its slave succeeds it
clock       the broker's clock is about to be set: detail, ns that it is ahead from now on
clock set   it has been set
"""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, Self

NOWHERE = -1


class Event(NamedTuple):
    """An event of a history.

    Attributes:
        at: when, in nanoseconds of the monotonic clock.
        who: the recorder.
        kind: see the table above.
        number: of the message; every message of a history has another one.
        queue: the queue's id.
        offset: in the queue.
        detail: depends on the kind.
    """

    at: int
    who: str
    kind: str
    number: int = NOWHERE
    queue: int = NOWHERE
    offset: int = NOWHERE
    detail: str = ""


class Sent(NamedTuple):
    """What is sent, as the detail of ``send`` says it.

    Attributes:
        key: its messages keep their order; empty: none.
        half: consumers get the message only when it is committed.
        delay_ms: it is delivered so much later; 0: at once.
    """

    key: str = ""
    half: bool = False
    delay_ms: int = 0

    @classmethod
    def parse(cls, detail: str) -> Self:
        key, half, delay_ms = detail.split(",")
        return cls(key, half == "half", int(delay_ms))

    def __str__(self) -> str:
        return f"{self.key},{'half' if self.half else ''},{self.delay_ms}"


class Recorder:
    """Writes a recorder's file; one that was killed goes on under another name.

    Args:
        folder: of the history.
        who: the recorder's name.
    """

    def __init__(self, folder: Path, who: str) -> None:
        self.who = who
        folder.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        self._file = os.open(folder / who, flags, 0o644)

    def write(
        self,
        kind: str,
        number: int = NOWHERE,
        queue: int = NOWHERE,
        offset: int = NOWHERE,
        detail: object = "",
    ) -> None:
        """Write an event that happens now."""
        now = time.monotonic_ns()
        line = f"{now}\t{kind}\t{number}\t{queue}\t{offset}\t{detail}\n"
        os.write(self._file, line.encode())

    def close(self) -> None:
        os.close(self._file)


def events(folder: Path) -> Iterator[Event]:
    """Return the events of all recorders, in the order of their times."""
    return heapq.merge(*map(_of, sorted(folder.iterdir())))


def _of(file: Path) -> Iterator[Event]:
    with file.open(encoding="utf-8") as lines:
        for line in lines:
            if not line.endswith("\n"):
                return  # it is still being written
            at, kind, number, queue, offset, detail = line[:-1].split("\t")
            yield Event(int(at), file.name, kind, int(number), int(queue), int(offset), detail)


def decisions(history: Iterable[Event]) -> dict[int, str]:
    """Return what was decided about the transactions, by number."""
    return {event.number: event.detail for event in history if event.kind == "decided"}
