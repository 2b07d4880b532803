"""Keeps the files of ``config/`` equal to the broker's tables, off the loop.

A table that changed is copied on the loop's thread (its values are replaced, never altered) and
turned to text and written in a worker thread. While one write runs, all further changes wait for
the next, which holds them all: a thousand topics made in a row cost two or three writes. A large
file rests after each write, so that writing takes a bounded share of the time.

A write that fails is logged and tried again by ``retry``; whoever waits for it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import structlog

BYTES_PER_SECOND: Final = 20 * 1024 * 1024
"""How fast a file is written over a longer time: 100,000 topics take 20 MB."""

SHORTEST_REST: Final = 0.005
"""Seconds; what is less isn't worth a timer."""

_log = structlog.get_logger("broker")


class StateFile:
    """One file.

    Args:
        name: the file's, for the log.
        snapshot: copies the table, on the loop's thread; what it returns makes the file's text in
            a worker thread.
        write: puts the text on the disk, durably, in a worker thread. Raises ``OSError``.
        bytes_per_second: how fast it is written over a longer time.
    """

    __slots__ = (
        "_bytes_per_second",
        "_dirty",
        "_name",
        "_next",
        "_rest",
        "_snapshot",
        "_write",
        "_writing",
    )

    def __init__(
        self,
        name: str,
        snapshot: Callable[[], Callable[[], bytes]],
        write: Callable[[bytes], None],
        *,
        bytes_per_second: int = BYTES_PER_SECOND,
    ) -> None:
        self._name = name
        self._snapshot = snapshot
        self._write = write
        self._bytes_per_second = bytes_per_second
        self._dirty = False
        self._writing: asyncio.Future[bool] | None = None
        self._next: asyncio.Future[bool] | None = None
        self._rest: asyncio.TimerHandle | None = None

    @property
    def pending(self) -> asyncio.Future[bool] | None:
        """Ends with the write that holds the newest change; None when nothing waits."""
        return self._next or self._writing

    def changed(self) -> asyncio.Future[bool]:
        """The table changed; the future tells whether the change got to the disk."""
        if self._writing is None and self._rest is None:
            return self._begin(asyncio.get_running_loop().create_future())
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    def retry(self) -> None:
        """Try again what could not be written."""
        if self._dirty:
            self.changed()

    async def flush(self) -> bool:
        """Write everything now and wait for it; False if the last attempt failed."""
        while self.pending is not None or self._rest is not None:
            if self._rest is not None:
                self._rest.cancel()
                self._rested()
            if self.pending is not None:
                await self.pending
        return not self._dirty

    def _begin(self, done: asyncio.Future[bool]) -> asyncio.Future[bool]:
        self._writing = done
        work = asyncio.get_running_loop().run_in_executor(None, self._save, self._snapshot())
        work.add_done_callback(self._ended)
        return done

    def _save(self, text: Callable[[], bytes]) -> int:
        content = text()
        self._write(content)
        return len(content)

    def _rested(self) -> None:
        self._rest = None
        waiting, self._next = self._next, None
        if waiting is not None:
            self._begin(waiting)

    def _ended(self, work: asyncio.Future[int]) -> None:
        error = work.exception()
        if error is not None:
            _log.error(
                "state file can't be written; it is tried again", file=self._name, reason=str(error)
            )
        self._dirty = error is not None
        done, self._writing = self._writing, None
        rest = 0.0 if error is not None else work.result() / self._bytes_per_second
        if rest < SHORTEST_REST:
            self._rested()
        else:
            self._rest = asyncio.get_running_loop().call_later(rest, self._rested)
        if done is not None and not done.done():
            done.set_result(error is None)
