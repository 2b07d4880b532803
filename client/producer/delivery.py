"""The delivery of one request: what was tried, what is known, and what to do after each outcome.

Pure: ``judge`` maps an answer or a failure to one of three verdicts. A failed attempt that was
written and not answered makes the outcome unknown for good, whatever the answers to later attempts,
unless one of them succeeds.
"""

from __future__ import annotations

from collections.abc import Callable

from client.errors import (
    NotDurable,
    Outcome,
    PocketMQError,
    RemoteError,
    SendError,
    as_send_error,
    remote_error,
)
from client.message import Receipt
from client.producer.columns import MessageColumns
from client.remote import name_of, unavailable
from client.wire.backoff import Backoff
from client.wire.send_verdict import SendVerdict, send_verdict
from remoting.errors import AnswerTimeout, ConnectionLost, RemotingError
from remoting.limits import STALL_SECONDS
from remoting.protocol.command import Command
from remoting.protocol.queue import MessageQueue


class OwnTime:
    """A producer's clock of deadlines: seconds of ``loop_time`` without the loop's stalls.

    While the application keeps the loop busy nothing can be sent or read. That time is no broker's
    silence, so it doesn't count against a deadline.
    """

    def __init__(self, loop_time: Callable[[], float]) -> None:
        self._loop_time = loop_time
        self._lost = 0.0
        self._stall = (0.0, 0.0)

    def now(self) -> float:
        """The time for deadlines."""
        return self._loop_time() - self._lost

    def on_loop(self, when: float) -> float:
        """The loop's time that is ``when`` here if it stalls no more."""
        return when + self._lost

    def leave_out(self, since: float) -> None:
        """The caller should have run at ``since`` (the loop's time): was that long ago, it stalled.

        Time that several callers were kept waiting counts once.
        """
        now = self._loop_time()
        if now - since <= STALL_SECONDS:
            return
        begin, end = self._stall
        if since > end:
            begin = end = since
        self._stall = (min(since, begin), now)
        self._lost += now - end + begin - self._stall[0]


class Delivery:
    """The state of one request's delivery.

    Attributes:
        attempts: requests that were written.
        backoff: the pauses between them.
        busy: those of them that a broker was too busy for: they don't count as attempts.
        queue: where the last went, or is to go.
        failed_broker: the broker that failed last; another one is to be preferred.
        unknown: an attempt was written and never answered.
        settled: all its messages have their receipt or error.
        error: why the last attempt failed.
    """

    __slots__ = (
        "attempts",
        "backoff",
        "busy",
        "deadline",
        "error",
        "failed_broker",
        "queue",
        "request",
        "settled",
        "started",
        "unknown",
    )

    def __init__(self, request: MessageColumns) -> None:
        self.request = request
        self.attempts = 0
        self.backoff: Backoff | None = None
        self.busy = 0
        self.queue: MessageQueue | None = request.queue
        self.failed_broker: str | None = None
        self.unknown = False
        self.settled = False
        self.error: PocketMQError | None = None
        self.started = 0.0
        self.deadline = request.deadline

    def exhausted(self, retries: int) -> bool:
        """Whether no attempt is left after a failed one; one that wrote nothing costs none."""
        return retries == 0 or self.attempts - self.busy > retries

    def judge(self, answer: Command, code: int, group: str, address: str) -> SendVerdict:
        """What an answer to the request ``code`` means."""
        verdict = send_verdict(answer.code)
        if verdict is SendVerdict.STORED:
            return verdict
        self.error = remote_error(
            answer.code, answer.remark, name_of(code), queue=self.queue, group=group, broker=address
        )
        if verdict is SendVerdict.BUSY:
            self.busy += 1
        return verdict

    def lost(
        self, failure: RemotingError, group: str, address: str, *, written: bool
    ) -> SendVerdict:
        """What a failure of the connection means."""
        self.error = unavailable(failure, address, queue=self.queue, group=group)
        if written and isinstance(failure, ConnectionLost | AnswerTimeout):
            self.unknown = True
        return SendVerdict.FAIL if isinstance(failure, AnswerTimeout) else SendVerdict.RETRY

    def failure(self, topic: str, group: str) -> SendError:
        """The error for one of its messages; a new one at each call."""
        cause = self.error
        if cause is not None and not self.unknown:
            error = as_send_error(cause)
            error.topic, error.group = topic, group
            error.queue = cause.queue or self.queue
            if isinstance(cause, RemoteError):
                error.__cause__ = cause.__cause__
            else:
                error.message = f"the message was not sent: {cause.message}"
            return error
        why = cause.message if cause is not None else "no broker could be reached in time"
        error = SendError(
            f"the message was written to a broker, and no acknowledgement came: {why}"
            if self.unknown
            else f"the message was not sent: {why}",
            outcome=Outcome.UNKNOWN if self.unknown else Outcome.NOT_SENT,
            topic=topic,
            queue=self.queue,
            group=group,
            broker=cause.broker if cause is not None else None,
            hint="it may be stored: send it again only if a duplicate does no harm"
            if self.unknown
            else "try again later",
        )
        error.__cause__ = cause
        return error


def not_durable(receipt: Receipt, group: str) -> NotDurable:
    """The error for a message that is stored less safely than its producer requires."""
    error = NotDurable(
        f"the message is stored, but the broker reports {receipt.status.name}",
        outcome=Outcome.UNKNOWN,
        queue=receipt.queue,
        group=group,
        broker=receipt.queue.broker_name,
        hint="look at the broker's disk and slaves; receipt says where the message is",
    )
    error.receipt = receipt
    return error
