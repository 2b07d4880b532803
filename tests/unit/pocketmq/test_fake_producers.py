"""Producers that record instead of sending."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import client
from client import serde
from client.message import Message, OpenTransaction, Receipt, TransactionState
from pocketmq.testing import FakeBlockingProducer, FakeProducer


def undecided(_: OpenTransaction[Any]) -> TransactionState:
    return TransactionState.UNKNOWN


async def test_every_way_of_sending_is_recorded_in_order() -> None:
    async with FakeProducer(group="shop") as producer:
        first = await producer.send("orders", b"1", tag="paid", keys=["o-1"])
        second = await producer.send_nowait("orders", b"2")
        await producer.send_oneway("orders", b"3")
        batch = await producer.send_batch([Message("orders", b"4"), Message("orders", b"5")])
        many = await producer.send_many([Message("invoices", b"6"), Message("orders", b"7")])
    assert producer.sent[0] == Message("orders", b"1", tag="paid", keys=["o-1"])
    assert [message.body for message in producer.sent] == [b"%d" % n for n in range(1, 8)]
    receipts = [first, second, *batch, *many]
    assert all(isinstance(receipt, Receipt) for receipt in receipts)
    assert len({receipt.id for receipt in receipts if isinstance(receipt, Receipt)}) == 6
    assert [first.offset, second.offset, *(receipt.offset for receipt in batch)] == [0, 1, 3, 4]


async def test_what_a_real_producer_refuses_is_refused() -> None:
    async with FakeProducer() as producer:
        with pytest.raises(client.UsageError, match="a body can't be empty"):
            await producer.send("orders", b"")
        with pytest.raises(client.UsageError, match="the key 'o 1'"):
            await producer.send("orders", b"tea", keys=["o 1"])
        with pytest.raises(client.UsageError, match="timeout can't be -1"):
            await producer.send("orders", b"tea", timeout=-1)
        with pytest.raises(client.UsageError, match="timeout can't be -1"):
            await producer.send_oneway("orders", b"tea", timeout=-1)
        with pytest.raises(client.UsageError, match="messages of one topic only"):
            await producer.send_batch([Message("orders", b"1"), Message("invoices", b"2")])
        with pytest.raises(client.UsageError, match="no transaction_checker"):
            producer.transaction("orders", b"tea")
    with pytest.raises(client.UsageError, match="closed"):
        await producer.send("orders", b"tea")
    assert producer.sent == []


async def test_what_is_recorded_stays_as_it_was_sent() -> None:
    message = Message("orders", b"1", properties={"cups": "1"})
    async with FakeProducer() as producer:
        await producer.send(message)
        message.body, message.properties["cups"] = b"2", "2"
        await producer.send(message)
        await producer.send("orders", b"3", keys=iter(["o-3"]))
        await producer.send_batch([Message("orders", b"4", keys=iter(["o-4"]))])
    assert [message.body for message in producer.sent] == [b"1", b"2", b"3", b"4"]
    assert [message.properties for message in producer.sent[:2]] == [{"cups": "1"}, {"cups": "2"}]
    assert [message.keys for message in producer.sent[2:]] == [["o-3"], ["o-4"]]


async def test_a_serde_is_used_and_the_values_are_recorded() -> None:
    async with FakeProducer(serde=serde.json) as producer:
        await producer.send("orders", {"cups": 2})
        with pytest.raises(client.UsageError, match="can't write this body"):
            await producer.send("orders", {"cups": object()})
    assert [message.body for message in producer.sent] == [{"cups": 2}]


async def test_sends_fail_as_the_test_asks() -> None:
    async with FakeProducer() as producer:
        producer.fail_next(times=2)
        for _ in range(2):
            with pytest.raises(client.SendError) as refused:
                await producer.send("orders", b"lost")
            assert refused.value.outcome is client.Outcome.NOT_SENT
        producer.fail_next(client.SystemBusy(code=2), stored=True)
        with pytest.raises(client.SystemBusy):
            await producer.send("orders", b"stored")
        producer.fail_next()
        with pytest.raises(client.SendError):
            await producer.send_batch([Message("orders", b"1"), Message("orders", b"2")])
        await producer.send("orders", b"sent")
    assert [message.body for message in producer.sent] == [b"stored", b"sent"]


async def test_a_message_of_a_transaction_is_sent_when_it_commits() -> None:
    async with FakeProducer(transaction_checker=undecided) as producer:
        async with producer.transaction("orders", b"committed") as transaction:
            assert producer.sent == []
        assert transaction.confirmed
        with pytest.raises(ValueError, match="no tea"):
            async with producer.transaction("orders", b"rolled back"):
                raise ValueError("no tea")
    assert [message.body for message in producer.sent] == [b"committed"]


async def test_interceptors_are_called() -> None:
    class Stamp(client.Interceptor):
        async def send(
            self, message: Message[Any], proceed: Callable[[Message[Any]], Awaitable[Receipt]]
        ) -> Receipt:
            message.properties = {"stamp": "1"}
            return await proceed(message)

    async with FakeProducer(interceptors=[Stamp()]) as producer:
        await producer.send("orders", b"tea")
    assert producer.sent == [Message("orders", b"tea", properties={"stamp": "1"})]


def test_the_blocking_one_does_the_same() -> None:
    with FakeBlockingProducer(transaction_checker=undecided) as producer:
        producer.send("orders", b"1")
        producer.send_nowait("orders", b"2").result(10)
        producer.fail_next(stored=True)
        with pytest.raises(client.SendError):
            producer.send_batch([Message("orders", b"3"), Message("orders", b"4")])
        with producer.transaction("orders", b"5"):
            assert len(producer.sent) == 4
        assert [message.body for message in producer.sent] == [b"%d" % n for n in range(1, 6)]
