"""A message as an application writes it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from remoting.protocol.queue import MessageQueue

T = TypeVar("T")


@dataclass(slots=True)
class Message(Generic[T]):
    """A message to send.

    Attributes:
        topic: where to.
        body: bytes, or with a producer that has a serde any value it can write.
        tag: what consumers may choose by.
        keys: business keys the message can be looked up by; none holds a blank.
        properties: the application's own names and values.
        sharding_key: messages of one key go to one queue, in order.
        queue: the very queue to use; not together with ``sharding_key``.
        delay_level: 1 is the broker's first delay level (1 s), 0 no delay.
        flag: an int32 of the application's own.
        wait: False: the acknowledgement needn't wait for the broker's disk.
    """

    topic: str
    body: T
    tag: str | None = None
    keys: Iterable[str] = ()
    properties: Mapping[str, str] | None = None
    sharding_key: str | None = None
    queue: MessageQueue | None = None
    delay_level: int = field(default=0, kw_only=True)
    flag: int = field(default=0, kw_only=True)
    wait: bool = field(default=True, kw_only=True)
