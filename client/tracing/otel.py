"""OpenTelemetry: spans, metrics, and the trace context in message properties.

Names follow OpenTelemetry's semantic conventions for messaging and for RocketMQ. Only
``opentelemetry-api`` is needed, the extra ``otel``; the application chooses the SDK and the
exporters. Without an SDK nothing is recorded.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar
from weakref import WeakKeyDictionary

from client.consumer.outcome import OutcomeKind
from client.consumer.pull import PullConsumer
from client.consumer.push import PushConsumer
from client.errors import DeadLetter, RetryLater, UsageError
from client.interceptors import InterceptedPart, Interceptor, Received, Send
from client.message import Message, OpenTransaction, Receipt, TransactionState
from client.producer.columns import is_timed, timer_property
from remoting.protocol.message import ids, properties
from remoting.protocol.queue import MessageQueue

try:
    from opentelemetry.context import Context, attach, detach, get_current
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation, get_meter
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import (
        Link,
        Span,
        SpanKind,
        StatusCode,
        TracerProvider,
        get_current_span,
        get_tracer,
        use_span,
    )
except ImportError:
    INSTALLED = False
else:
    INSTALLED = True

if TYPE_CHECKING:
    pass

R = TypeVar("R")

SCOPE: Final = "pocketmq.client"
"""The name of the tracer and the meter."""

BUCKETS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
"""Bounds of the histograms' buckets in seconds, from the conventions."""


class OpenTelemetry(Interceptor):
    """Records what producers and consumers do as spans and metrics; see ``docs/tracing.md``.

    Args:
        tracer_provider, meter_provider: by default OpenTelemetry's global ones.

    Raises:
        UsageError: ``opentelemetry-api`` is not installed.
    """

    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
    ) -> None:
        if not INSTALLED:
            raise UsageError(
                "OpenTelemetry needs opentelemetry-api, which is not installed",
                hint="pip install 'pocketmq[otel]'",
            )
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider

    def bind(self, part: InterceptedPart) -> Interceptor:
        """Return an interceptor that records one producer or consumer."""
        return PartTelemetry(part, self._tracer_provider, self._meter_provider)


