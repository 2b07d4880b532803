"""A well-behaved client that sends and reads continuously, in its own thread."""

from __future__ import annotations

import asyncio
import threading

import client
from tests.integration.bad_input.peer import PATIENCE

TOPIC = "meanwhile"
_THE_END = b"the end"
_PAUSE = 0.003
"""Seconds between sends: a client among others, not a load test."""


class Meanwhile:
    """Sends the numbers 0, 1, 2... to a queue and reads them back.

    A send that fails, a number that is lost or comes twice, and any other error is kept and raised
    by the next ``goes_on`` or ``stop``.
    """

    def __init__(self, nameserver: str) -> None:
        self._nameserver = nameserver
        self._acknowledged = 0
        self._read = 0
        self._problem: BaseException | None = None
        self._progress = threading.Condition()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="meanwhile")

    def start(self) -> None:
        self._thread.start()
        self.goes_on()

    def goes_on(self, count: int = 3) -> None:
        """Wait until ``count`` further messages are acknowledged and read."""
        with self._progress:
            goal = self._acknowledged + count
            done = self._progress.wait_for(lambda: self._problem or self._read >= goal, PATIENCE)
        self._raise_problem()
        assert done, "the client that behaves well is stuck"

    def stop(self) -> None:
        """Stop sending, read everything, and check that nothing acknowledged is lost."""
        self._stopping = True
        self._thread.join(PATIENCE)
        self._raise_problem()
        assert not self._thread.is_alive(), "what was acknowledged does not come"
        assert self._read == self._acknowledged

    def _raise_problem(self) -> None:
        if self._problem is not None:
            raise AssertionError("the client that behaves well was harmed") from self._problem

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except Exception as problem:  # noqa: BLE001 - whatever it is, the test has to know
            with self._progress:
                self._problem = problem
                self._progress.notify_all()

    async def _main(self) -> None:
        async with client.Admin(self._nameserver, request_timeout=PATIENCE) as admin:
            await admin.create_topic(TOPIC, queues=1)
        async with (
            client.Producer(
                self._nameserver, group="meanwhile", retries=0, timeout=PATIENCE
            ) as producer,
            client.PullConsumer(
                self._nameserver, group="meanwhile", request_timeout=PATIENCE
            ) as consumer,
        ):
            queues = await consumer.queues(TOPIC)
            consumer.assign(queues)
            await consumer.seek(queues[0], client.BEGIN)
            async with asyncio.TaskGroup() as group:
                group.create_task(self._read_all(consumer))
                group.create_task(self._send_all(producer))

    async def _send_all(self, producer: client.Producer[bytes]) -> None:
        while not self._stopping:
            await producer.send(TOPIC, b"%d" % self._acknowledged)
            with self._progress:
                self._acknowledged += 1
            await asyncio.sleep(_PAUSE)
        await producer.send(TOPIC, _THE_END)

    async def _read_all(self, consumer: client.PullConsumer[bytes]) -> None:
        async for message in consumer:
            if message.body == _THE_END:
                return
            assert int(message.body) == self._read, "lost or doubled"
            with self._progress:
                self._read += 1
                self._progress.notify_all()
