"""The state of a parcel that is being sent: attempts, judging of answers, final error. No I/O."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from client.wire.backoff import Backoff
from client.wire.send_verdict import SendVerdict, send_verdict
from remoting.protocol.codes import ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.queue import MessageQueue
from spark_connector.errors import BrokerError
from spark_connector.sink.encoder import Parcel

_NAMES: Final = {code.value: code.name for code in ResponseCode}


@dataclass(slots=True, kw_only=True)
class ParcelDelivery:
    """The state of a parcel that is being sent.

    Attributes:
        parcel: the parcel.
        deadline: when attempts end, monotonic seconds.
        retries: the most attempts after the first one.
        backoff: the pauses between attempts.
        attempts: requests that were sent, except those that a busy broker refused.
        queue: the queue of the current or last attempt.
        address: the broker of that attempt.
        sent_at: the time of that attempt, monotonic seconds.
        why: the reason of the last failure.
        not_before: when a busy broker may be tried again, monotonic seconds.
        maybe_stored: whether an attempt was sent and not answered.
    """

    parcel: Parcel
    deadline: float
    retries: int
    backoff: Backoff
    attempts: int = 0
    queue: MessageQueue | None = None
    address: str = ""
    sent_at: float = 0.0
    why: str = ""
    not_before: float = 0.0
    maybe_stored: bool = False

    @property
    def ordered(self) -> bool:
        """Whether the parcel has to be stored after the previous ones of its queue."""
        return self.parcel.queue is not None

    def judge(self, answer: Command) -> SendVerdict:
        """Record an answer and return what to do."""
        verdict = send_verdict(answer.code)
        if verdict is SendVerdict.STORED:
            return verdict
        words = (answer.remark or "no reason given").partition("\n")[0].strip()
        self.why = f"{_NAMES.get(answer.code, answer.code)}: {words}"
        if verdict is SendVerdict.BUSY:
            self.attempts -= 1
        return self._retry_or_fail() if verdict is SendVerdict.RETRY else verdict

    def lost(self, why: str) -> SendVerdict:
        """Record that the connection was lost or timed out, and return what to do."""
        self.why = why
        self.maybe_stored = True
        return self._retry_or_fail()

    def _retry_or_fail(self) -> SendVerdict:
        return SendVerdict.RETRY if self.attempts <= self.retries else SendVerdict.FAIL

    def error(self, seconds: float) -> BrokerError:
        """Return the error of the task for this parcel, ``seconds`` after the first attempt."""
        parcel, queue = self.parcel, self.queue
        where = (
            f"queue {queue.queue_id} of topic {parcel.topic} at broker {queue.broker_name}"
            if (queue)
            else f"topic {parcel.topic}"
        )
        at = f" ({self.address})" if self.address else ""
        what = "message" if parcel.messages == 1 else "messages"
        known = "may or may not have been stored" if self.maybe_stored else "were not stored"
        return BrokerError(
            f"{parcel.messages} {what} for {where}{at} {known} after {max(self.attempts, 1)} "
            f"attempts, {seconds:.1f} s: {self.why or 'no time was left'} "
            f"(first row of them in the task: {parcel.first_row})",
            "look at that broker; options retries and sendTimeoutMs say how long to try",
        )
