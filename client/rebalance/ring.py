"""Consistent hashing: members and queues on one ring, each queue belongs to the next member.

Joining and leaving moves only queues of the member concerned, but shares are uneven.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from client.errors import UsageError
from client.rebalance.strategies import place
from remoting.protocol.queue import MessageQueue

VIRTUAL_NODES: Final = 10
"""Places of one member on the ring (cf. AllocateMessageQueueConsistentHash)."""


class ConsistentHash:
    """RocketMQ's ring.

    Args:
        virtual_nodes: places of each member on the ring; all members have to use the same.
    """

    name: Final = "CONSISTENT_HASH"

    def __init__(self, virtual_nodes: int = VIRTUAL_NODES) -> None:
        if virtual_nodes < 0:
            raise UsageError(f"virtual_nodes can't be {virtual_nodes}", hint="give 1 or more")
        self._virtual_nodes = virtual_nodes

    def allocate(
        self, member: str, queues: Sequence[MessageQueue], members: Sequence[str], *, group: str
    ) -> list[MessageQueue]:
        """See ``Strategy.allocate``."""
        if place(member, queues, members, group) is None:
            return []
        owner_of = {
            _position(f"{one}-{number}"): one
            for one in members
            for number in range(self._virtual_nodes)
        }
        ring = sorted(owner_of)
        if not ring:
            return []
        return [
            queue
            for queue in queues
            if owner_of[ring[bisect_left(ring, _position(_text(queue))) % len(ring)]] == member
        ]


def _text(queue: MessageQueue) -> str:
    """A queue as Java prints it: that is what is hashed."""
    return (
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, "
        f"queueId={queue.queue_id}]"
    )


def _position(key: str) -> int:
    digest = hashlib.md5(key.encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest[:4], "big")
