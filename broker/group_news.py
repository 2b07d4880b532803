"""Tells the members of consumer groups that their group has changed.

Members that come or go together are one change: a group is told at once, and what changes within
``ROUND_SECONDS`` after that is told once, in the next round. Each turn of the loop tells some
members only, so that a group of thousands holds up nobody else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

from broker.group_watch import GroupWatch
from broker.state import BrokerState
from remoting.errors import RemotingError
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.group import NotifyConsumerIdsChangedRequestHeader

if TYPE_CHECKING:
    from remoting.connection import Connection

ROUND_SECONDS: Final = 0.1
TOLD_AT_ONCE: Final = 128
"""Members told in one turn of the loop: 2 ms."""

CallLater = Callable[[float, Callable[[], None]], object]


def call_later(delay: float, action: Callable[[], None]) -> object:
    """Have the running loop call ``action`` after so many seconds."""
    return asyncio.get_running_loop().call_later(delay, action)


class GroupNews:
    """Tells the groups of one broker.

    Args:
        state: the groups and their members.
        watch: looks for conflicts between those who are left.
        call_later: calls after so many seconds.
    """

    __slots__ = (
        "_call_later",
        "_changed",
        "_next_round",
        "_round",
        "_scheduled",
        "_state",
        "_watch",
    )

    def __init__(
        self, state: BrokerState, watch: GroupWatch, call_later: CallLater = call_later
    ) -> None:
        self._state = state
        self._watch = watch
        self._call_later = call_later
        self._changed: dict[str, bool] = {}
        self._round: Iterator[None] | None = None
        self._next_round = float("-inf")
        self._scheduled = False

    def changed(self, group: str, *, left: bool = False) -> None:
        """Members or topics of a group have changed; ``left``: a member has gone."""
        self._changed[group] = left or self._changed.get(group, False)
        if not self._scheduled:
            self._schedule()

    def _schedule(self) -> None:
        rest = 0.0 if self._round else self._next_round - self._state.clock.monotonic()
        self._scheduled = True
        self._call_later(max(rest, 0.0), self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        if self._round is None:
            self._next_round = self._state.clock.monotonic() + ROUND_SECONDS
            changed, self._changed = self._changed, {}
            self._round = self._tell(changed)
        if sum(1 for _ in islice(self._round, TOLD_AT_ONCE)) < TOLD_AT_ONCE:
            self._round = None
        if self._round is not None or self._changed:
            self._schedule()

    def _tell(self, changed: dict[str, bool]) -> Iterator[None]:
        """Tell groups; a step is a member told or a group looked at."""
        for group, left in changed.items():
            if left:
                self._watch.look_for_conflicts(group)
            yield
            if not self._wants_news(group):
                continue
            header = NotifyConsumerIdsChangedRequestHeader(consumer_group=group)
            for connection in self._state.consumers.connections(group):
                _push(connection, header)
                yield

    def _wants_news(self, group: str) -> bool:
        state = self._state
        config = state.groups.get(group)
        return state.config.notify_consumer_ids_changed_enable and (
            config is None or config.notify_consumer_ids_changed_enable
        )


def _push(connection: Connection, header: NotifyConsumerIdsChangedRequestHeader) -> None:
    request = Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header, oneway=True)
    # A member that is gone or takes nothing finds out by its own rebalance timer.
    with suppress(RemotingError):
        connection.send_oneway(request)
