"""Keeps the files of ``config/`` equal to the broker's tables, off the loop.

A table that changed is copied on the loop's thread (its values are replaced, never altered) and
turned to text and written in a worker thread. While one write runs, all further changes wait for
the next, which holds them all: a thousand topics made in a row cost two or three writes.

A write that fails is logged and tried again by ``retry``; whoever waits for it is told.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

_log = structlog.get_logger("broker")


class StateFile:
    """One file.

    Args:
        name: the file's, for the log.
        snapshot: copies the table, on the loop's thread; what it returns makes the file's text in
            a worker thread.
        write: puts the text on the disk, durably, in a worker thread. Raises ``OSError``.
    """

    __slots__ = ("_dirty", "_name", "_next", "_snapshot", "_write", "_writing")

    def __init__(
        self,
        name: str,
        snapshot: Callable[[], Callable[[], bytes]],
        write: Callable[[bytes], None],
    ) -> None:
        self._name = name
        self._snapshot = snapshot
        self._write = write
        self._dirty = False
        self._writing: asyncio.Future[bool] | None = None
        self._next: asyncio.Future[bool] | None = None

    @property
    def pending(self) -> asyncio.Future[bool] | None:
        """Ends with the write that holds the newest change; None when nothing waits."""
        return self._next or self._writing

    def changed(self) -> asyncio.Future[bool]:
        """The table changed; the future tells whether the change got to the disk."""
        if self._writing is None:
            return self._begin(asyncio.get_running_loop().create_future())
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        return self._next

    def retry(self) -> None:
        """Try again what could not be written."""
        if self._dirty:
            self.changed()

    async def flush(self) -> bool:
        """Wait until everything is written; False if the last attempt failed."""
        while (pending := self.pending) is not None:
            await pending
        return not self._dirty

    def _begin(self, done: asyncio.Future[bool]) -> asyncio.Future[bool]:
        self._writing = done
        work = asyncio.get_running_loop().run_in_executor(None, self._save, self._snapshot())
        work.add_done_callback(self._ended)
        return done

    def _save(self, text: Callable[[], bytes]) -> None:
        self._write(text())

    def _ended(self, work: asyncio.Future[None]) -> None:
        error = work.exception()
        if error is not None:
            _log.error(
                "state file can't be written; it is tried again", file=self._name, reason=str(error)
            )
        self._dirty = error is not None
        done, waiting = self._writing, self._next
        self._writing = self._next = None
        if waiting is not None:
            self._begin(waiting)
        if done is not None and not done.done():
            done.set_result(error is None)
