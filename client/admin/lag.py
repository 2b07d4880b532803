"""How far groups are behind."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime

from client.admin.members import MemberAdmin
from client.places import instant
from remoting.protocol.bodies.stats import OffsetWrapper
from remoting.protocol.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class QueueLag:
    """How far a group is in one queue.

    Attributes:
        end: the offset the next message will get.
        committed: the offset the group wants next; 0 also when it has committed nothing.
        owner: the client id of the member that reads it; None for nobody, or when not asked for.
        consumed_at: when the last message before ``committed`` was stored; None for none.
    """

    end: int
    committed: int
    owner: str | None = None
    consumed_at: datetime | None = None

    @property
    def messages(self) -> int:
        """How many it has not consumed."""
        return max(0, self.end - self.committed)


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a group is behind, per queue and in all."""

    group: str
    queues: dict[MessageQueue, QueueLag] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Messages not consumed, of all queues."""
        return sum(queue.messages for queue in self.queues.values())


class LagAdmin(MemberAdmin):
    """The part of ``Admin`` about lag."""

    async def lag(self, group: str, *, topic: str | None = None, owners: bool = False) -> Lag:
        """How far a group is behind: per queue, and ``total`` (cf. mqadmin consumerProgress).

        Args:
            topic: only this one.
            owners: also find out who reads each queue: one more request to each broker, and with
                Apache's one to each member.
        """
        if owners:
            stats, owner = await asyncio.gather(
                self.consume_stats(group, topic=topic), self.owners(group)
            )
        else:
            stats, owner = await self.consume_stats(group, topic=topic), {}
        return Lag(
            group, {queue: _lag(figures, owner.get(queue)) for queue, figures in stats.items()}
        )


def _lag(figures: OffsetWrapper, owner: str | None) -> QueueLag:
    return QueueLag(
        end=figures.broker_offset,
        committed=figures.consumer_offset,
        owner=owner,
        consumed_at=instant(figures.last_timestamp) if figures.last_timestamp > 0 else None,
    )
