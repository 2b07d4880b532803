"""Push consumers with handlers, at our broker."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest

import client
from client import blocking
from client.events import MessageDeadLettered
from tests.integration.client.pushing import Bodies, collect, consumer, fill, lag, numbers
from tests.support.waiting import until


async def test_every_message_comes_once_and_a_clean_stop_commits_all(cluster: Any, producer: Any):
    await fill(producer, 3000)
    got: Bodies = []
    async with consumer(cluster, collect(got)):
        await until(lambda: len(got) == 3000)
        await fill(producer, 10, first=3000)
        await until(lambda: len(got) == 3010)
    assert sorted(got, key=int) == numbers(3010)
    assert await lag(cluster) == 0


async def test_a_restart_delivers_exactly_the_unfinished_messages(cluster: Any, producer: Any):
    await fill(producer, 100)
    first: Bodies = []
    async with consumer(cluster, collect(first)):
        await until(lambda: len(first) == 100)
    await fill(producer, 100, first=100)
    second: Bodies = []
    async with consumer(cluster, collect(second)):
        await until(lambda: len(second) >= 100)
    assert sorted(second, key=int) == numbers(100, first=100)


async def test_the_first_message_comes_and_an_idle_consumer_stops_within_a_second(
    cluster: Any, producer: Any
):
    await fill(producer, 1)
    loop = asyncio.get_running_loop()
    starts: list[float] = []
    stops: list[float] = []
    # The best of some: what waits for a period is late each time.
    for number in range(3):
        came = asyncio.Event()

        async def handle(_: Any, came: asyncio.Event = came) -> None:
            came.set()

        made = consumer(cluster, handle, group=f"g{number}")
        begun = loop.time()
        await made.start()
        await came.wait()
        here = loop.time()
        await made.stop()
        starts.append(here - begun)
        stops.append(loop.time() - here)
    assert min(starts) < 1
    assert min(stops) < 1


async def test_no_handler_gets_the_context_of_another_one(cluster: Any, producer: Any):
    await fill(producer, 4)
    current: ContextVar[bytes | None] = ContextVar("current", default=None)
    found: list[bytes | None] = []

    async def handle(message: Any) -> None:
        found.append(current.get())
        token = current.set(message.body)
        await until(lambda: len(found) == 4)
        current.reset(token)

    async with consumer(cluster, handle, concurrency=4):
        await until(lambda: len(found) == 4)
    assert found == [None] * 4


async def test_a_stop_waits_for_running_handlers_and_starts_no_new_ones(
    cluster: Any, producer: Any
):
    await fill(producer, 10)
    started, release = asyncio.Event(), asyncio.Event()
    done: Bodies = []

    async def handle(message: Any) -> None:
        started.set()
        await release.wait()
        done.append(message.body)

    made = consumer(cluster, handle, concurrency=2)
    await made.start()
    await started.wait()
    stopping = asyncio.create_task(made.stop())
    await asyncio.sleep(0.05)
    assert not stopping.done()
    release.set()
    await stopping
    assert 1 <= len(done) <= 2
    assert await lag(cluster) == 10 - len(done)


async def test_messages_not_finished_in_time_are_delivered_again(cluster: Any, producer: Any):
    await fill(producer, 3)
    started = asyncio.Event()

    async def handle(_: Any) -> None:
        started.set()
        await asyncio.Event().wait()

    made = consumer(cluster, handle)
    await made.start()
    await started.wait()
    await made.stop(0.05)
    got: Bodies = []
    async with consumer(cluster, collect(got)):
        await until(lambda: len(got) == 3)


async def test_a_failed_message_is_retried_under_its_own_topic_while_others_continue(
    cluster: Any, producer: Any
):
    await fill(producer, 20)
    got: list[tuple[bytes, str, int]] = []

    async def handle(message: Any) -> None:
        got.append((message.body, message.topic, message.retries))
        if message.body == b"7" and message.retries == 0:
            raise client.RetryLater(1)

    async with consumer(cluster, handle):
        await until(lambda: len(got) == 21)
    assert got[-1] == (b"7", "T", 1)
    assert {topic for _, topic, _ in got} == {"T"}
    assert await lag(cluster) == 0


async def test_messages_that_always_fail_become_dead_letters(cluster: Any, producer: Any):
    await producer.send("T", b"bad")
    events: list[Any] = []
    calls = 0

    async def handle(_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise client.RetryLater(1)
        raise ValueError("never")

    async with consumer(cluster, handle, max_retries=1, on_event=events.append):
        await until(lambda: any(isinstance(event, MessageDeadLettered) for event in events))
    [letter] = [event for event in events if isinstance(event, MessageDeadLettered)]
    assert (letter.group, letter.reason, calls) == ("g", "ValueError('never')", 2)
    async with client.PullConsumer(cluster.nameserver, group="look") as reader:
        reader.assign(await reader.queues("%DLQ%g"))
        [message] = await reader.get_many(10, timeout=5)
    assert message.body == b"bad"


async def test_a_dead_letter_has_its_reason_and_keeps_it_when_sent_back(
    cluster: Any, producer: Any
) -> None:
    async def handle(message: Any) -> None:
        if message.body == b"0":
            raise ValueError("no such account")
        raise client.DeadLetter("sold out")

    await fill(producer, 2)
    async with client.Admin(cluster.nameserver) as admin:
        events: list[Any] = []
        async with consumer(cluster, handle, max_retries=0, on_event=events.append):
            await until(lambda: sum(isinstance(e, MessageDeadLettered) for e in events) == 2)
        letters = await admin.dead_letters("g")
        raised, given = sorted(letters, key=lambda letter: letter.body)
        assert (raised.reason, raised.exception) == ("ValueError('no such account')", "ValueError")
        assert (given.reason, given.exception) == ("sold out", None)
        assert raised.consumer == given.consumer
        assert "@" in str(raised.consumer)
        assert raised.failed_at is not None
        assert raised.failed_at <= raised.died_at
        assert [letter.retries for letter in letters] == [1, 1]
        for letter in letters:
            assert (await admin.message(letter.origin_id)).body == letter.body
        await admin.create_topic("T2", queues=1)
        await admin.redrive("g", topic="T2")
    async with client.PullConsumer(
        cluster.nameserver, group="again", start_from=client.FIRST
    ) as pull:
        pull.assign(await pull.queues("T2"))
        got: list[Any] = []
        while len(got) < 2:
            got += await pull.get_many(10, timeout=10)
    assert {message.properties["POCKETMQ_DEAD_REASON"] for message in got} == {
        "ValueError('no such account')",
        "sold out",
    }


async def test_an_ordered_message_that_keeps_failing_is_dead_lettered_and_its_queue_continues(
    cluster: Any, producer: Any
):
    for number in range(5):
        await producer.send("T", b"%d" % number, sharding_key="k")
    got: Bodies = []

    async def handle(message: Any) -> None:
        got.append(message.body)
        if message.body == b"2":
            raise ValueError

    order = client.Orderly(max_retries=2, suspend=0.01)
    async with consumer(cluster, handle, order=order):
        await until(lambda: len(got) == 7)
    assert got == [b"0", b"1", b"2", b"2", b"2", b"3", b"4"]
    async with client.PullConsumer(cluster.nameserver, group="look") as reader:
        reader.assign(await reader.queues("%DLQ%g"))
        [message] = await reader.get_many(10, timeout=5)
    assert message.body == b"2"
    assert await lag(cluster) == 0


async def test_on_exhausted_stop_raises_from_run_and_from_the_async_with_block(
    cluster: Any, producer: Any
):
    await producer.send("T", b"bad")

    async def handle(_: Any) -> None:
        raise ValueError("never")

    async def block() -> None:
        async with consumer(cluster, handle, order=order) as made:
            with pytest.raises(client.ConsumerStopped, match="failed 1 times"):
                await made.run()

    order = client.Orderly(max_retries=0, on_exhausted="stop")
    with pytest.raises(client.ConsumerStopped, match="failed 1 times"):
        await block()
    assert await lag(cluster) == 1


async def test_a_batch_handler_gets_lists(cluster: Any, producer: Any):
    await fill(producer, 1000)
    batches: list[list[bytes]] = []
    made = consumer(cluster, collect(batches, lambda m: [one.body for one in m]), batch_size=32)
    async with made:
        await until(lambda: sum(map(len, batches)) == 1000)
    assert max(map(len, batches)) == 32


async def test_a_handler_may_stop_its_consumer(cluster: Any, producer: Any):
    await fill(producer, 1)

    async def handle(_: Any) -> None:
        await made.stop()

    made = consumer(cluster, handle)
    async with asyncio.timeout(30), made:
        await made.run()
    assert await lag(cluster) == 0


async def test_an_instance_creates_and_closes_push_consumers(cluster: Any, producer: Any):
    await fill(producer, 5)
    got: list[Any] = []
    async with client.Instance(cluster.nameserver, serde=client.serde.json) as mq:
        made = mq.push_consumer(
            group="g",
            subscribe={"T": "*"},
            handler=collect(got, lambda message: message.value),
            start_from=client.FIRST,
        )
        await made.start()
        await until(lambda: len(got) == 5)
    assert sorted(got) == list(range(5))
    assert await lag(cluster) == 0


async def test_the_blocking_consumer_runs_plain_functions(cluster: Any, producer: Any):
    await fill(producer, 30)

    def work() -> tuple[Bodies, Bodies]:
        got: Bodies = []
        options: Any = {"subscribe": {"T": "*"}, "start_from": client.FIRST}

        done = threading.Event()

        def handle(message: Any) -> None:
            got.append(message.body)
            if len(got) == 30:
                done.set()

        with blocking.PushConsumer(cluster.nameserver, group="a", handler=handle, **options):
            assert done.wait(10)
        taken: Bodies = []
        with blocking.PushConsumer(cluster.nameserver, group="b", **options) as iterated:
            for message in iterated:
                with message:
                    taken.append(message.body)
                if len(taken) == 30:
                    break
        return got, taken

    got, taken = await asyncio.to_thread(work)
    assert sorted(got, key=int) == sorted(taken, key=int) == numbers(30)
    assert await lag(cluster, "a") == await lag(cluster, "b") == 0


async def test_a_handler_that_ignores_its_cancellation_does_not_keep_the_consumer(
    cluster: Any, producer: Any, caplog: pytest.LogCaptureFixture
):
    await fill(producer, 1)
    started, release = asyncio.Event(), asyncio.Event()

    async def handle(_: Any) -> None:
        started.set()
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue

    made = consumer(cluster, handle)
    await made.start()
    await started.wait()
    async with asyncio.timeout(30):
        await made.stop(0)
    assert "ignores that it is cancelled" in caplog.text
    release.set()
    assert await lag(cluster) == 1


async def test_a_thread_that_still_runs_keeps_the_lock_of_its_ordered_queue(
    cluster: Any, producer: Any
):
    await fill(producer, 1)
    started, release = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def handle(_: Any) -> None:
        loop.call_soon_threadsafe(started.set)
        release.wait(10)

    made = consumer(cluster, handle, order=client.Orderly())
    await made.start()
    await started.wait()
    await made.stop(0)
    async with client.Admin(cluster.nameserver) as admin:
        group = await admin.describe_group("g")
    release.set()
    assert [queue.lock_owner for queue in group.queues].count(None) == len(group.queues) - 1
    assert await lag(cluster) == 1


async def test_a_blocking_handler_may_stop_its_consumer(cluster: Any, producer: Any):
    await fill(producer, 1)

    def work() -> None:
        def handle(_: Any) -> None:
            made.stop()

        with blocking.PushConsumer(
            cluster.nameserver,
            group="g",
            subscribe={"T": "*"},
            handler=handle,
            start_from=client.FIRST,
        ) as made:
            made.run()

    async with asyncio.timeout(30):
        await asyncio.to_thread(work)
    assert await lag(cluster) == 0
