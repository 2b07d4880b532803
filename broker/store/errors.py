"""What the store refuses as a whole; a refused message is a ``PutResult``, never an exception."""

from __future__ import annotations


class StoreError(Exception):
    """The store can't be opened or used; the text is one sentence that says what to do."""


class StoreBusy(StoreError):
    """The store can't do this now; the same may go well in a moment."""
