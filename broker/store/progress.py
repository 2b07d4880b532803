"""How far the opening of a store is, and whether it should go on: somebody waits for it."""

from __future__ import annotations

import threading

from broker.store.results import StoreError


class OpeningGivenUp(StoreError):
    """The store is not open because somebody did not want to wait for it any longer."""


class OpeningProgress:
    """Of one opening, in the thread that opens; others look at it and may give it up.

    Attributes:
        position: physical offset that the walk over the log has come to.
        end: where the log's files end.
    """

    __slots__ = ("_given_up", "end", "position")

    def __init__(self) -> None:
        self._given_up = threading.Event()
        self.position = 0
        self.end = 0

    def give_up(self) -> None:
        """Have the opening end soon."""
        self._given_up.set()

    def look(self) -> None:
        """Called between two steps, after each of which a kill would do no harm either.

        Raises:
            OpeningGivenUp: the opening was given up.
        """
        if self._given_up.is_set():
            raise OpeningGivenUp(
                "the store was not opened because the broker was told to stop meanwhile: the next"
                " start begins anew"
            )
