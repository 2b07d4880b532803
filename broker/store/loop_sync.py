"""Syncs of the log that the event loop begins and the kernel makes, in SYNC mode.

Those of little, that is: a message, or some, for which somebody waits. The kernel works on the core
that the loop runs on, so much is left to the flusher's thread, and so is whatever is special.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from broker.store.kernel_sync import KernelSync
from broker.store.limits import LOOP_SYNC_BYTES
from broker.store.log_flusher import Begun, LogFlusher


class LoopSync:
    """One sync at a time. Only the loop's thread comes here.

    Args:
        kernel: makes them; it is closed here.
        flusher: whose log it is.
        flushed: is told up to which physical offset the log is on the disk, after each sync and
            each failed one.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        kernel: KernelSync,
        flusher: LogFlusher,
        flushed: Callable[[int], None],
    ) -> None:
        self._loop = loop
        self._kernel = kernel
        self._flusher = flusher
        self._flushed = flushed
        self._begun: Begun | None = None
        self._again = False
        loop.add_reader(kernel.descriptor, self._heard)

    def request(self) -> None:
        """Have the log synced soon; all requests made during a sync share the next one."""
        if self._begun is not None:
            self._again = True
            return
        self._begun = self._flusher.begin(self._kernel, LOOP_SYNC_BYTES)
        if self._begun is None:
            self._flusher.request()

    def _heard(self) -> None:
        self._kernel.heard()
        if self._begun is None or not self.finish(0.0):
            return
        if self._again:
            self._again = False
            self.request()
        self._flushed(self._flusher.flushed)

    def finish(self, timeout: float) -> bool:
        """Wait for the sync that runs, if one does; False: it takes more than so many seconds."""
        if self._begun is None:
            return True
        result = self._kernel.end(timeout)
        if result is None:
            return False
        begun, self._begun = self._begun, None
        self._flusher.finish(begun, result)
        return True

    def close(self, timeout: float) -> bool:
        """Begin no more; False: the one that runs takes more than so many seconds."""
        with suppress(RuntimeError):  # the loop has been closed
            self._loop.remove_reader(self._kernel.descriptor)
        ended = self.finish(timeout)
        if ended:
            self._kernel.close()
        return ended
