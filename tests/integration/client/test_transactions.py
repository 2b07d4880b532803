"""Transactions of our producer at our broker: commits, rollbacks, and what a checker decides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import client
from client import blocking
from client.producer.transactions import Transactions
from tests.harness.cluster import Cluster

State = client.TransactionState
QUICK = {"transactionTimeOut": "100", "transactionCheckInterval": "100"}


def unexpected(transaction: client.OpenTransaction[Any]) -> State:
    raise AssertionError(f"asked about {transaction}")


async def visible(cluster: Cluster, count: int, topic: str = "T") -> list[bytes]:
    """The bodies of the messages that a consumer gets, once there are so many; sorted."""
    async with client.PullConsumer(
        cluster.nameserver, group="readers", start_from=client.BEGIN
    ) as consumer:
        consumer.assign(await consumer.queues(topic))
        found: list[bytes] = []
        async with asyncio.timeout(20):
            while len(found) < count:
                found += [one.body for one in await consumer.get_many(100, timeout=0.2)]
        found += [one.body for one in await consumer.get_many(100, timeout=0.3)]
    return sorted(found)


@pytest.fixture
async def quick(empty_cluster: Cluster) -> Cluster:
    """A broker that asks about transactions after a tenth of a second."""
    await empty_cluster.start(**QUICK)
    async with client.Admin(empty_cluster.nameserver) as admin:
        await admin.create_topic("T", queues=4)
    return empty_cluster


def producer(cluster: Cluster, checker: Callable[..., Any] = unexpected, **options: Any):
    return client.Producer(
        cluster.nameserver, group="orders", transaction_checker=checker, **options
    )


async def test_the_end_of_the_block_commits_and_an_exception_rolls_back(cluster):
    async with producer(cluster) as sender:
        async with sender.transaction("T", b"paid", keys=["o-1"]) as paid:
            assert paid.receipt.id == paid.id
            assert paid.state is None
        unpaid = sender.transaction("T", b"unpaid")
        with pytest.raises(ZeroDivisionError):
            async with unpaid:
                1 / 0  # noqa: B018 - the local transaction that fails
    assert (paid.state, paid.confirmed) == (State.COMMIT, True)
    assert (unpaid.state, unpaid.confirmed) == (State.ROLLBACK, True)
    assert await visible(cluster, 1) == [b"paid"]


async def test_nobody_gets_a_half_message(cluster):
    async with producer(cluster) as sender, sender.transaction("T", b"x") as transaction:
        assert await visible(cluster, 0) == []
        await transaction.rollback()
    assert await visible(cluster, 0) == []


async def test_a_committed_message_is_the_one_that_was_sent(cluster):
    async with producer(cluster) as sender:
        message = client.Message(
            "T", b"x" * 10_000, "paid", ("o-1", "o-2"), {"a": "b"}, sharding_key="o-1", flag=7
        )
        async with sender.transaction(message) as transaction:
            pass
    async with client.PullConsumer(
        cluster.nameserver, group="readers", start_from=client.BEGIN
    ) as consumer:
        consumer.assign(await consumer.queues("T"))
        (got,) = await consumer.get_many(1, timeout=5)
    assert (got.body, got.tags, got.keys, got.flag) == (message.body, "paid", ["o-1", "o-2"], 7)
    assert got.properties["a"] == "b"
    assert got.id == transaction.id


async def test_a_decision_within_the_block_is_final(cluster):
    async with producer(cluster) as sender, sender.transaction("T", b"x") as transaction:
        assert await transaction.rollback()
        assert await transaction.rollback()
        with pytest.raises(client.UsageError, match="a decision is final"):
            await transaction.commit()
    assert transaction.state is State.ROLLBACK


async def test_a_transaction_begins_once_and_decides_after_that(cluster):
    async with producer(cluster) as sender:
        transaction = sender.transaction("T", b"x")
        with pytest.raises(client.UsageError, match="has not begun"):
            await transaction.commit()
        await transaction.start()
        with pytest.raises(client.UsageError, match="has begun already"):
            await transaction.start()
        assert await transaction.commit()


async def test_without_a_checker_there_are_no_transactions(cluster):
    async with client.Producer(cluster.nameserver) as sender:
        with pytest.raises(client.UsageError, match="no transaction_checker"):
            sender.transaction("T", b"x")


async def test_a_delayed_message_is_none_of_a_transaction(cluster):
    async with producer(cluster) as sender:
        with pytest.raises(client.UsageError, match="can't have a delay_level"):
            await sender.transaction(client.Message("T", b"x", delay_level=1)).start()


async def test_a_broker_that_rejects_transactions_says_so(empty_cluster):
    await empty_cluster.start(rejectTransactionMessage="true")
    async with producer(empty_cluster) as sender:
        with pytest.raises(client.SendError, match="sending transaction message is forbidden"):
            await sender.transaction("T", b"x").start()


# --- checks


@pytest.mark.parametrize("kind", ["function", "coroutine"])
async def test_the_checker_decides_what_was_left_open(quick, kind):
    seen: list[client.OpenTransaction[bytes]] = []

    def decide(transaction: client.OpenTransaction[bytes]) -> State:
        seen.append(transaction)
        return State.COMMIT if transaction.message.body == b"yes" else State.ROLLBACK

    async def decide_later(transaction: client.OpenTransaction[bytes]) -> State:
        await asyncio.sleep(0)
        return decide(transaction)

    checker = decide if kind == "function" else decide_later
    async with producer(quick, checker) as sender:
        for body in (b"yes", b"no"):
            async with sender.transaction(
                "T", body, tag="t", keys=["k"], properties={"a": "b"}
            ) as transaction:
                await transaction.defer()
        assert await visible(quick, 1) == [b"yes"]
    asked = {one.message.body: one for one in seen}
    assert asked.keys() == {b"yes", b"no"}
    no = asked[b"no"]
    assert no.id == transaction.id
    assert no.message == client.Message("T", b"no", "t", ("k",), {"a": "b"})
    assert no.checks == 1
    assert no.sent_ms > 0


async def test_a_checker_that_fails_or_does_not_know_is_asked_again(quick):
    answers: list[Any] = [State.UNKNOWN, ValueError("no database"), "what?", State.COMMIT]
    checks: list[int] = []

    def decide(transaction: client.OpenTransaction[bytes]) -> Any:
        checks.append(transaction.checks)
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with producer(quick, decide) as sender:
        async with sender.transaction("T", b"x") as transaction:
            await transaction.defer()
        assert await visible(quick, 1) == [b"x"]
    assert checks == [1, 2, 3, 4]


async def test_another_producer_of_the_group_decides_after_a_crash(quick):
    async with producer(quick) as first:
        transaction = first.transaction("T", b"x")
        await transaction.start()
    asked: list[str] = []

    def decide(found: client.OpenTransaction[bytes]) -> State:
        asked.append(found.id)
        return State.COMMIT

    async with producer(quick, decide) as second:
        await second.send("T", b"hello")
        assert await visible(quick, 2) == [b"hello", b"x"]
    # A check may be repeated before the decision has arrived.
    assert set(asked) == {transaction.id}


async def test_a_decision_that_was_not_confirmed_is_given_again(quick, monkeypatch):
    """The checker is not called: the producer remembers."""

    async def unreachable(self: Transactions[Any], queue: object) -> str:
        raise client.NoRoute("no route")

    async with producer(quick) as sender:
        with monkeypatch.context() as patch:
            patch.setattr(Transactions, "_address", unreachable)
            async with sender.transaction("T", b"x") as transaction:
                pass
        assert not transaction.confirmed
        assert await visible(quick, 1) == [b"x"]


async def test_transactions_survive_a_restart_of_the_broker(quick):
    async with producer(quick, lambda _: State.COMMIT) as sender:
        async with sender.transaction("T", b"x") as transaction:
            await transaction.defer()
        ended = sender.transaction("T", b"ended")
        await ended.start()
        await ended.rollback()
        await quick.stop()
        await quick.start(**QUICK)
        await sender.send("T", b"hello", timeout=10)
        assert await visible(quick, 2) == [b"hello", b"x"]


async def test_a_blocking_producer_has_transactions(cluster):
    def run() -> None:
        with blocking.Producer(
            cluster.nameserver, group="orders", transaction_checker=unexpected
        ) as sender:
            with sender.transaction("T", b"paid") as paid:
                assert paid.receipt is not None
            assert (paid.state, paid.confirmed) == (State.COMMIT, True)
            with pytest.raises(ZeroDivisionError), sender.transaction("T", b"unpaid"):
                1 / 0  # noqa: B018 - as above

    await asyncio.to_thread(run)
    assert await visible(cluster, 1) == [b"paid"]


async def test_interceptors_see_transactions(cluster):
    class Stamp(client.Interceptor):
        async def send(self, message, proceed):
            message.properties = {"stamp": "1"}
            return await proceed(message)

    async with producer(cluster, interceptors=[Stamp()]) as sender, sender.transaction("T", b"x"):
        pass
    async with client.PullConsumer(
        cluster.nameserver, group="readers", start_from=client.BEGIN
    ) as consumer:
        consumer.assign(await consumer.queues("T"))
        (got,) = await consumer.get_many(1, timeout=5)
    assert got.properties["stamp"] == "1"


async def restarted(nameserver: str, committed: asyncio.Event, asked: list[Any]) -> None:
    async def check(transaction: client.OpenTransaction[Any]) -> State:
        asked.append(transaction.message.body)
        if len(set(asked)) == 2:
            committed.set()
        return State.COMMIT

    async with client.Producer(nameserver, group="orders", transaction_checker=check):
        await committed.wait()


async def restarted_blocking(nameserver: str, committed: asyncio.Event, asked: list[Any]) -> None:
    loop = asyncio.get_running_loop()

    def check(transaction: client.OpenTransaction[Any]) -> State:
        asked.append(transaction.message.body)
        if len(set(asked)) == 2:
            loop.call_soon_threadsafe(committed.set)
        return State.COMMIT

    with blocking.Producer(nameserver, group="orders", transaction_checker=check):
        await committed.wait()


@pytest.mark.parametrize("restart", [restarted, restarted_blocking])
async def test_a_producer_that_sends_nothing_is_asked_by_every_broker(
    empty_cluster: Cluster, restart: Callable[..., Any]
):
    """The broker needs no route that the producer uses, nor the template of new topics."""
    for name in ("broker-a", "broker-b"):
        await empty_cluster.start(name, autoCreateTopicEnable="false", **QUICK)
    async with client.Admin(empty_cluster.nameserver) as admin:
        await admin.create_topic("T", queues=1)
    async with producer(empty_cluster, lambda _: State.UNKNOWN) as sender:
        for number, broker in enumerate(("broker-a", "broker-b")):
            order = client.Message("T", b"%d" % number, queue=client.MessageQueue("T", broker, 0))
            async with sender.transaction(order) as transaction:
                await transaction.defer()
    async with asyncio.timeout(30):
        await restart(empty_cluster.nameserver, asyncio.Event(), asked := [])
    assert set(asked) == {b"0", b"1"}
