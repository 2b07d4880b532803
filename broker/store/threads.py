"""A thread of the store: it ends when it is told to, and if it dies everybody hears of it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from broker.store.disk_state import DiskState
from broker.store.limits import CLOSE_SECONDS


class Worker:
    """A thread that runs ``work`` until ``stopping`` is set.

    Attributes:
        wake: set to have the thread look at once; it clears it.
        stopping: set when the thread shall end.
        on_death: called in the thread when a fault of ours ended it.
    """

    def __init__(self, name: str, work: Callable[[], None], disk: DiskState) -> None:
        """``work`` returns soon after ``stopping`` and ``wake`` have been set."""
        self._name = name
        self._work = work
        self._disk = disk
        self._thread: threading.Thread | None = None
        self.wake = threading.Event()
        self.stopping = threading.Event()
        self.on_death: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> bool:
        """End the thread; False when it sits in a call of the disk that does not end."""
        self.stopping.set()
        self.wake.set()
        if self._thread is None:
            return True
        self._thread.join(CLOSE_SECONDS)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - reported to all who put
            self._disk.thread_died(self._name, error)
            self.on_death()
