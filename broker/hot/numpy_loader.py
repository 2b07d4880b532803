"""numpy, if it can be had, from the first batch or series on that is worth it.

It comes with an extra, takes some 20 MB, and importing it takes a tenth of a second: so it is
imported neither at the start nor on the loop's thread.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from broker.hot.columns import Messages
    from broker.hot.elements import Shape
    from broker.hot.rows import Like
    from broker.hot.series import Own


class Columns(Protocol):
    """The module ``broker.hot.columns``."""

    def messages_of(self, buffer: bytes, start: int, shape: Shape, text: bytes) -> Messages | None:
        """See there."""
        ...


class RowsModule(Protocol):
    """The module ``broker.hot.rows``."""

    def Like(self, head: bytes, own: Own) -> Like:  # noqa: N802 - it is a class
        """See there."""
        ...


class NumpyLoader:
    """Loads the modules that need it; all of a process share it."""

    __slots__ = ("_columns", "_rows", "_thread")

    def __init__(self) -> None:
        self._columns: Columns | None = None
        self._rows: RowsModule | None = None
        self._thread: threading.Thread | None = None

    def columns(self) -> Columns | None:
        """The module when it is there; the first call has it loaded."""
        if self._thread is None:
            self._start()
        return self._columns

    def rows(self) -> RowsModule | None:
        """Likewise."""
        if self._thread is None:
            self._start()
        return self._rows

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._load, name="import numpy", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until it is loaded, or known to be missing."""
        if self._thread is not None:
            self._thread.join()

    def _load(self) -> None:
        try:
            from broker.hot import columns, rows  # noqa: PLC0415 - see the module's text
        except ImportError:
            return
        self._columns, self._rows = columns, rows


NUMPY = NumpyLoader()
