"""Closing clients: everybody waits for the same end, and nothing stays in memory."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

import client
from client import blocking
from remoting.connection import Connection
from remoting.pool import ConnectionPool
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from tests.integration.client.pulling import queue

AT_ONCE = 10
ROUNDS = 10


def objects_of_clients() -> Counter[str]:
    """Count the objects of the client's classes, and of their connections, that are reachable."""
    gc.collect()
    return Counter(
        kind.__qualname__
        for kind in map(type, gc.get_objects())
        if str(kind.__module__).partition(".")[0] == "client" or kind is ConnectionPool
    )


def commit(_: Any) -> client.TransactionState:
    return client.TransactionState.COMMIT


class Cycles:
    """Make, use and close one client; each method is one kind of client."""

    def __init__(self, nameserver: str, number: int) -> None:
        self._nameserver = nameserver
        group = f"g{number}"
        self._consumer = {"group": group, "subscribe": {"T": "*"}, "start_from": client.FIRST}

    async def admin(self) -> None:
        async with client.Admin(self._nameserver) as admin:
            await admin.topics()

    async def producer(self) -> None:
        async with client.Producer(self._nameserver) as producer:
            await producer.send("T", b"x")

    async def transactions(self) -> None:
        async with (
            client.Producer(self._nameserver, group="p", transaction_checker=commit) as producer,
            producer.transaction("T", b"x"),
        ):
            pass

    async def pull_consumer(self) -> None:
        async with client.PullConsumer(self._nameserver, group="g") as consumer:
            consumer.assign(await consumer.queues("T"))
            await consumer.get_many(1, timeout=0.01)

    async def push_consumer(self) -> None:
        await self._push()

    async def orderly_consumer_whose_queue_rests(self) -> None:
        await self._push(fails=client.RetryLater(3600), order=client.Orderly())

    async def _push(self, fails: Exception | None = None, **options: Any) -> None:
        handled = asyncio.Event()

        async def handle(_: Any) -> None:
            handled.set()
            await asyncio.sleep(0)
            if fails is not None:
                raise fails

        await self.producer()
        options = {**self._consumer, **options}
        async with client.PushConsumer(self._nameserver, handler=handle, **options):
            await handled.wait()

    async def iterated_consumer(self) -> None:
        await self.producer()
        async with client.PushConsumer(self._nameserver, **self._consumer) as consumer:
            with await anext(consumer):
                pass

    async def instance(self) -> None:
        async with client.Instance(self._nameserver) as instance:
            await instance.producer().send("T", b"x")
            consumer = instance.pull_consumer(group="g")
            await consumer.queues("T")
            await instance.admin().topics()

    async def blocking_admin(self) -> None:
        def cycle() -> None:
            with blocking.Admin(self._nameserver) as admin:
                admin.topics()

        await asyncio.to_thread(cycle)

    async def blocking_producer(self) -> None:
        def cycle() -> None:
            with blocking.Producer(
                self._nameserver, group="p", transaction_checker=commit
            ) as producer:
                producer.send("T", b"x")
                with producer.transaction("T", b"x"):
                    pass

        await asyncio.to_thread(cycle)

    async def blocking_pull_consumer(self) -> None:
        def cycle() -> None:
            with blocking.PullConsumer(self._nameserver, group="g") as consumer:
                consumer.assign(consumer.queues("T"))
                consumer.get_many(1, timeout=0.01)

        await asyncio.to_thread(cycle)

    async def blocking_push_consumer(self) -> None:
        def cycle() -> None:
            with (
                blocking.PushConsumer(self._nameserver, **self._consumer) as consumer,
                next(consumer),
            ):
                pass

        await self.producer()
        await asyncio.to_thread(cycle)

    async def blocking_instance(self) -> None:
        def cycle() -> None:
            with blocking.Instance(self._nameserver) as instance:
                instance.producer().send("T", b"x")
                instance.pull_consumer(group="g").queues("T")
                instance.admin().topics()

        await asyncio.to_thread(cycle)


@pytest.mark.parametrize("kind", [name for name in vars(Cycles) if name[0] != "_"])
async def test_nothing_stays_of_clients_that_were_closed(cluster: Any, kind: str):
    async def cycle() -> None:
        cycles = (Cycles(cluster.nameserver, number) for number in range(AT_ONCE))
        await asyncio.gather(*(getattr(each, kind)() for each in cycles))

    await cycle()
    before = objects_of_clients()
    for _ in range(ROUNDS):
        await cycle()
    assert objects_of_clients() - before == Counter()


