"""One parcel being sent: its attempts, the meaning of answers, the error if it fails. Pure."""

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
    """A parcel's state.

    Attributes:
        deadline: until when it has to be stored, seconds.
        retries: attempts that may follow the first.
        attempts: requests that were sent, without those a broker was too busy for.
        queue: where it went last, or is going.
        address: the same.
        sent_at: when.
        why: what went wrong last.
        maybe_stored: an attempt was sent and never answered.
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
    maybe_stored: bool = False

    @property
    def ordered(self) -> bool:
        """Whether it has to follow others of its queue."""
        return self.parcel.queue is not None

    def judge(self, answer: Command) -> SendVerdict:
        """What an answer means."""
        verdict = send_verdict(answer.code)
        if verdict is SendVerdict.STORED:
            return verdict
        words = (answer.remark or "no reason given").partition("\n")[0].strip()
        self.why = f"{_NAMES.get(answer.code, answer.code)}: {words}"
        if verdict is SendVerdict.BUSY:
            self.attempts -= 1
        return self._retry_or_fail() if verdict is SendVerdict.RETRY else verdict

    def lost(self, why: str) -> SendVerdict:
        """What the end of the connection means, or no answer in time."""
        self.why = why
        self.maybe_stored = True
        return self._retry_or_fail()

    def _retry_or_fail(self) -> SendVerdict:
        return SendVerdict.RETRY if self.attempts <= self.retries else SendVerdict.FAIL

    def error(self, seconds: float) -> BrokerError:
        """What the task fails with."""
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