class PartTelemetry(Interceptor):
    """The spans and metrics of one producer or consumer."""

    def __init__(
        self,
        part: InterceptedPart,
        tracer_provider: TracerProvider | None,
        meter_provider: MeterProvider | None,
    ) -> None:
        self._consumer = part if isinstance(part, PullConsumer | PushConsumer) else None
        self._labels = {"messaging.system": "rocketmq"}
        self._attributes = {"messaging.client.id": part.client_id}
        if self._consumer is None:
            # The conventions have only this older name for the group of a producer.
            self._attributes["messaging.rocketmq.client_group"] = part.group
        else:
            self._labels["messaging.consumer.group.name"] = part.group
        self._tracer = get_tracer(SCOPE, tracer_provider=tracer_provider)
        meter = get_meter(SCOPE, meter_provider=meter_provider)
        self._sent = meter.create_counter(
            "messaging.client.sent.messages",
            "{message}",
            "Messages that the producer attempted to send",
        )
        self._consumed = meter.create_counter(
            "messaging.client.consumed.messages",
            "{message}",
            "Messages that the application got",
        )
        self._durations, self._process_durations = (
            meter.create_histogram(
                name, "s", description, explicit_bucket_boundaries_advisory=BUCKETS
            )
            for name, description in (
                ("messaging.client.operation.duration", "Duration of sends, commits, rollbacks"),
                ("messaging.process.duration", "Duration of a handler's calls"),
            )
        )
        if self._consumer is not None:
            _consumers[self._consumer] = meter_provider
            meter.create_observable_up_down_counter(
                "rocketmq.consumer.cached.messages",
                [partial(_observe, meter_provider, messages=True)],
                "{message}",
                "Messages in the consumers' memory, read ahead or being handled",
            )
            meter.create_observable_up_down_counter(
                "rocketmq.consumer.assigned.queues",
                [partial(_observe, meter_provider, messages=False)],
                "{queue}",
                "Queues that the consumers read",
            )

    async def close(self) -> None:
        """See ``Interceptor``."""
        if self._consumer is not None:
            _consumers.pop(self._consumer, None)

    # Producers

    async def send(self, message: Message[Any], proceed: Send[Receipt]) -> Receipt:
        """See ``Interceptor``."""
        return await self._send(message, proceed, _message_type(message))

    async def send_half(self, message: Message[Any], proceed: Send[Receipt]) -> Receipt:
        """See ``Interceptor``."""
        return await self._send(message, proceed, "transaction")

    async def send_oneway(self, message: Message[Any], proceed: Send[None]) -> None:
        """See ``Interceptor``."""
        await self._send(message, proceed, _message_type(message))

    async def _send(self, message: Message[Any], proceed: Send[R], kind: str) -> R:
        # An iterator of keys can be read once only; a text is refused by the send.
        keys = message.keys if isinstance(message.keys, str) else tuple(message.keys)
        attributes = {
            "messaging.rocketmq.message.type": kind,
            **_labels_of_message(message.tag, keys, message.sharding_key),
        }
        if message.delay_level:
            attributes["messaging.rocketmq.message.delay_time_level"] = message.delay_level
        with self._operation("send", message.topic, attributes) as (span, _):
            if is_timed(message):
                name, ms = timer_property(message)
                due = ms if name == properties.TIMER_DELIVER_MS else time.time_ns() // 10**6 + ms
                span.set_attribute("messaging.rocketmq.message.delivery_timestamp", due)
            carrier: dict[str, str] = {}
            inject(carrier)
            # A property can't be empty.
            own = {**(message.properties or {}), **{k: v for k, v in carrier.items() if v}}
            result = await proceed(replace(message, keys=keys, properties=own))
            if isinstance(result, Receipt):
                span.set_attribute("messaging.message.id", result.id)
                span.set_attributes(_location(result.queue, result.offset_id))
            return result

    async def end_transaction(
        self,
        transaction: OpenTransaction[Any],
        state: TransactionState,
        proceed: Callable[[], Awaitable[bool]],
    ) -> bool:
        """See ``Interceptor``."""
        if state is TransactionState.UNKNOWN:
            return await proceed()
        message = transaction.message
        attributes = {
            "messaging.rocketmq.message.type": "transaction",
            "messaging.message.id": transaction.id,
            **_labels_of_message(message.tag, tuple(message.keys), message.sharding_key),
        }
        # A broker's check is not part of the span in which its connection was made.
        parent = Context() if transaction.checks else None
        links = _links([message.properties or {}])
        with self._operation(
            state.name.lower(), message.topic, attributes, parent=parent, links=links
        ):
            return await proceed()

    # Consumers

    async def handle(self, messages: Received, proceed: Callable[[], Awaitable[None]]) -> None:
        """See ``Interceptor``.

        A single message's span is a child of the producer's; a batch's span is the root of a trace.
        Both link to the producers' spans.
        """
        # The current span may be another handler's, whose worker has started this one.
        parent = Context()
        if len(messages) == 1:
            parent = extract(messages[0].properties, parent)
        with self._receiving("process", messages, parent) as (span, labels):
            await proceed()
            for message in messages:
                outcome = message.outcome
                if outcome is not None and outcome.verdict is not OutcomeKind.DONE:
                    retried = outcome.verdict is OutcomeKind.RETRY
                    error_type = RetryLater if retried else DeadLetter
                    _failed(span, labels, error_type, outcome.reason)
                    break

    def receive(self, messages: Received) -> None:
        """See ``Interceptor``. The span takes no time: it marks when the application got them."""
        with self._receiving("receive", messages, None):
            pass

    def _receiving(
        self, name: str, messages: Received, parent: Context | None
    ) -> AbstractContextManager[tuple[Span, dict[str, str]]]:
        if len(messages) == 1:
            [message] = messages
            attributes = {
                "messaging.message.id": message.id,
                **_labels_of_message(
                    message.tag, message.keys, message.properties.get(properties.SHARDING_KEY)
                ),
                **_location(message.queue, message.offset_id),
            }
        else:
            attributes = {"messaging.batch.message_count": len(messages)}
        topics = {message.topic for message in messages}
        return self._operation(
            name,
            topics.pop() if len(topics) == 1 else None,
            attributes,
            count=len(messages),
            parent=parent,
            links=_links(message.properties for message in messages),
        )

    @contextmanager
    def _operation(
        self,
        name: str,
        topic: str | None,
        attributes: Mapping[str, Any],
        *,
        count: int = 1,
        parent: Context | None = None,
        links: Sequence[Link] = (),
    ) -> Iterator[tuple[Span, dict[str, str]]]:
        """Yield the span and the attributes of the measurements.

        Args:
            topic: None if the messages have several topics.
            parent: the context with the parent span and the baggage; None: the current one.
        """
        operation_type = name if name in _SPAN_KINDS else "settle"
        labels = {
            **self._labels,
            "messaging.operation.name": name,
            "messaging.operation.type": operation_type,
        }
        if topic is not None:
            labels["messaging.destination.name"] = topic
        span = self._tracer.start_span(
            name if topic is None else f"{name} {topic}",
            parent,
            getattr(SpanKind, _SPAN_KINDS.get(name, "CLIENT")),
            {**self._attributes, **labels, **attributes},
            links,
        )
        began = time.perf_counter()
        token = attach(get_current() if parent is None else parent)
        try:
            with use_span(span, end_on_exit=True):
                try:
                    yield span, labels
                except BaseException as error:
                    _failed(span, labels, type(error), str(error))
                    raise
                finally:
                    # While the span is the current one: a measurement may refer to it.
                    if name == "process":
                        self._process_durations.record(time.perf_counter() - began, labels)
                    elif name != "receive":
                        self._durations.record(time.perf_counter() - began, labels)
                    if operation_type != "settle":
                        (self._sent if name == "send" else self._consumed).add(count, labels)
        finally:
            detach(token)


