"""OpenTelemetry: spans, metrics and the trace context, with the SDK's exporters."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader, PeriodicExportingMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from prometheus_client import REGISTRY, generate_latest

import client
from client import blocking
from tests.integration.client.conftest import refusing
from tests.integration.client.pushing import collect, consumer
from tests.support.waiting import until

QUEUE = client.MessageQueue("T", "broker-a", 0)


class Recorder:
    """An interceptor whose spans and metrics stay in memory."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.reader = InMemoryMetricReader()
        self.meters = MeterProvider([self.reader])

    def interceptors(self) -> Any:
        """As the argument of a producer or consumer; another object each time."""
        made = client.OpenTelemetry(tracer_provider=self.tracers, meter_provider=self.meters)
        return {"interceptors": [made]}

    def tracer(self) -> trace.Tracer:
        return self.tracers.get_tracer("application")

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    def points(self, name: str) -> list[Any]:
        data = self.reader.get_metrics_data()
        if data is None:
            return []
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    made = Recorder()
    yield made
    made.meters.shutdown()


def attributes(span: ReadableSpan) -> dict[str, Any]:
    """The attributes without their common prefix."""
    found = dict(span.attributes or {})
    return {name.removeprefix("messaging."): value for name, value in found.items()}


def ids(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def sent_in(message: Any) -> tuple[int, int]:
    """The span that a message names in its properties."""
    found = trace.get_current_span(propagate.extract(message.properties)).get_span_context()
    return found.trace_id, found.span_id


async def read(cluster: Any, count: int) -> list[Any]:
    async with client.PullConsumer(cluster.nameserver, group="look") as puller:
        puller.assign(await puller.queues("T"))
        messages: list[Any] = []
        while len(messages) < count:
            messages += await puller.get_many(100, timeout=5)
        return sorted(messages, key=lambda message: message.body)


# Producers


async def test_a_send_makes_a_span_whose_context_is_in_the_message(cluster: Any, recorder: Any):
    async with client.Producer(
        cluster.nameserver, group="shop", **recorder.interceptors()
    ) as producer:
        with recorder.tracer().start_as_current_span("order") as order:
            receipt = await producer.send(
                "T", b"x", tag="paid", keys=(key for key in ("o-1", "o-2")), queue=QUEUE
            )
        client_id = producer.client_id
    [span] = recorder.spans("send T")
    assert span.kind is SpanKind.PRODUCER
    assert span.status.status_code is StatusCode.UNSET
    assert parent(span) == ids(order)
    assert attributes(span) == {
        "system": "rocketmq",
        "operation.name": "send",
        "operation.type": "send",
        "destination.name": "T",
        "destination.partition.id": "broker-a/0",
        "client.id": client_id,
        "message.id": receipt.id,
        "rocketmq.client_group": "shop",
        "rocketmq.message.type": "normal",
        "rocketmq.message.tag": "paid",
        "rocketmq.message.keys": ("o-1", "o-2"),
        "server.address": "127.0.0.1",
        "server.port": int(cluster.brokers["broker-a"].address.rpartition(":")[2]),
    }
    [message] = await read(cluster, 1)
    assert sent_in(message) == ids(span)
    assert message.keys == ["o-1", "o-2"]


async def test_every_send_method_makes_a_span_per_message(cluster: Any, recorder: Any):
    due = datetime.now(UTC).replace(microsecond=0)
    async with client.Producer(cluster.nameserver, **recorder.interceptors()) as producer:
        await producer.send("T", b"1", sharding_key="k")
        await producer.send_nowait("T", b"2")
        await producer.send_many([client.Message("T", b"3"), client.Message("T", b"4")])
        await producer.send_batch([client.Message("T", b"5"), client.Message("T", b"6")])
        await producer.send_oneway("T", b"7")
        await producer.send("T", b"8", deliver_at=due)
    messages = await read(cluster, 8)
    spans = recorder.spans("send T")
    assert {sent_in(message) for message in messages} == {ids(span) for span in spans}
    assert len(spans) == 8
    kinds = [attributes(span)["rocketmq.message.type"] for span in spans]
    assert sorted(kinds) == ["delay", "fifo", *["normal"] * 6]
    [ordered] = [span for span in spans if "rocketmq.message.group" in attributes(span)]
    assert attributes(ordered)["rocketmq.message.group"] == "k"
    [timed] = [span for span in spans if attributes(span)["rocketmq.message.type"] == "delay"]
    assert attributes(timed)["rocketmq.message.delivery_timestamp"] == round(due.timestamp() * 1000)


async def test_the_time_of_a_delayed_message_is_in_its_span(fake: Any, recorder: Any):
    async with client.Producer(fake.address, **recorder.interceptors()) as producer:
        await producer.send("T", b"1", delay_level=3)
        before = datetime.now(UTC).timestamp() * 1000
        await producer.send("T", b"2", delay=60)
    first, second = map(attributes, recorder.spans("send T"))
    assert first["rocketmq.message.delay_time_level"] == 3
    assert second["rocketmq.message.delivery_timestamp"] >= int(before) + 60_000


async def test_the_receipt_of_another_interceptor_names_no_server(cluster: Any, recorder: Any):
    class Dry(client.Interceptor):
        async def send(self, message: Any, proceed: Any) -> Any:
            return client.Receipt(client.SendStatus.OK, QUEUE, 0, "own id", "own place")

    around = [*recorder.interceptors()["interceptors"], Dry()]
    async with client.Producer(cluster.nameserver, interceptors=around) as producer:
        await producer.send("T", b"x")
    found = attributes(*recorder.spans("send T"))
    assert found["message.id"] == "own id"
    assert "server.address" not in found


async def test_a_failed_send_marks_its_span(fake: Any, recorder: Any):
    fake.on_send(refusing(13, 9, fake.store))
    async with client.Producer(fake.address, **recorder.interceptors()) as producer:
        with pytest.raises(client.MessageIllegal):
            await producer.send("T", b"1")
        with pytest.raises(client.UsageError, match="keys is the text"):
            await producer.send("T", b"1", keys="o-1")
        with pytest.raises(client.UsageError, match="one of deliver_at, delay and delay_level"):
            await producer.send("T", b"1", delay=1, delay_level=1)
    refused, *wrong = recorder.spans("send T")
    assert refused.status.status_code is StatusCode.ERROR
    assert "MESSAGE_ILLEGAL" in refused.status.description
    assert attributes(refused)["error.type"] == "MessageIllegal"
    assert [event.name for event in refused.events] == ["exception"]
    assert [attributes(span)["error.type"] for span in wrong] == ["UsageError", "UsageError"]
    [failed, usage] = recorder.points("messaging.client.sent.messages")
    assert (failed.attributes["error.type"], failed.value) == ("MessageIllegal", 1)
    assert (usage.attributes["error.type"], usage.value) == ("UsageError", 2)


async def test_a_cancelled_send_marks_its_span(fake: Any, recorder: Any):
    fake.on_send(lambda command, connection: asyncio.Future())
    async with client.Producer(fake.address, timeout=0.1, **recorder.interceptors()) as producer:
        sending = asyncio.create_task(producer.send("T", b"1"))
        await fake.arrived.wait()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
    [span] = recorder.spans("send T")
    assert span.status.status_code is StatusCode.ERROR
    assert attributes(span)["error.type"] == "CancelledError"


async def test_a_transaction_has_a_span_for_its_half_message_and_one_for_its_end(
    cluster: Any, recorder: Any
):
    async with client.Producer(
        cluster.nameserver,
        group="bank",
        transaction_checker=lambda transaction: client.TransactionState.UNKNOWN,
        **recorder.interceptors(),
    ) as producer:
        with recorder.tracer().start_as_current_span("order") as order:
            async with producer.transaction("T", b"1", tag="paid") as transaction:
                pass
            with pytest.raises(RuntimeError, match="of a test"):
                async with producer.transaction("T", b"2"):
                    raise RuntimeError("of a test")
    half, other = recorder.spans("send T")
    assert attributes(half)["rocketmq.message.type"] == "transaction"
    [commit], [rollback] = recorder.spans("commit T"), recorder.spans("rollback T")
    assert {parent(span) for span in (half, other, commit, rollback)} == {ids(order)}
    assert commit.kind is SpanKind.CLIENT
    assert attributes(commit) == attributes(commit) | {
        "operation.name": "commit",
        "operation.type": "settle",
        "message.id": transaction.id,
        "rocketmq.message.tag": "paid",
    }
    [message] = await read(cluster, 1)
    assert sent_in(message) == ids(half)


@pytest.mark.parametrize(
    "decision", [client.TransactionState.COMMIT, client.TransactionState.UNKNOWN]
)
async def test_the_answer_to_a_check_links_to_the_half_message(
    decision: client.TransactionState, empty_cluster: Any, recorder: Any
):
    await empty_cluster.start(transactionCheckInterval="50", transactionTimeOut="50")
    asked = []

    def decide(transaction: Any) -> client.TransactionState:
        asked.append(transaction)
        return decision

    async with client.Producer(
        empty_cluster.nameserver, transaction_checker=decide, **recorder.interceptors()
    ) as producer:
        transaction = producer.transaction("T", b"1")
        with recorder.tracer().start_as_current_span("order"):
            await transaction.start()
        await transaction.defer()
        await until(lambda: len(asked) >= (1 if decision else 2))
        if decision:
            await until(lambda: recorder.spans("commit T"))
    [half] = recorder.spans("send T")
    commits = recorder.spans("commit T")
    assert all(parent(span) is None and links(span) == [ids(half)] for span in commits)
    assert bool(commits) == bool(decision)


async def test_a_request_is_a_send(cluster: Any, recorder: Any):
    async with client.Producer(cluster.nameserver, **recorder.interceptors()) as producer:

        async def answer(message: Any) -> None:
            await producer.reply(message, b"re")

        async with consumer(cluster, answer, **recorder.interceptors()):
            reply = await producer.request("T", b"1", timeout=10)
    assert reply.body == b"re"
    [asked], [answered] = recorder.spans("send T"), recorder.spans("process T")
    assert parent(answered) == ids(asked)


# Consumers


@pytest.mark.parametrize("kind", ["async def", "def", "orderly"])
async def test_a_handler_runs_in_a_span_below_the_producers(kind: str, cluster: Any, recorder: Any):
    def inner(message: Any) -> None:
        with recorder.tracer().start_as_current_span("inner"):
            bodies.append(message.body)

    async def inner_async(message: Any) -> None:
        await asyncio.sleep(0)
        inner(message)

    bodies: list[bytes] = []
    handler = inner if kind == "def" else inner_async
    more: Any = {"order": client.Orderly()} if kind == "orderly" else {}
    async with client.Producer(cluster.nameserver, **recorder.interceptors()) as producer:
        await producer.send("T", b"1", tag="a", keys=["k"], queue=QUEUE)
    async with consumer(cluster, handler, **more, **recorder.interceptors()) as pushed:
        await until(lambda: recorder.spans("process T"))
        client_id = pushed.client_id
    [send], [process], [inside] = map(recorder.spans, ("send T", "process T", "inner"))
    assert parent(process) == ids(send)
    assert links(process) == [ids(send)]
    assert parent(inside) == ids(process)
    assert process.kind is SpanKind.CONSUMER
    assert attributes(process) == {
        **{name: value for name, value in attributes(send).items() if "rocketmq" not in name},
        "operation.name": "process",
        "operation.type": "process",
        "consumer.group.name": "g",
        "client.id": client_id,
        "rocketmq.message.tag": "a",
        "rocketmq.message.keys": ("k",),
    }


@pytest.mark.parametrize("threads", [False, True])
async def test_concurrent_handlers_have_their_own_spans(threads: bool, cluster: Any, recorder: Any):
    """Each handler waits until eight of them run, then looks at the current span."""
    count = 8
    current: dict[tuple[int, int], Any] = {}
    met = threading.Barrier(count)
    all_run = asyncio.Event()
    running = 0

    def note(message: Any) -> None:
        with recorder.tracer().start_as_current_span("inner") as span:
            current[sent_in(message)] = span

    def in_thread(message: Any) -> None:
        met.wait(30)
        note(message)

    async def on_loop(message: Any) -> None:
        nonlocal running
        running += 1
        if running == count:
            all_run.set()
        await all_run.wait()
        note(message)

    async with client.Producer(cluster.nameserver, **recorder.interceptors()) as producer:
        await producer.send_many([client.Message("T", b"%d" % n) for n in range(count - 1)])
        # One without a context begins a trace of its own.
        async with client.Producer(cluster.nameserver) as plain:
            await plain.send("T", b"plain")
    handler: Any = in_thread if threads else on_loop
    async with consumer(cluster, handler, concurrency=count, **recorder.interceptors()):
        await until(lambda: len(recorder.spans("process T")) == count)
    processes = {ids(span): span for span in recorder.spans("process T")}
    assert {ids(span) for span in recorder.spans("send T")} == current.keys() - {(0, 0)}
    for sender, span in current.items():
        process = processes.pop(parent(span))
        assert parent(process) == (None if sender == (0, 0) else sender)
    assert not processes


@pytest.mark.parametrize("threads", [False, True])
async def test_a_handler_has_the_baggage_of_its_message_alone(
    threads: bool, cluster: Any, recorder: Any
):
    seen: dict[bytes, Any] = {}

    def note(message: Any) -> None:
        seen[message.body] = dict(baggage.get_all())

    async def on_loop(message: Any) -> None:
        await asyncio.sleep(0)
        note(message)

    async with client.Producer(cluster.nameserver, **recorder.interceptors()) as producer:
        await producer.send("T", b"1", queue=QUEUE)
        token = context.attach(baggage.set_baggage("tenant", "a"))
        await producer.send("T", b"2", queue=QUEUE)
        made = consumer(cluster, note if threads else on_loop, **recorder.interceptors())
        async with made:
            await until(lambda: len(seen) == 2)
        context.detach(token)
    assert seen == {b"1": {}, b"2": {"tenant": "a"}}


async def test_a_batch_has_one_span_that_links_to_all_its_messages(cluster: Any, recorder: Any):
    async with client.Producer(cluster.nameserver, **recorder.interceptors()) as producer:
        with recorder.tracer().start_as_current_span("orders"):
            await producer.send_batch([client.Message("T", b"%d" % n, queue=QUEUE) for n in (1, 2)])
    async with consumer(cluster, collect([]), batch_size=10, **recorder.interceptors()):
        await until(lambda: recorder.spans("process T"))
    [process] = recorder.spans("process T")
    assert parent(process) is None
    assert links(process) == [ids(span) for span in recorder.spans("send T")]
    assert attributes(process)["batch.message_count"] == 2
    assert "message.id" not in attributes(process)
    [consumed] = recorder.points("messaging.client.consumed.messages")
    assert consumed.value == 2


async def test_messages_that_the_application_takes_are_in_the_current_trace(
    cluster: Any, recorder: Any
):
    async with client.Producer(cluster.nameserver, **recorder.interceptors()) as producer:
        await producer.send_batch([client.Message("T", b"%d" % n, queue=QUEUE) for n in (1, 2)])
    sends = [ids(span) for span in recorder.spans("send T")]
    with recorder.tracer().start_as_current_span("job") as job:
        async with client.PullConsumer(
            cluster.nameserver, group="a", **recorder.interceptors()
        ) as puller:
            puller.assign([QUEUE])
            assert len(await puller.get_many(10, timeout=5)) == 2
        async with consumer(cluster, group="b", **recorder.interceptors()) as pushed:
            (await anext(pushed)).ack()
    both, one = recorder.spans("receive T")
    assert both.kind is SpanKind.CLIENT
    assert (links(both), links(one)) == (sends, sends[:1])
    assert parent(both) == parent(one) == ids(job)
    assert attributes(both)["batch.message_count"] == 2
    assert attributes(both)["consumer.group.name"] == "a"
    counted = {
        point.attributes["messaging.consumer.group.name"]: point.value
        for point in recorder.points("messaging.client.consumed.messages")
    }
    assert counted == {"a": 2, "b": 1}


def fail(message: Any) -> None:
    raise ValueError("of a test")


async def take_too_long(message: Any) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("handler", "error_type", "description"),
    [
        (fail, "ValueError", "of a test"),
        (take_too_long, "CancelledError", ""),
        (lambda message: message.retry_later(), "RetryLater", "requested by the application"),
        (lambda message: message.dead_letter("no"), "DeadLetter", "no"),
    ],
)
async def test_a_failed_handler_marks_its_span(
    handler: Any, error_type: str, description: str, cluster: Any, recorder: Any
):
    async with client.Producer(cluster.nameserver) as producer:
        await producer.send("T", b"1", queue=QUEUE)
    async with consumer(cluster, handler, consume_timeout=0.2, **recorder.interceptors()):
        await until(lambda: recorder.spans("process T"))
    span = recorder.spans("process T")[0]
    assert span.status.status_code is StatusCode.ERROR
    assert description in (span.status.description or "")
    assert attributes(span)["error.type"] == error_type
    [point] = recorder.points("messaging.process.duration")
    assert point.attributes["error.type"] == error_type


