"""Push consumers and a broker of ours."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

import client
from client import blocking
from client.events import MessageDeadLettered, QueueGained

Bodies = list[bytes]


@pytest.fixture
async def producer(cluster: Any) -> AsyncIterator[client.Producer[bytes]]:
    async with client.Producer(cluster.nameserver) as made:
        yield made


async def fill(producer: client.Producer[bytes], count: int, first: int = 0, **more: Any) -> None:
    results = await producer.send_many(
        [client.Message("T", b"%d" % number, **more) for number in range(first, first + count)]
    )
    assert all(isinstance(result, client.Receipt) for result in results)


def numbers(count: int, first: int = 0) -> Bodies:
    return [b"%d" % number for number in range(first, first + count)]


def consumer(cluster: Any, handler: Any = None, **options: Any) -> client.PushConsumer[bytes]:
    options = {"group": "g", "subscribe": {"T": "*"}, "start_from": client.FIRST, **options}
    return client.PushConsumer(cluster.nameserver, handler=handler, **options)


def collect(got: list[Any], what: Callable[[Any], Any] = lambda message: message.body) -> Any:
    async def handle(message: Any) -> None:
        got.append(what(message))

    return handle


async def lag(cluster: Any, group: str = "g") -> int:
    async with client.Admin(cluster.nameserver) as admin:
        return (await admin.lag(group)).total


async def test_every_message_comes_once_and_a_clean_stop_commits_all(
    cluster: Any, producer: Any, until: Any
):
    await fill(producer, 3000)
    got: Bodies = []
    async with consumer(cluster, collect(got)):
        await until(lambda: len(got) == 3000)
        await fill(producer, 10, first=3000)
        await until(lambda: len(got) == 3010)
    assert sorted(got, key=int) == numbers(3010)
    assert await lag(cluster) == 0


async def test_what_a_restart_finds_is_what_was_not_done(cluster: Any, producer: Any, until: Any):
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
    came = asyncio.Event()

    async def handle(_: Any) -> None:
        came.set()

    made = consumer(cluster, handle)
    async with asyncio.timeout(1):
        await made.start()
        await came.wait()
    async with asyncio.timeout(1):
        await made.stop()


async def test_a_stop_waits_for_running_handlers_and_hands_out_nothing_new(
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


async def test_what_is_not_finished_in_time_comes_again(cluster: Any, producer: Any, until: Any):
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


async def test_a_failed_message_comes_again_with_its_own_topic_and_the_others_go_on(
    cluster: Any, producer: Any, until: Any
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


async def test_what_can_not_be_handled_ends_among_the_dead_letters(
    cluster: Any, producer: Any, until: Any
):
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


async def test_an_orderly_message_that_fails_goes_aside_and_its_queue_goes_on(
    cluster: Any, producer: Any, until: Any
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


async def test_on_exhausted_stop_surfaces_from_run_and_from_the_block(cluster: Any, producer: Any):
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


async def test_members_share_the_queues_and_a_clean_hand_over_repeats_nothing(
    cluster: Any, producer: Any, until: Any
):
    first: Bodies = []
    second: Bodies = []

    async def handle(message: Any) -> None:
        await asyncio.sleep(0.001)
        first.append(message.body)

    one = consumer(cluster, handle)
    await one.start()
    await until(lambda: len(own(one)) == 4)
    await fill(producer, 500)
    async with consumer(cluster, collect(second)) as other:
        await until(lambda: len(own(one)) == len(own(other)) == 2)
        await fill(producer, 500, first=500)
        await until(lambda: len(first) + len(second) >= 1000)
        await one.stop()
        await until(lambda: len(own(other)) == 4)
        await fill(producer, 100, first=1000)
        await until(lambda: len(first) + len(second) >= 1100)
    assert sorted(first + second, key=int) == numbers(1100)


def own(made: client.PushConsumer[bytes]) -> list[client.MessageQueue]:
    return [queue for queue in made.assigned if queue.topic == "T"]


async def test_an_orderly_hand_over_keeps_the_order_of_each_queue(
    cluster: Any, producer: Any, until: Any
):
    got: list[tuple[int, int]] = []

    async def handle(message: Any) -> None:
        await asyncio.sleep(0)
        got.append((message.queue.queue_id, message.offset))

    one = consumer(cluster, handle, order=client.Orderly())
    await one.start()
    await until(lambda: len(own(one)) == 4)
    await fill(producer, 400)
    async with consumer(cluster, handle, order=client.Orderly()) as other:
        await until(lambda: len(own(other)) == 2)
        await fill(producer, 400, first=400)
        await one.stop()
        await until(lambda: len(got) >= 800)
    for queue in range(4):
        offsets = [offset for number, offset in got if number == queue]
        assert offsets == list(range(len(offsets)))


async def test_a_batch_handler_gets_lists(cluster: Any, producer: Any, until: Any):
    await fill(producer, 1000)
    batches: list[list[bytes]] = []
    made = consumer(cluster, collect(batches, lambda m: [one.body for one in m]), batch_size=32)
    async with made:
        await until(lambda: sum(map(len, batches)) == 1000)
    assert max(map(len, batches)) == 32


async def test_tags_are_compared_exactly(cluster: Any, producer: Any, until: Any):
    # Two texts with one hash: a broker can't tell them apart.
    for tag in ("Aa", "BB", "C"):
        await producer.send("T", tag.encode(), tag=tag)
    got: Bodies = []
    async with consumer(cluster, collect(got), subscribe={"T": client.Tags("BB", "C")}) as made:
        await until(lambda: len(got) == 2)
        await producer.send("T", b"last", tag="C")
        await until(lambda: len(got) == 3)
        assert made.group == "g"
    assert sorted(got) == [b"BB", b"C", b"last"]
    assert await lag(cluster) == 0


async def test_topics_come_and_go(cluster: Any, producer: Any, until: Any):
    async with client.Admin(cluster.nameserver) as admin:
        await admin.create_topic("U", queues=1)
    got: Bodies = []
    async with consumer(cluster, collect(got)) as made:
        made.subscribe("U", client.Tags("x"))
        await until(lambda: any(queue.topic == "U" for queue in made.assigned))
        await producer.send("U", b"no", tag="y")
        await producer.send("U", b"yes", tag="x")
        await until(lambda: got == [b"yes"])
        made.subscribe("U")
        await producer.send("U", b"now", tag="y")
        await until(lambda: got == [b"yes", b"now"])
        made.unsubscribe("U")
        await until(lambda: not any(queue.topic == "U" for queue in made.assigned))


async def test_suspended_it_stays_a_member_and_goes_on_when_resumed(
    cluster: Any, producer: Any, until: Any
):
    got: Bodies = []
    async with consumer(cluster, collect(got)) as made:
        await until(lambda: len(own(made)) == 4)
        made.suspend()
        await fill(producer, 10)
        await asyncio.sleep(0.1)
        assert got == []
        assert len(own(made)) == 4
        made.resume()
        await until(lambda: len(got) == 10)


async def test_iteration_acks_what_its_block_does_and_retries_what_raises(
    cluster: Any, producer: Any
):
    await fill(producer, 10)
    seen: list[tuple[bytes, int]] = []
    async with consumer(cluster) as made:
        async for message in made:
            async with message:
                seen.append((message.body, message.retries))
                if message.body == b"3" and message.retries == 0:
                    raise client.RetryLater(1)
            if len(seen) == 11:
                break
    assert seen[-1] == (b"3", 1)
    assert await lag(cluster) == 0


async def test_what_iteration_leaves_unsettled_comes_again(cluster: Any, producer: Any):
    await fill(producer, 4)
    async with asyncio.timeout(5), consumer(cluster) as made:
        async for message in made:
            if message.body == b"2":
                break
            message.ack()
    again: Bodies = []
    async with consumer(cluster) as made:
        async for message in made:
            async with message:
                again.append(message.body)
            if message.body == b"2":
                break
    assert b"2" in again


async def test_several_tasks_may_iterate_and_all_end_with_the_consumer(
    cluster: Any, producer: Any, until: Any
):
    await fill(producer, 300)
    got: Bodies = []
    made = consumer(cluster)
    await made.start()

    async def work() -> None:
        async for message in made:
            async with message:
                await asyncio.sleep(0)
                got.append(message.body)

    tasks = [asyncio.create_task(work()) for _ in range(5)]
    await until(lambda: len(got) == 300)
    await made.stop()
    await asyncio.gather(*tasks)
    assert sorted(got, key=int) == numbers(300)
    assert await lag(cluster) == 0


async def test_orderly_iteration_gives_the_next_only_when_the_last_is_settled(
    cluster: Any, producer: Any
):
    for number in range(3):
        await producer.send("T", b"%d" % number, sharding_key="k")
    seen: list[tuple[bytes, int]] = []
    async with consumer(cluster, order=client.Orderly(suspend=0.01)) as made:
        messages = aiter(made)
        first = await anext(messages)
        waiting = asyncio.create_task(anext(messages))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        first.retry_later()
        seen.append((first.body, 0))
        message = await waiting
        while True:
            async with message:
                seen.append((message.body, message.retries))
            if message.body == b"2":
                break
            message = await anext(messages)
    assert seen == [(b"0", 0), (b"0", 1), (b"1", 0), (b"2", 0)]


async def test_a_background_task_that_dies_ends_iteration(
    cluster: Any, producer: Any, monkeypatch: pytest.MonkeyPatch
):
    def broken(*_: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr("client.consumer.fetcher.messages_of", broken)
    await fill(producer, 1)
    made = consumer(cluster)
    await made.start()
    with pytest.raises(client.ConsumerStopped, match="ZeroDivisionError"):
        await anext(made)
    await made.stop()
    with pytest.raises(client.ConsumerStopped, match="ZeroDivisionError"):
        await anext(made)


async def test_a_handler_may_stop_its_consumer(cluster: Any, producer: Any):
    await fill(producer, 1)

    async def handle(_: Any) -> None:
        await made.stop()

    made = consumer(cluster, handle)
    async with asyncio.timeout(5), made:
        await made.run()
    assert await lag(cluster) == 0


async def test_broadcasting_gives_all_to_each_and_goes_on_from_its_file(
    cluster: Any, producer: Any, until: Any, tmp_path: Path
):
    await fill(producer, 50)
    got: list[Bodies] = [[], []]

    def broadcast(number: int) -> client.PushConsumer[bytes]:
        return consumer(
            cluster,
            collect(got[number]),
            model="broadcasting",
            local_offsets=tmp_path / f"{number}.json",
        )

    async with broadcast(0), broadcast(1):
        await until(lambda: [len(one) for one in got] == [50, 50])
    await fill(producer, 5, first=50)
    async with broadcast(0):
        await until(lambda: len(got[0]) == 55)
    assert sorted(got[0], key=int) == numbers(55)


async def test_a_damaged_broadcast_file_is_an_error_at_the_start(cluster: Any, tmp_path: Path):
    file = tmp_path / "offsets.json"
    file.write_text("{")
    made = consumer(cluster, collect([]), model="broadcasting", local_offsets=file)
    with pytest.raises(client.UsageError, match="damaged"):
        await made.start()


async def test_a_group_starts_at_the_end_when_told_exactly(cluster: Any, producer: Any, until: Any):
    await fill(producer, 10)
    got: Bodies = []
    events: list[Any] = []
    made = consumer(
        cluster, collect(got), start_from=client.LAST, exact=True, on_event=events.append
    )
    async with made:
        await until(lambda: len(own(made)) == 4)
        await producer.send("T", b"new")
        await until(lambda: got)
    assert got == [b"new"]
    starts = {e.start.reason for e in events if isinstance(e, QueueGained) and e.queue.topic == "T"}
    assert starts == {"end"}


async def test_where_a_group_started_is_committed_though_nothing_came(
    cluster: Any, producer: Any, until: Any
):
    await fill(producer, 10)
    got: Bodies = []
    async with consumer(cluster, collect(got), start_from=client.LAST, exact=True) as made:
        await until(lambda: len(own(made)) == 4)
    await fill(producer, 5, first=10)
    async with consumer(cluster, collect(got), start_from=client.LAST, exact=True):
        await until(lambda: len(got) == 5)
    assert sorted(got, key=int) == numbers(5, first=10)


async def test_a_broker_that_goes_and_comes_back_loses_nothing(
    cluster: Any, producer: Any, until: Any
):
    got: Bodies = []
    async with consumer(cluster, collect(got)) as made:
        await until(lambda: len(own(made)) == 4)
        await fill(producer, 100)
        await until(lambda: len(got) == 100)
        await cluster.stop()
        await cluster.add()
        await fill(producer, 100, first=100)
        await until(lambda: len(set(got)) == 200)


async def test_an_instance_makes_them_and_closes_them(cluster: Any, producer: Any, until: Any):
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


async def test_the_blocking_one_runs_plain_functions(cluster: Any, producer: Any):
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


PROGRAM = """
import asyncio, sys
import client

async def handle(message):
    print("got", flush=True)

async def main():
    async with client.PushConsumer(
        sys.argv[1], group="g", subscribe={"T": "*"}, handler=handle, start_from=client.FIRST
    ) as consumer:
        await consumer.run()
    print("stopped", flush=True)

asyncio.run(main())
"""


async def test_sigterm_stops_run_cleanly(cluster: Any, producer: Any):
    await fill(producer, 1)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROGRAM, cluster.nameserver, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    async with asyncio.timeout(20):
        assert await process.stdout.readline() == b"got\n"
        process.terminate()
        assert await process.stdout.readline() == b"stopped\n"
        assert await process.wait() == 0
    assert await lag(cluster) == 0
