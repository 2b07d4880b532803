"""Reading a blocking source, such as a terminal or a pipe, in a program with an event loop.

A thread reads ahead up to a limit and passes the items on in lists: many at a time from a fast
source, each immediately from a slow one. The thread is a daemon, so a read that never returns
doesn't keep the process from exiting.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

T = TypeVar("T")

READ_AHEAD: Final = 2000
"""Most items read and not yet taken."""

READ_AHEAD_BYTES: Final = 16 * 1024 * 1024
"""Most bytes of them, but for the last item: a few messages of the largest size."""


class BackgroundReader(Generic[T]):
    """Reads an iterator in a thread.

    Args:
        items: may block; only the thread uses it.
        size: the bytes of an item.
    """

    def __init__(self, items: Iterator[T], size: Callable[[T], int]) -> None:
        self._items = items
        self._size = size
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._room = threading.Condition()
        self._pending: list[T] = []
        self._pending_bytes = 0
        self._error: BaseException | None = None
        self._ended = False
        threading.Thread(target=self._read, name="input", daemon=True).start()

    async def take(self) -> list[T]:
        """Return the items read since the last call, at least one; an empty list at the end.

        Raises:
            Exception: raised by the iterator; all items before it have been returned.
        """
        await self._ready.wait()
        with self._room:
            items, self._pending = self._pending, []
            self._pending_bytes = 0
            if not self._ended or items:
                if not self._ended:
                    self._ready.clear()
                self._room.notify()
                return items
        if self._error is not None:
            raise self._error
        return []

    def _read(self) -> None:
        try:
            for item in self._items:
                with self._room:
                    self._pending.append(item)
                    self._pending_bytes += self._size(item)
                    if len(self._pending) == 1:
                        self._announce()
                    self._room.wait_for(
                        lambda: (
                            len(self._pending) < READ_AHEAD
                            and self._pending_bytes < READ_AHEAD_BYTES
                        )
                    )
        except BaseException as error:  # noqa: BLE001 - raised again by take
            self._error = error
        with self._room:
            self._ended = True
            self._announce()

    def _announce(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._ready.set)