async def test_damaged_contexts_begin_a_new_trace(cluster: Any, recorder: Any):
    async with client.Producer(cluster.nameserver) as producer:
        for value in ("-", "00-zz-yy-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "x" * 8000):
            await producer.send("T", b"1", properties={"traceparent": value, "tracestate": value})
    async with consumer(cluster, collect([]), **recorder.interceptors()):
        await until(lambda: len(recorder.spans("process T")) == 4)
    assert all(parent(span) is None and not span.links for span in recorder.spans("process T"))


# Metrics


async def test_metrics_have_the_names_and_units_of_the_conventions(cluster: Any, recorder: Any):
    got: list[bytes] = []
    async with client.Producer(
        cluster.nameserver, group="shop", **recorder.interceptors()
    ) as producer:
        await producer.send_many([client.Message("T", b"%d" % n) for n in range(3)])
    async with consumer(cluster, collect(got), **recorder.interceptors()):
        await until(lambda: len(recorder.spans("process T")) == 3)
    [sent] = recorder.points("messaging.client.sent.messages")
    assert sent.value == 3
    common = {"messaging.system": "rocketmq", "messaging.destination.name": "T"}
    sends = {"messaging.operation.name": "send", "messaging.operation.type": "send"}
    assert dict(sent.attributes) == common | sends
    [duration] = recorder.points("messaging.client.operation.duration")
    assert (duration.count, dict(duration.attributes)) == (3, common | sends)
    assert duration.explicit_bounds[0] == 0.005
    assert 0 < duration.sum < 60
    calls = {
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.consumer.group.name": "g",
    }
    [process] = recorder.points("messaging.process.duration")
    assert (process.count, dict(process.attributes)) == (3, common | calls)
    [consumed] = recorder.points("messaging.client.consumed.messages")
    assert (consumed.value, dict(consumed.attributes)) == (3, common | calls)


async def test_queues_and_messages_in_memory_are_summed_by_group_and_topic(
    cluster: Any, recorder: Any
):
    def observed(name: str) -> dict[Any, int]:
        return {
            (
                point.attributes["messaging.consumer.group.name"],
                point.attributes["messaging.destination.name"],
            ): point.value
            for point in recorder.points(f"rocketmq.consumer.{name}")
        }

    leave = asyncio.Event()

    async def hold(message: Any) -> None:
        await leave.wait()

    async with client.Producer(cluster.nameserver) as producer:
        await producer.send_many([client.Message("T", b"%d" % n) for n in range(10)])
    made = [
        consumer(cluster, hold, concurrency=1, on_conflict="allow", **recorder.interceptors())
        for _ in range(2)
    ]
    puller: client.PullConsumer[bytes] = client.PullConsumer(
        cluster.nameserver, group="a", **recorder.interceptors()
    )
    async with made[0], made[1], puller:
        puller.assign(await puller.queues("T"))
        await until(lambda: observed("assigned.queues").get(("g", "T")) == 4)
        await until(lambda: observed("cached.messages").get(("g", "T")) == 10)
        await until(lambda: observed("cached.messages").get(("a", "T")) == 10)
        assert observed("assigned.queues")["a", "T"] == 4
        assert sum(puller.cached.values()) == 10
        assert len(await puller.get_many(10, timeout=5)) > 0
        # The second member's share goes over to it.
        await until(lambda: sum(sum(each.cached.values()) for each in made) == 10)
        leave.set()
    assert observed("cached.messages") == {}
    with pytest.raises(client.UsageError):
        _ = made[0].cached


# Exporters


@contextmanager
def otlp_receiver() -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Return the address of an HTTP server, and a list of what is posted there."""
    posted: list[tuple[str, bytes]] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            posted.append((self.path, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", posted
        finally:
            server.shutdown()
            thread.join()


async def test_spans_and_metrics_arrive_at_an_otlp_receiver(cluster: Any):
    with otlp_receiver() as (address, posted):
        tracers = TracerProvider()
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{address}/v1/traces")))
        exporter = OTLPMetricExporter(f"{address}/v1/metrics")
        meters = MeterProvider([PeriodicExportingMetricReader(exporter, 60_000)])
        made = client.OpenTelemetry(tracer_provider=tracers, meter_provider=meters)
        got: list[bytes] = []
        async with client.Producer(cluster.nameserver, interceptors=[made]) as producer:
            receipt = await producer.send("T", b"1")
            async with consumer(cluster, collect(got), interceptors=[made]):
                await until(lambda: got)
        await asyncio.to_thread(tracers.shutdown)
        await asyncio.to_thread(meters.shutdown)
    spans = [
        span
        for path, body in posted
        if path == "/v1/traces"
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans
        for scope in resource.scope_spans
        if scope.scope.name == "pocketmq.client"
        for span in scope.spans
    ]
    send, process = sorted(spans, key=lambda span: span.name, reverse=True)
    assert (send.name, process.name) == ("send T", "process T")
    assert process.trace_id == send.trace_id
    assert process.parent_span_id == process.links[0].span_id == send.span_id
    found = {each.key: each.value.string_value for each in send.attributes}
    assert found["messaging.message.id"] == receipt.id
    names = {
        metric.name
        for path, body in posted
        if path == "/v1/metrics"
        for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert names == {
        "messaging.client.sent.messages",
        "messaging.client.consumed.messages",
        "messaging.client.operation.duration",
        "messaging.process.duration",
    }


async def test_prometheus_scrapes_the_metrics(cluster: Any):
    reader = PrometheusMetricReader()
    meters = MeterProvider([reader])
    made = client.OpenTelemetry(meter_provider=meters)
    got: list[bytes] = []
    try:
        async with client.Producer(cluster.nameserver, interceptors=[made]) as producer:
            await producer.send("T", b"1")
            async with consumer(cluster, collect(got), interceptors=[made]):
                await until(lambda: got)
                page = generate_latest(REGISTRY).decode()
    finally:
        meters.shutdown()
    lines = [line for line in page.splitlines() if line.startswith(("messaging_", "rocketmq_"))]
    values = {line.partition("{")[0]: line.rpartition(" ")[2] for line in lines}
    assert values["messaging_client_sent_messages_total"] == "1.0"
    assert values["messaging_client_operation_duration_seconds_count"] == "1.0"
    assert values["rocketmq_consumer_assigned_queues"] == "4.0"
    assert any('messaging_consumer_group_name="g"' in line for line in lines)


# What an application may do


async def test_the_blocking_client_sends_in_the_callers_span(cluster: Any, recorder: Any):
    def send() -> tuple[int, int]:
        with (
            blocking.Producer(cluster.nameserver, **recorder.interceptors()) as producer,
            recorder.tracer().start_as_current_span("order") as order,
        ):
            producer.send("T", b"1")
            producer.send_nowait("T", b"2").result(10)
            return ids(order)  # type: ignore[arg-type] # a span of the SDK

    order = await asyncio.to_thread(send)
    assert [parent(span) for span in recorder.spans("send T")] == [order, order]


async def test_a_message_trace_beside_it_makes_no_spans_of_its_own(cluster: Any, recorder: Any):
    both: Any = {"interceptors": [*recorder.interceptors()["interceptors"], client.MessageTrace()]}
    got: list[bytes] = []
    async with client.Producer(cluster.nameserver, **both) as producer:
        receipt = await producer.send("T", b"1")
        async with consumer(cluster, collect(got), **both):
            await until(lambda: got)
    async with client.Admin(cluster.nameserver) as admin:
        kinds = {record.kind for record in await admin.trace(receipt.id)}
    assert kinds == {"Pub", "SubBefore", "SubAfter"}
    spans = recorder.exporter.get_finished_spans()
    assert sorted(span.name for span in spans) == ["process T", "send T"]


async def test_without_an_sdk_messages_stay_as_they_are(cluster: Any):
    async with client.Producer(
        cluster.nameserver, interceptors=[client.OpenTelemetry()]
    ) as producer:
        await producer.send("T", b"1", queue=QUEUE)
    [message] = await read(cluster, 1)
    assert "traceparent" not in message.properties


def test_without_the_extra_an_error_names_it():
    code = (
        "import sys; sys.modules['opentelemetry'] = None\n"
        "import client\n"
        "client.Producer, client.PushConsumer, client.blocking.Producer\n"
        "try: client.OpenTelemetry()\n"
        "except client.UsageError as error: print(error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert "opentelemetry-api, which is not installed" in done.stdout
    assert "pip install 'pocketmq[otel]'" in done.stdout
