"""Our requests on one connection that have no answer yet, by opaque.

A deadline is a number in the entry, not a timer: the connection's one alarm looks through the table
when the earliest deadline comes.
"""

from __future__ import annotations

import asyncio
from math import inf
from typing import Final, NamedTuple

from remoting.agreement import type_answer
from remoting.errors import ConnectionLost, RequestTimeout
from remoting.protocol.command import Command

_OPAQUE_MASK: Final = 0x7FFF_FFFF


class Pending(NamedTuple):
    """One of them. ``timeout`` in seconds as the caller gave it; ``deadline`` on the clock."""

    future: asyncio.Future[Command]
    code: int
    timeout: float
    deadline: float


class PendingRequests:
    """The table of one connection."""

    __slots__ = ("_opaque", "_table", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._opaque = 0
        self._table: dict[int, Pending] = {}

    def __len__(self) -> int:
        return len(self._table)

    def next_opaque(self) -> int:
        """A correlation id that no waiting request has; wraps within the positive int32."""
        opaque = self._opaque
        while opaque in self._table:
            opaque = (opaque + 1) & _OPAQUE_MASK
        self._opaque = (opaque + 1) & _OPAQUE_MASK
        return opaque

    @property
    def has_room(self) -> bool:
        """Whether one more may wait."""
        return len(self._table) < self.limit

    def add(self, opaque: int, pending: Pending) -> None:
        """Wait for the answer to ``opaque``."""
        self._table[opaque] = pending

    def forget(self, opaque: int) -> None:
        """Nobody waits for it any more."""
        self._table.pop(opaque, None)

    def resolve(self, response: Command) -> bool:
        """Hand ``response`` to who waits for it. False: nobody does."""
        pending = self._table.pop(response.opaque, None)
        if pending is None or pending.future.done():
            return False
        if response.values is not None:
            type_answer(response, pending.code)
        pending.future.set_result(response)
        return True

    def expire(self, now: float, address: str) -> int:
        """Fail what is overdue; returns how many were."""
        overdue = 0
        for opaque, pending in list(self._table.items()):
            if pending.deadline <= now:
                del self._table[opaque]
                if pending.future.done():
                    continue
                overdue += 1
                pending.future.set_exception(RequestTimeout(address, pending.code, pending.timeout))
        return overdue

    def next_deadline(self) -> float:
        """Forget what was cancelled; returns the earliest deadline, inf without one."""
        earliest = inf
        for opaque, pending in list(self._table.items()):
            if pending.future.done():
                del self._table[opaque]
            elif pending.deadline < earliest:
                earliest = pending.deadline
        return earliest

    def fail_all(self, address: str, reason: str) -> None:
        """The connection is gone: nothing will be answered."""
        table, self._table = self._table, {}
        for pending in table.values():
            if not pending.future.done():
                pending.future.set_exception(ConnectionLost(address, reason))
