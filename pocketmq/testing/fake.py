"""Producers without a broker, for unit tests.

They are ``client.Producer`` and ``client.blocking.Producer`` with an innermost interceptor that
records each message instead of sending it. So messages are checked and serialized, and interceptors
called, as for real ones. Requests, replies and recalls need a broker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, Unpack, cast, overload

from client.blocking import Producer as BlockingProducer
from client.blocking.twins import twin_of
from client.config import Addresses, ProducerArguments, ProducerOptions
from client.errors import Outcome, SendError
from client.interceptors import Interceptor, Send
from client.message import Message, OpenTransaction, Receipt, SendStatus, TransactionState
from client.positions import Duration
from client.producer.columns import Preparer
from client.producer.producer import DEFAULT_GROUP, Producer
from client.serde import Serde, raw
from remoting.protocol.queue import MessageQueue, QueueOffset
from remoting.runtime.clock import SystemClock

T = TypeVar("T")

_NOWHERE: Final = "127.0.0.1:9"
"""The name server of a producer that never asks one; the port is that of discard (RFC 863)."""

_ID_BYTES: Final = 32


def _copy(message: Message[T]) -> Message[T]:
    """Return a copy: the caller may change the original, and its keys may be an iterator."""
    keys = message.keys if isinstance(message.keys, Sequence) else list(message.keys)
    properties = None if message.properties is None else dict(message.properties)
    return replace(message, keys=keys, properties=properties)


class _Recorder(Interceptor):
    """Records messages instead of sending them."""

    def __init__(self, options: ProducerOptions, serde: Serde[Any]) -> None:
        clock = SystemClock()
        self.preparer = Preparer(options, serde, _ID_BYTES, clock.now_ms, clock.monotonic)
        self.sent: list[Message[Any]] = []
        self.failures: deque[tuple[Exception, bool]] = deque()
        self._count = 0
        self._half: dict[str, Message[Any]] = {}
        self._queues: dict[MessageQueue, int] = {}

    def fail(self, messages: Iterable[Message[Any]]) -> None:
        """Raise the next failure, if there is one, of the request with these messages."""
        if self.failures:
            error, stored = self.failures.popleft()
            if stored:
                self.sent += messages
            raise error

    def receipt(self, message: Message[Any]) -> Receipt:
        """Return the receipt of a message that is about to be recorded. Raises UsageError."""
        self.preparer.prepare(message, None)
        queue = message.queue or MessageQueue(message.topic, "fake", 0)
        offset = self._queues.get(queue, 0)
        self._queues[queue] = offset + 1
        self._count += 1
        identity = f"{self._count:0{_ID_BYTES}X}"
        return Receipt(SendStatus.OK, queue, QueueOffset(offset), identity, identity)

    async def send(self, message: Message[Any], proceed: Send[Receipt]) -> Receipt:  # noqa: ARG002
        """Record a message."""
        message = _copy(message)
        self.fail([message])
        receipt = self.receipt(message)
        self.sent.append(message)
        return receipt

    async def send_oneway(self, message: Message[Any], proceed: Send[None]) -> None:  # noqa: ARG002
        """Record a message that gets no receipt."""
        message = _copy(message)
        self.fail([message])
        self.receipt(message)
        self.sent.append(message)

    async def send_half(self, message: Message[Any], proceed: Send[Receipt]) -> Receipt:  # noqa: ARG002
        """Keep a message until its transaction ends."""
        message = _copy(message)
        self.fail([])
        receipt = self.receipt(message)
        self._half[receipt.id] = message
        return receipt

    async def end_transaction(
        self,
        transaction: OpenTransaction[Any],
        state: TransactionState,
        proceed: Callable[[], Awaitable[bool]],  # noqa: ARG002
    ) -> bool:
        """Record the message of a transaction that commits."""
        message = self._half.pop(transaction.id)
        if state is TransactionState.COMMIT:
            self.sent.append(message)
        return True


class FakeProducer(Producer[T]):
    """A ``client.Producer`` that records messages instead of sending them.

    Args:
        nameservers: not used.
        group, serde, options: as of ``client.Producer``.
    """

    @overload
    def __init__(
        self: FakeProducer[bytes],
        nameservers: Addresses | None = None,
        *,
        group: str = DEFAULT_GROUP,
        serde: None = None,
        **options: Unpack[ProducerArguments],
    ) -> None: ...

    @overload
    def __init__(
        self,
        nameservers: Addresses | None = None,
        *,
        group: str = DEFAULT_GROUP,
        serde: Serde[T],
        **options: Unpack[ProducerArguments],
    ) -> None: ...

    def __init__(
        self,
        nameservers: Addresses | None = None,  # noqa: ARG002
        *,
        group: str = DEFAULT_GROUP,
        serde: Serde[Any] | None = None,
        **options: Unpack[ProducerArguments],
    ) -> None:
        outer = options.pop("interceptors", ())
        self._recorder = _Recorder(ProducerOptions.gather(options), serde or raw)
        options["ip"] = "127.0.0.1"
        options["interceptors"] = [*outer, self._recorder]
        super().__init__(_NOWHERE, group=group, serde=cast("Serde[T]", serde or raw), **options)

    @property
    def sent(self) -> list[Message[T]]:
        """The messages so far, in order; of a transaction when it has committed."""
        return self._recorder.sent

    def fail_next(
        self, error: Exception | None = None, *, times: int = 1, stored: bool = False
    ) -> None:
        """Let the next sends fail.

        Args:
            error: what they raise; by default a ``SendError``.
            times: how many.
            stored: whether their messages are recorded, as when only the answer gets lost.
        """
        outcome = Outcome.UNKNOWN if stored else Outcome.NOT_SENT
        error = error or SendError("the test lets this send fail", outcome=outcome)
        self._recorder.failures.extend([(error, stored)] * times)

    async def send_batch(
        self, messages: Iterable[Message[T]], *, timeout: Duration | None = None
    ) -> list[Receipt]:
        """See ``Producer.send_batch``."""
        messages = [_copy(message) for message in messages]
        self._recorder.preparer.prepare_batch(messages, timeout)
        self._recorder.fail(messages)
        return await super().send_batch(messages, timeout=timeout)

    def _stay_known(self) -> None:
        """Do nothing: no broker asks about transactions."""


class FakeBlockingProducer(BlockingProducer[T]):
    """See ``FakeProducer``: every method is the same and blocks."""

    if TYPE_CHECKING:
        # ``twin_of`` makes them.
        sent: list[Message[T]]

        def fail_next(
            self, error: Exception | None = None, *, times: int = 1, stored: bool = False
        ) -> None: ...
    else:

        def send_batch(self, *args: Any, **kwargs: Any) -> list[Receipt]:
            """See ``FakeProducer.send_batch``."""
            return self._run(FakeProducer.send_batch, *args, **kwargs)


twin_of(FakeProducer, "producer")(cast("Any", FakeBlockingProducer))
