"""What is wrong with a group, as brokers of ours see it: told to each member once.

A broker sees what no member can: that others subscribe differently, that a queue is nobody's. It is
asked now and then, and soon after the members changed. What it no longer finds may be told anew.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable
from typing import NamedTuple

from client.context import ClientContext
from client.errors import GroupConflict, PocketMQError
from client.events import Event, GroupTrouble, MembersDiffer
from client.limits import WATCH_FIRST, WATCH_PERIOD
from client.rebalance.group_view import describe
from client.routes import MASTER_ID
from remoting.log import Log
from remoting.protocol.bodies.description import GroupDescription, GroupFinding

_log = Log("client")


class _Key(NamedTuple):
    kind: str
    topic: str | None
    queue_id: int | None
    members: tuple[str, ...]


class GroupWatch:
    """Passes on what brokers find wrong with one group.

    Args:
        topics: gives those of the member.
        conflicts: whether it is told of members that differ.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        topics: Callable[[], Iterable[str]],
        tell: Callable[[Event], None],
        *,
        conflicts: bool,
    ) -> None:
        self._context = context
        self._group = group
        self._topics = topics
        self._tell = tell
        self._conflicts = conflicts
        self._known: frozenset[_Key] = frozenset()
        self._not_ours: set[str] = set()
        self._wake = asyncio.Event()

    def soon(self) -> None:
        """The group has changed."""
        self._wake.set()

    async def run(self) -> None:
        """Look, for ever."""
        spread = random.Random()  # noqa: S311 - spreads load
        while True:
            await asyncio.sleep(WATCH_FIRST)
            self._wake.clear()
            await self._look()
            try:
                async with asyncio.timeout(WATCH_PERIOD * spread.uniform(0.8, 1.2)):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def _look(self) -> None:
        found = await asyncio.gather(*(self._ask(address) for address in self._masters()))
        self.take([one for one in found if one is not None])

    async def _ask(self, address: str) -> GroupDescription | None:
        try:
            answer = await describe(self._context, address, self._group)
        except PocketMQError as error:
            _log.debug("group not watched", group=self._group, error=str(error))
            return None
        if answer is None:
            self._not_ours.add(address)
        return answer

    def _masters(self) -> list[str]:
        routes = [self._context.routes.table.get(topic) for topic in self._topics()]
        addresses = {
            ids[MASTER_ID]
            for route in routes
            if route is not None
            for ids in route.brokers.values()
            if MASTER_ID in ids
        }
        return sorted(addresses - self._not_ours)

    def take(self, descriptions: Iterable[GroupDescription]) -> None:
        """Tell what is new in these."""
        found: dict[_Key, tuple[GroupFinding, bool]] = {}
        for description in descriptions:
            for one in description.conflicts if self._conflicts else ():
                found.setdefault(_key(one), (one, True))
            for one in description.warnings:
                found.setdefault(_key(one), (one, False))
        for key, (finding, conflict) in found.items():
            if key not in self._known:
                self._pass_on(finding, conflict=conflict)
        self._known = frozenset(found)

    def _pass_on(self, finding: GroupFinding, *, conflict: bool) -> None:
        _log.warning(
            "a broker finds something wrong",
            group=self._group,
            kind=finding.kind,
            text=finding.text,
            docs=finding.docs,
        )
        if conflict:
            first, second, *_ = [*finding.members, "", ""]
            self._tell(
                MembersDiffer(
                    self._group,
                    GroupConflict(
                        finding.text,
                        members=(first, second),
                        kind=finding.kind,
                        group=self._group,
                        topic=finding.topic,
                        hint=f"see {finding.docs}",
                    ),
                )
            )
            return
        self._tell(
            GroupTrouble(
                group=self._group,
                kind=finding.kind,
                text=finding.text,
                members=tuple(finding.members),
                topic=finding.topic,
                queue_id=finding.queue_id,
                docs=finding.docs,
            )
        )


def _key(finding: GroupFinding) -> _Key:
    return _Key(finding.kind, finding.topic, finding.queue_id, tuple(sorted(finding.members)))
