"""Sends ten readings a second until it is stopped; NAMESRV_ADDR has the name server addresses.

NAMESRV_ADDR=127.0.0.1:9876 python examples/producer.py
"""

from __future__ import annotations

import asyncio
import itertools
import signal

import client

TOPIC = "readings"
QUEUES = 4
PAUSE = 0.1


async def create_topic() -> None:
    """Create the topic at every broker, also at those that have come since it was created.

    When one of them dies, the others take the readings.
    """
    async with client.Admin() as admin:
        if TOPIC in await admin.topics():
            await admin.update_topic(TOPIC, everywhere=True)
        else:
            await admin.create_topic(TOPIC, queues=QUEUES)


async def main() -> None:
    """Send until SIGTERM or Ctrl-C."""
    stop = asyncio.Event()
    for stop_signal in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(stop_signal, stop.set)
    async with client.Producer(group="example-producer") as producer:
        for number in itertools.count():
            if stop.is_set():
                return
            sensor = f"sensor-{number % 7}"
            try:
                if number % 100 == 0:
                    await create_topic()
                # The readings of one sensor go to one queue, which keeps their order.
                receipt = await producer.send(
                    TOPIC, b"%d" % number, tag="demo", keys=[sensor], sharding_key=sensor
                )
            except client.PocketMQError as problem:
                print(f"reading {number} was not sent: {problem}", flush=True)
            else:
                if number % 100 == 0:
                    print(f"reading {number} is in queue {receipt.queue}", flush=True)
            await asyncio.sleep(PAUSE)


if __name__ == "__main__":
    asyncio.run(main())
