"""Interceptors around sends."""

from __future__ import annotations

from typing import Any

import pytest

import client


class Tracing(client.Interceptor):
    """Writes a property into each message, and notes what it got for it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[Any] = []

    async def send(self, message: Any, proceed: Any) -> Any:
        message.properties = {**(message.properties or {}), self.name: "1"}
        try:
            receipt = await proceed(message)
        except client.PocketMQError as error:
            self.seen.append(type(error))
            raise
        self.seen.append(receipt.offset)
        return receipt


async def test_every_acknowledged_send_goes_through_them(cluster: Any):
    outer, inner = Tracing("outer"), Tracing("inner")
    queue = client.MessageQueue("T", "broker-a", 0)
    async with client.Producer(cluster.nameserver, interceptors=[outer, inner]) as producer:
        await producer.send("T", b"1", tag="a", queue=queue)
        await producer.send_nowait("T", b"2", queue=queue)
        [receipt] = await producer.send_many([client.Message("T", b"3", queue=queue)])
        assert isinstance(receipt, client.Receipt)
    assert outer.seen == inner.seen == [0, 1, 2]
    async with client.PullConsumer(cluster.nameserver, group="g") as consumer:
        consumer.assign([queue])
        messages = await consumer.get_many(10, timeout=5)
    assert [message.body for message in messages] == [b"1", b"2", b"3"]
    assert messages[0].tag == "a"
    assert all({"outer", "inner"} <= message.properties.keys() for message in messages)


async def test_they_see_what_went_wrong(cluster: Any):
    seen = Tracing("x")
    async with client.Producer(cluster.nameserver, interceptors=[seen]) as producer:
        with pytest.raises(client.UsageError):
            await producer.send("T", b"")
        [failed] = await producer.send_many([client.Message("T", b"")])
        assert isinstance(failed, client.SendError)
        future = producer.send_nowait("T", b"")
        with pytest.raises(client.UsageError):
            await future
        with pytest.raises(client.UsageError, match="has its body and attributes itself"):
            await producer.send(client.Message("T", b"x"), tag="a")  # type: ignore[call-overload] # refused
    assert seen.seen == [client.UsageError] * 3


async def test_one_may_answer_in_place_of_the_broker(cluster: Any):
    class Dry(client.Interceptor):
        async def send(self, message: Any, proceed: Any) -> Any:
            return client.Receipt(
                client.SendStatus.OK, client.MessageQueue("T", "none", 0), 0, "id", "id"
            )

    async with client.Producer(cluster.nameserver, interceptors=[Dry()]) as producer:
        receipt = await producer.send("T", b"x")
    assert receipt.queue.broker_name == "none"
