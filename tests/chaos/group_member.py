"""A group member as a separate process: ``python -m tests.chaos.group_member ...``.

A message's body, ``NUMBER FAILURES WAIT_MS``, controls its handler, which logs each call
(``group_log``). Commands are read from standard input: ``owned`` is answered with the queues of
this member; ``leave``, the end of the input and SIGTERM make it leave cleanly.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import os
import sys
import time
from pathlib import Path

import client
from remoting.runtime.tasks import run
from tests.chaos.group_log import line

APPEND = os.O_WRONLY | os.O_CREAT | os.O_APPEND


class Handler:
    """Acts as its messages say, and logs its calls."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, APPEND, 0o644)

    async def __call__(self, message: client.ReceivedMessage[bytes]) -> None:
        """Handle a message. Raises ValueError when the message says so."""
        number, failures, wait_ms = map(int, message.body.split())
        failed = message.retries < failures
        if wait_ms:
            self._write("begin", message, number, failed=failed)
            await asyncio.sleep(wait_ms / 1000)
        self._write("end" if wait_ms else "call", message, number, failed=failed)
        if failed:
            raise ValueError(f"message {number} fails {failures} times")

    def _write(
        self, kind: str, message: client.ReceivedMessage[bytes], number: int, *, failed: bool
    ) -> None:
        queue = f"{message.queue.topic}:{message.queue.queue_id}"
        now = time.monotonic_ns()
        os.write(self._file, line(kind, now, queue, message.offset, number, failed=failed))


async def member(arguments: argparse.Namespace) -> None:
    """Be a member until the command to leave."""
    order = client.Orderly(max_retries=arguments.max_retries) if arguments.ordered else None
    retries = {} if arguments.ordered else {"max_retries": arguments.max_retries}
    async with client.Instance(arguments.nameserver) as instance:
        consumer = instance.push_consumer(
            group=arguments.group,
            subscribe={arguments.topic: "*"},
            handler=Handler(arguments.file),
            order=order,
            start_from=client.FIRST,
            breaker=None,
            **retries,
        )
        async with consumer:
            say("joined", instance.client_id)
            serving = asyncio.create_task(consumer.run())
            commands = asyncio.create_task(obey(consumer, arguments.topic))
            await asyncio.wait({serving, commands}, return_when=asyncio.FIRST_COMPLETED)
            commands.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await commands
        await serving
    say("done")


async def obey(consumer: client.PushConsumer[bytes], topic: str) -> None:
    """Answer commands until one makes this member leave."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    try:
        while (await reader.readline()).strip() == b"owned":
            owned = (f"{q.topic}:{q.queue_id}" for q in consumer.assigned if q.topic == topic)
            say("owned", ",".join(owned))
    finally:
        transport.close()


def say(*fields: str) -> None:
    """Print a line for the test."""
    sys.stdout.write("\t".join(fields) + "\n")
    sys.stdout.flush()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser()
    for name in ("nameserver", "group", "topic"):
        parser.add_argument(name)
    parser.add_argument("file", type=Path)
    parser.add_argument("--ordered", action="store_true")
    parser.add_argument("--max-retries", type=int, default=16)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    run(member(parser.parse_args()))


if __name__ == "__main__":
    main()
