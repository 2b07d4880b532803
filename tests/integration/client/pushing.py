"""Helpers of the push consumer tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import client

Bodies = list[bytes]


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


def own(made: client.PushConsumer[bytes]) -> list[client.MessageQueue]:
    return [queue for queue in made.assigned if queue.topic == "T"]
