"""When a queue's next pull is sent: before or after the previous answer is handled."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from client import serde
from client.consumer.fetcher import Fetcher
from client.consumer.options import PushOptions
from client.consumer.process_queue import ProcessQueue
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import PullMessageResponseHeader
from tests.support.virtual_time import virtual
from tests.unit.client.consuming import ALL, QUEUE, record


class Broker:
    """An instance and its one broker: a queue with some messages, of which a pull brings one.

    It is the consumer, too: whoever waits for messages notes when they come.
    """

    def __init__(self, messages: int) -> None:
        self.events: list[str] = []
        self.exhausted = asyncio.Event()
        self.heartbeats = self
        self.closed = False
        self.routes = SimpleNamespace(to_read=self._route)
        self.remote = SimpleNamespace(request=lambda _, header: header)
        self._answers = self._answers_of(messages)
        self._woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def _answers_of(self, messages: int) -> Iterator[Command]:
        for offset in range(messages):
            header = PullMessageResponseHeader(
                suggest_which_broker_id=0,
                next_begin_offset=offset + 1,
                min_offset=0,
                max_offset=messages,
            )
            yield Command(RequestCode.PULL_MESSAGE).reply(
                0, header=header, body=record(offset, QUEUE)
            )

    async def _route(self, _: str) -> Any:
        return SimpleNamespace(address=lambda *_: "a:10911")

    def connected(self, _: str) -> Any:
        return self

    async def request(self, *_: Any, timeout: float) -> Command:
        self.events.append("asked")
        answer = next(self._answers, None)
        if answer is None:
            self.exhausted.set()
            await asyncio.sleep(timeout)
        assert answer is not None
        return answer

    settler = None

    def offset_to_commit(self) -> None:
        """Return none: pulls carry no commits here."""

    def fetched(self, _: Any, seconds: float) -> None:
        if not self._woken.done():
            self._woken.set_result(None)

    async def wait(self) -> None:
        """A consumer that waits for its first messages."""
        await self._woken
        self.events.append("handed out")


@pytest.mark.parametrize(
    ("messages", "events"),
    [
        (1, ["asked", "handed out", "asked"]),
        (2, ["asked", "asked", "handed out", "asked"]),
    ],
)
@virtual
async def test_parked_pulls_are_served_before_new_ones_are_sent(
    messages: int, events: list[str]
) -> None:
    broker: Any = Broker(messages)
    sink: ProcessQueue[Any] = ProcessQueue(QUEUE, max_messages=100, max_bytes=100_000)
    sink.start(0)
    reading = Fetcher(broker, "g", sink, ALL, PushOptions(), serde.raw, broker)
    waiting = asyncio.create_task(broker.wait())
    running = asyncio.create_task(reading.run())
    await broker.exhausted.wait()
    await waiting
    running.cancel()
    assert broker.events == events
