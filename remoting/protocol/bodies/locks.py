"""Locks on queues, which consumers hold at the broker."""

from __future__ import annotations

from msgspec import field

from remoting.protocol.bodies.body import Body, Queue


class LockBatchRequestBody(Body):
    """Body of LOCK_BATCH_MQ."""

    consumer_group: str = ""
    client_id: str = ""
    mq_set: list[Queue] = field(default_factory=list)
    only_this_broker: bool | None = None
    """5.x: not on its slaves too."""


class UnlockBatchRequestBody(LockBatchRequestBody):
    """Body of UNLOCK_BATCH_MQ."""


class LockBatchResponseBody(Body):
    """Answer of LOCK_BATCH_MQ: what this client holds now."""

    lock_ok_mq_set: list[Queue] = field(name="lockOKMQSet", default_factory=list)
