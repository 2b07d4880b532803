"""Consumes the readings of ``producer.py`` until it is stopped; several consumers share the queues.

NAMESRV_ADDR=127.0.0.1:9876 python examples/consumer.py
"""

from __future__ import annotations

import asyncio

import client

TOPIC = "readings"


async def handle(message: client.ReceivedMessage[bytes]) -> None:
    """Print every hundredth reading. A reading for which this raises is delivered again."""
    number = int(message.body)
    if number % 100 == 0:
        print(f"read {number} of {message.keys[0]}", flush=True)


async def main() -> None:
    """Consume until SIGTERM or Ctrl-C."""
    async with client.PushConsumer(
        group="example-consumer",
        subscribe={TOPIC: "*"},
        handler=handle,
        # The readings of one sensor are in one queue and are handled in order.
        order=client.Orderly(),
        start_from=client.FIRST,
    ) as consumer:
        await consumer.run()


if __name__ == "__main__":
    asyncio.run(main())
