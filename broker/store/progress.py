"""Whether an opening of a store shall go on: somebody who has to wait for it may not want to."""

from __future__ import annotations

import threading

from broker.store.errors import StoreError


class OpeningGivenUp(StoreError):
    """The store is not open because somebody did not want to wait for it any longer."""


class Progress:
    """Of one opening; told in one thread, looked at in the one that opens."""

    __slots__ = ("_given_up",)

    def __init__(self) -> None:
        self._given_up = threading.Event()

    def give_up(self) -> None:
        """Have the opening end soon."""
        self._given_up.set()

    def look(self) -> None:
        """Called between two steps, after each of which a kill would do no harm either.

        Raises:
            OpeningGivenUp: it shall end.
        """
        if self._given_up.is_set():
            raise OpeningGivenUp(
                "the store was not opened because the broker was told to stop meanwhile: the next"
                " start begins anew"
            )
