"""FastStream's OpenTelemetry and Prometheus middlewares, and its FastAPI router."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import pytest
from fastapi import Depends, FastAPI
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from pocketmq.faststream import PocketBroker, TestPocketBroker
from pocketmq.faststream.fastapi import FastAPIRouter
from pocketmq.faststream.opentelemetry import PocketTelemetryMiddleware
from pocketmq.faststream.prometheus import PocketPrometheusMiddleware


def greeting() -> str:
    return "more "


async def publish_all(middleware: Any) -> None:
    """Publish a message that is handled, a batch, and one whose handler raises; then ask."""
    broker = PocketBroker("127.0.0.1:1", logger=None, middlewares=[middleware])

    @broker.subscriber("orders")
    async def echo(body: str) -> str:
        return body

    @broker.subscriber("batches", batch=True)
    async def take(bodies: list[str]) -> None: ...

    @broker.subscriber("failing")
    async def fail(body: str) -> None:
        raise LookupError

    async with TestPocketBroker(broker):
        await broker.publish("tea", "orders", correlation_id="c-1")
        await broker.publish_batch("tea", "milk", topic="batches")
        assert await (await broker.request("tea", "orders")).decode() == "tea"
        with pytest.raises(LookupError):
            await broker.publish("tea", "failing")


async def test_what_is_published_and_handled_is_one_trace() -> None:
    spans, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    await publish_all(PocketTelemetryMiddleware(tracer_provider=provider))
    found = {span.name: span for span in spans.get_finished_spans()}
    publish, process = found["orders publish"], found["orders process"]
    assert publish.context is not None
    assert process.context is not None
    assert publish.context.trace_id == process.context.trace_id
    attributes = dict(process.attributes or {})
    assert attributes["messaging.system"] == "rocketmq"
    assert attributes["messaging.message.payload_size_bytes"] == 3
    assert attributes["messaging.destination_publish.name"] == "orders"
    assert dict(found["batches process"].attributes or {})["messaging.batch.message_count"] == 2
    assert not found["failing process"].status.is_ok


async def test_what_is_published_and_handled_is_counted() -> None:
    registry = CollectorRegistry()
    await publish_all(PocketPrometheusMiddleware(registry=registry, app_name="shop"))
    labels = {"app_name": "shop", "broker": "rocketmq"}

    def count(name: str, **more: str) -> float | None:
        return registry.get_sample_value(f"faststream_{name}_total", {**labels, **more})

    assert count("received_messages", handler="batches") == 2
    assert count("received_processed_messages", handler="batches", status="acked") == 2
    assert count("received_processed_messages", handler="failing", status="error") == 1
    assert count("published_messages", destination="batches", status="success") == 2


async def test_handlers_of_a_fastapi_application() -> None:
    router, got = FastAPIRouter("127.0.0.1:1", logger=None), asyncio.Queue[str]()

    @router.subscriber("orders")
    @router.publisher("bills")
    async def bill(body: str, words: Annotated[str, Depends(greeting)]) -> str:
        return words + body

    @router.subscriber("bills")
    async def pay(body: str) -> None:
        got.put_nowait(body)

    app = FastAPI()
    app.include_router(router)
    async with TestPocketBroker(router.broker), app.router.lifespan_context(app) as state:
        assert state["broker"] is router.broker
        await router.broker.publish("tea", "orders")
        assert got.get_nowait() == "more tea"
