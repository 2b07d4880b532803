"""A minimal consumer, for groups in a simulated cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from client.events import Event, Start
from client.group.assignment import AssignmentListener
from client.group.member import GroupMember
from client.group.reports import Running
from client.group.start_offsets import OffsetStore
from client.offsets import Offsets
from remoting.protocol.bodies.heartbeat import ConsumeType
from remoting.protocol.message.tags import TagExpression
from remoting.protocol.queue import MessageQueue
from remoting.runtime.tasks import Supervisor

if TYPE_CHECKING:
    from tests.unit.client.world import SimulatedClient


class SimulatedConsumer(AssignmentListener, OffsetStore):
    """A minimal consumer: it records notifications, and commits what a test sets."""

    def __init__(
        self,
        client: SimulatedClient,
        *,
        group: str = "g",
        topics: str | Iterable[str] | Mapping[str, str] = "T",
        ordered: bool = False,
        **options: Any,
    ) -> None:
        self.client = client
        self.group = group
        self.ordered = ordered
        self.reading: dict[MessageQueue, Start] = {}
        self.log: list[tuple[float, str, MessageQueue]] = []
        self.events: list[Event] = []
        self.progress: dict[MessageQueue, int] = {}
        self.handler_takes = 0.0
        self._offsets = Offsets(client)  # type: ignore[arg-type] # what it needs of an instance
        if isinstance(topics, str):
            topics = [topics]
        if not isinstance(topics, Mapping):
            topics = dict.fromkeys(topics, "*")
        self.options: dict[str, Any] = {
            "strategy": "AVG",
            "shared": True,
            "start_from": 0,
            "exact": False,
            "on_conflict": "reject",
            "handover_timeout": 5.0,
            **options,
        }
        self.topics = {topic: TagExpression.parse(text) for topic, text in topics.items()}
        self.tasks = Supervisor("member")
        self.member: GroupMember | None = None

    async def start(self) -> SimulatedConsumer:
        self.tasks = Supervisor("member")
        self.member = GroupMember(
            self.client,  # type: ignore[arg-type] # what it needs of an instance
            self.group,
            self.topics,
            SimpleNamespace(**self.options),
            self,
            self.tasks,
            ConsumeType.CONSUME_PASSIVELY,
        )
        await self.member.start(self)
        return self

    async def stop(self, timeout: float = 1.0) -> None:
        assert self.member is not None
        await self.member.stop(deadline=asyncio.get_running_loop().time() + timeout)
        self.member = None
        await self.client.tasks.close()

    async def crash(self, *, quietly: bool = False) -> None:
        assert self.member is not None
        await self.tasks.close()
        self.member = None
        self.reading.clear()
        await self.client.crash(quietly=quietly)

    # AssignmentListener

    def tell(self, event: Event) -> None:
        self.events.append(event)

    def running(self) -> Running:
        return Running()

    def gained(self, queue: MessageQueue, start: Start) -> None:
        assert queue not in self.reading
        self.reading[queue] = start
        self._note("gained", queue)

    async def lost(self, queue: MessageQueue, *, deadline: float) -> None:
        await asyncio.sleep(min(self.handler_takes, deadline - asyncio.get_running_loop().time()))
        if queue in self.progress:
            await self.commit(queue, self.progress[queue])
        del self.reading[queue]
        self._note("lost", queue)

    def locked(self, queue: MessageQueue, held: bool) -> None:
        self._note("locked" if held else "unlocked", queue)

    def _note(self, what: str, queue: MessageQueue) -> None:
        self.log.append((asyncio.get_running_loop().time(), what, queue))

    # OffsetStore

    async def stored(self, queue: MessageQueue) -> int | None:
        return await self._offsets.committed(queue, self.group)

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        await self._offsets.commit(queue, self.group, offset)

    def events_of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]