class Held:
    """Holds the commits of all clients until ``release`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.release = threading.Event(), threading.Event()
        request = Connection.request

        async def held(connection: Connection, command: Command, *, timeout: float) -> Command:
            if command.code == RequestCode.UPDATE_CONSUMER_OFFSET:
                self.asked.set()
                await asyncio.to_thread(self.release.wait, 30)
            return await request(connection, command, timeout=timeout)

        monkeypatch.setattr(Connection, "request", held)


async def test_whoever_closes_what_is_being_closed_waits_for_the_end(
    cluster: Any, producer: Any, admin: client.Admin, monkeypatch: pytest.MonkeyPatch
):
    await producer.send("T", b"x", queue=queue(0))
    commits = Held(monkeypatch)
    instance = client.Instance(cluster.nameserver)
    await instance.start()
    consumer = instance.pull_consumer(group="g", auto_commit=True)
    consumer.assign([queue(0)])
    assert await consumer.get_many(1, timeout=5)
    closing = [asyncio.create_task(consumer.close())]
    assert await asyncio.to_thread(commits.asked.wait, 10)
    closing += [asyncio.create_task(consumer.close()), asyncio.create_task(instance.close())]
    done, _ = await asyncio.wait(closing, timeout=0.1)
    assert not done
    closing[0].cancel()
    await asyncio.wait(closing[:1])
    commits.release.set()
    await asyncio.gather(*closing[1:])
    assert (await admin.committed("g", "T"))[queue(0)] == 1


async def test_two_threads_may_start_a_blocking_client(cluster: Any):
    def use() -> None:
        with ThreadPoolExecutor() as threads:
            for _ in range(ROUNDS):
                producer = blocking.Producer(cluster.nameserver)
                together = threading.Barrier(2)

                def start(producer: Any = producer, together: threading.Barrier = together) -> None:
                    together.wait(10)
                    producer.start()

                for started in [threads.submit(start), threads.submit(start)]:
                    started.result(10)
                producer.send("T", b"x")
                producer.close()
        assert "pocketmq-client" not in {thread.name for thread in threading.enumerate()}

    await asyncio.to_thread(use)


async def test_two_threads_may_close_a_blocking_client(
    cluster: Any, producer: Any, admin: client.Admin, monkeypatch: pytest.MonkeyPatch
):
    await producer.send("T", b"x", queue=queue(0))
    commits = Held(monkeypatch)

    def use() -> None:
        consumer = blocking.PullConsumer(cluster.nameserver, group="g", auto_commit=True)
        consumer.start()
        consumer.assign([queue(0)])
        assert consumer.get_many(1, timeout=5)
        with ThreadPoolExecutor() as threads:
            first = threads.submit(consumer.close)
            assert commits.asked.wait(10)
            second = threads.submit(consumer.close)
            done, _ = wait([first, second], timeout=0.1)
            commits.release.set()
            first.result(10)
            second.result(10)
        assert not done

    await asyncio.to_thread(use)
    assert (await admin.committed("g", "T"))[queue(0)] == 1


async def test_a_handler_may_close_its_instance(cluster: Any, admin: client.Admin):
    closed = asyncio.Event()
    instance = client.Instance(cluster.nameserver)
    await instance.start()

    async def handle(_: Any) -> None:
        await instance.close()
        closed.set()

    async with asyncio.timeout(10):
        await instance.push_consumer(group="g", subscribe={"T": "*"}, handler=handle).start()
        await instance.producer().send("T", b"x", queue=queue(0))
        await closed.wait()
        await instance.close()
    assert (await admin.committed("g", "T"))[queue(0)] == 1


async def test_a_blocking_handler_may_close_its_instance(cluster: Any, admin: client.Admin):
    closed = threading.Event()

    def use() -> None:
        with blocking.Instance(cluster.nameserver) as instance:

            def handle(_: Any) -> None:
                instance.close()
                closed.set()

            instance.push_consumer(group="g", subscribe={"T": "*"}, handler=handle).start()
            instance.producer().send("T", b"x", queue=queue(0))
            assert closed.wait(10)

    await asyncio.to_thread(use)
    assert (await admin.committed("g", "T"))[queue(0)] == 1


async def test_an_event_may_stop_its_blocking_consumer(cluster: Any, admin: client.Admin):
    await admin.create_topic("U", queues=1)
    stopped = threading.Event()

    def use() -> None:
        def stop(event: client.Event) -> None:
            if isinstance(event, client.QueueGained) and event.queue.topic == "U":
                consumer.stop()
                stopped.set()

        consumer = blocking.PushConsumer(
            cluster.nameserver, group="g", subscribe={"T": "*"}, handler=print, on_event=stop
        )
        with consumer:
            consumer.subscribe("U")
            assert stopped.wait(10)

    await asyncio.to_thread(use)
