"""A consumer that fails leaves its group and raises; it never keeps queues silently."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import client
import client.blocking
from client.consumer.outcome import COMMIT
from client.limits import CANCEL_GRACE
from tests.integration.client.pushing import collect, consumer, fill, lag, numbers
from tests.support.waiting import until


class Abort(BaseException):
    """An exception that is not an ``Exception``."""


def _raise(_: Any) -> Any:
    raise Abort


async def raises(_: Any) -> None:
    raise Abort


async def waits_and_raises(_: Any) -> None:
    await asyncio.sleep(0)
    raise Abort


async def exits(_: Any) -> None:
    raise SystemExit(3)


async def cancels_itself(_: Any) -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


WAYS: dict[str, dict[str, Any]] = {
    "concurrent": {},
    "batches": {"batch_size": 4},
    "orderly": {"order": client.Orderly()},
    "orderly batches": {"order": client.Orderly(), "batch_size": 4},
    "own commits": {"order": client.Orderly(auto_commit=False)},
}


@pytest.fixture
async def producer(cluster: Any) -> Any:
    async with client.Producer(cluster.nameserver) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("handler", [raises, waits_and_raises, exits, cancels_itself, _raise])
async def test_a_handler_that_ends_its_worker_ends_the_consumer(
    cluster: Any, producer: Any, way: str, handler: Any
) -> None:
    events: list[Any] = []
    await fill(producer, 20)
    with pytest.raises(client.ConsumerStopped, match="ended its worker") as caught:
        async with consumer(cluster, handler, on_event=events.append, **WAYS[way]) as doomed:
            await doomed.run()
    cause = caught.value.__cause__
    assert isinstance(cause, Abort | SystemExit | asyncio.CancelledError)
    [failed] = [event for event in events if isinstance(event, client.ConsumerFailed)]
    assert failed.error is caught.value
    assert await lag(cluster) == 20


@pytest.mark.parametrize("way", WAYS)
async def test_queues_of_a_failed_consumer_move_even_if_nobody_awaits_it(
    cluster: Any, producer: Any, way: str
) -> None:
    got: list[bytes] = []
    failed = asyncio.Event()

    async def handle(message: Any) -> Any:
        got.extend(one.body for one in (message if isinstance(message, list) else [message]))
        return COMMIT if way == "own commits" else None

    doomed = consumer(
        cluster, waits_and_raises, on_event=lambda event: _note(event, failed), **WAYS[way]
    )
    await doomed.start()
    async with consumer(cluster, handle, **WAYS[way]):
        for number in range(4):
            queue = client.MessageQueue("T", "broker-a", number)
            await fill(producer, 10, first=10 * number, queue=queue)
        await failed.wait()
        await until(lambda: sorted(set(got)) == sorted(numbers(40)))
    with pytest.raises(client.ConsumerStopped):
        await doomed.run()
    with pytest.raises(client.ConsumerStopped):
        _ = doomed.assigned


def _note(event: Any, failed: asyncio.Event) -> None:
    if isinstance(event, client.ConsumerFailed):
        failed.set()


async def test_what_was_handled_before_is_committed(cluster: Any, producer: Any) -> None:
    async def handle(message: Any) -> None:
        if message.body == b"7":
            raise Abort

    queue = client.MessageQueue("T", "broker-a", 0)
    await fill(producer, 10, queue=queue)
    with pytest.raises(client.ConsumerStopped):
        async with consumer(cluster, handle, concurrency=1) as doomed:
            await doomed.run()
    assert await lag(cluster) == 3


async def test_an_async_with_block_raises_the_failure_at_its_end(
    cluster: Any, producer: Any
) -> None:
    failed = asyncio.Event()
    await fill(producer, 4)
    with pytest.raises(client.ConsumerStopped) as caught:
        async with consumer(cluster, raises, on_event=lambda event: _note(event, failed)):
            await failed.wait()
    assert isinstance(caught.value.__cause__, Abort)


async def test_iteration_raises_when_a_background_task_has_died(
    cluster: Any, producer: Any, caplog: pytest.LogCaptureFixture
) -> None:
    order = client.Orderly(max_retries=0, on_exhausted="stop")
    failed = asyncio.Event()
    await fill(producer, 4)
    doomed = consumer(cluster, order=order, on_event=lambda event: _note(event, failed))
    await doomed.start()
    (await anext(doomed)).retry_later()
    await failed.wait()
    with pytest.raises(client.ConsumerStopped, match="failed 1 times"):
        await anext(doomed)
    await doomed.stop()
    assert "didn't finish in time" not in caplog.text
    assert await lag(cluster) == 4


async def test_a_thread_that_exits_ends_the_consumer_too(cluster: Any, producer: Any) -> None:
    def handle(_: Any) -> None:
        raise SystemExit(3)

    await fill(producer, 4)
    with pytest.raises(client.ConsumerStopped) as caught:
        async with consumer(cluster, handle) as doomed:
            await doomed.run()
    assert isinstance(caught.value.__cause__, SystemExit)


async def test_a_program_that_ends_slowly_reports_no_failure_of_its_consumer(
    cluster: Any, producer: Any
) -> None:
    events: list[Any] = []

    async def program() -> None:
        started = asyncio.Event()

        async def handle(_: Any) -> None:
            started.set()
            await asyncio.Event().wait()

        made = consumer(cluster, handle, on_event=events.append)
        await made.start()
        await started.wait()

        async def end_slowly() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(2 * CANCEL_GRACE)
                assert made.assigned
                await made.stop()

        slow = asyncio.create_task(end_slowly())
        await asyncio.sleep(0)
        assert not slow.done()

    await fill(producer, 1)
    await asyncio.to_thread(asyncio.run, program())
    assert not any(isinstance(event, client.ConsumerFailed) for event in events)


@pytest.mark.parametrize("handler", [raises, exits, _raise])
async def test_the_blocking_consumer_raises_and_leaves_too(
    cluster: Any, producer: Any, handler: Any
) -> None:
    await fill(producer, 4)

    def consume() -> None:
        with client.blocking.PushConsumer(
            cluster.nameserver,
            group="g",
            subscribe={"T": "*"},
            start_from=client.FIRST,
            handler=handler,
        ) as doomed:
            doomed.run()

    with pytest.raises(client.ConsumerStopped):
        await asyncio.to_thread(consume)
    got: list[bytes] = []
    async with consumer(cluster, collect(got)):
        await until(lambda: sorted(got) == numbers(4))
