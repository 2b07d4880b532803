"""What the encoder makes of rows: the content of one send each."""

from __future__ import annotations

from typing import NamedTuple

from remoting.protocol.queue import MessageQueue


class Parcel(NamedTuple):
    """Messages that leave as one request.

    Attributes:
        topic: where to.
        queue: the very queue it has to go to, in order; None: any of the topic's.
        body: of the request: a batch, or a single message's.
        messages: how many.
        first_row: the number of one of its rows in the task, for errors.
        properties: of a single message; None for a batch.
        flag: of a single message.
        deliver_ms: when a single message is to be delivered, ms since 1970; None: without a timer.
    """

    topic: str
    queue: MessageQueue | None
    body: bytes | memoryview
    messages: int
    first_row: int
    properties: str | None = None
    flag: int = 0
    deliver_ms: int | None = None
