"""Reads the producer's readings until it is stopped, and goes on there after a restart.

NAMESRV_ADDR=127.0.0.1:9876 python examples/consumer.py
"""

from __future__ import annotations

import asyncio
import signal

import client

TOPIC = "readings"
LOOK_AGAIN = 10.0
"""Seconds after which new queues of the topic are looked for."""


async def read(consumer: client.PullConsumer[bytes]) -> None:
    """Print what comes, and commit it."""
    loop = asyncio.get_running_loop()
    seen, look_at = 0, 0.0
    while True:
        if loop.time() >= look_at:
            look_at = loop.time() + LOOK_AGAIN
            try:
                consumer.assign(await consumer.queues(TOPIC))
            except client.PocketMQError as problem:
                print(f"waiting for the topic {TOPIC}: {problem}", flush=True)
                look_at = loop.time() + 1.0
        messages = await consumer.get_many(100, timeout=1.0)
        for message in messages:
            if seen % 100 == 0:
                print(f"read {message.body.decode()} of {message.keys[0]}", flush=True)
            seen += 1
        await consumer.commit()


async def main() -> None:
    """Read until SIGTERM or Ctrl-C."""
    async with client.PullConsumer(group="example-consumer", start_from=client.FIRST) as consumer:
        reading = asyncio.create_task(read(consumer))
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, reading.cancel)
        await asyncio.wait([reading])
        if not reading.cancelled():
            reading.result()


if __name__ == "__main__":
    asyncio.run(main())