_SPAN_KINDS: Final = {"send": "PRODUCER", "receive": "CLIENT", "process": "CONSUMER"}
"""By operation; ``settle``, which ends a transaction, is of kind CLIENT too."""

_consumers: WeakKeyDictionary[PullConsumer[Any] | PushConsumer[Any], MeterProvider | None]
_consumers = WeakKeyDictionary()
"""The open consumers of all ``OpenTelemetry`` objects, with the provider that observes each. They
are in one table because a meter keeps only the first callback for a name."""


def _observe(
    meter_provider: MeterProvider | None,
    _: CallbackOptions,
    *,
    messages: bool,
) -> Iterator[Observation]:
    """Yield the number of messages, or of queues, of each group and topic."""
    totals: Counter[tuple[str, str]] = Counter()
    # Copying the references is atomic; consumers open and close in other threads.
    for reference in _consumers.keyrefs():
        consumer = reference()
        if consumer is not None and _consumers.get(consumer) is meter_provider:
            with suppress(UsageError):  # it starts or stops at this moment
                for queue, cached in consumer.cached.items():
                    totals[consumer.group, queue.topic] += cached if messages else 1
    for (group, topic), count in totals.items():
        yield Observation(
            count,
            {
                "messaging.system": "rocketmq",
                "messaging.consumer.group.name": group,
                "messaging.destination.name": topic,
            },
        )


def _failed(span: Span, labels: dict[str, str], kind: type[BaseException], reason: str) -> None:
    labels["error.type"] = kind.__qualname__
    span.set_attribute("error.type", kind.__qualname__)
    span.set_status(StatusCode.ERROR, reason)


def _message_type(message: Message[Any]) -> str:
    if message.delay_level or is_timed(message):
        return "delay"
    return "fifo" if message.sharding_key else "normal"


def _labels_of_message(
    tag: str | None, keys: Sequence[str], sharding_key: str | None
) -> dict[str, Any]:
    names = ("tag", "keys", "group")
    values = (tag, keys, sharding_key)
    return {
        f"messaging.rocketmq.message.{name}": value
        for name, value in zip(names, values, strict=True)
        if value
    }


def _location(queue: MessageQueue, offset_id: str) -> dict[str, Any]:
    """Return the attributes of a message's queue, and of its broker's address."""
    attributes = {"messaging.destination.partition.id": f"{queue.broker_name}/{queue.queue_id}"}
    try:
        broker = ids.parse_offset_id(offset_id)
    except ValueError:
        return attributes  # an interceptor's own receipt
    return {**attributes, "server.address": broker.ip, "server.port": broker.port}


def _links(carriers: Iterable[Mapping[str, str]]) -> list[Link]:
    """Return links to the spans that are in the properties of messages."""
    nothing = Context()
    spans = (get_current_span(extract(carrier, nothing)).get_span_context() for carrier in carriers)
    return [Link(span) for span in spans if span.is_valid]
