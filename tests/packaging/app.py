"""An application of twenty lines, as checked by its author's type checker."""

import asyncio
import sys
from dataclasses import dataclass

import client


@dataclass
class Order:
    number: int


async def main(nameserver: str) -> None:
    serde = client.serde.typed(Order)
    async with client.Producer(nameserver, group="shop", serde=serde) as producer:
        receipt: client.Receipt = await producer.send("orders", Order(7), tag="paid", keys=["o-7"])
        futures = [producer.send_nowait("orders", Order(n), queue=receipt.queue) for n in range(3)]
        receipts: list[client.Receipt] = await asyncio.gather(*futures)
    async with client.PullConsumer(nameserver, group="audit", serde=serde) as consumer:
        consumer.assign([receipt.queue], tags="*")
        await consumer.seek(receipt.queue, client.BEGIN)
        found: list[Order] = []
        while len(found) < 1 + len(receipts):
            found += [message.value for message in await consumer.get_many(10, timeout=1.0)]
        await consumer.commit()
    async with client.Admin(nameserver) as admin:
        lag: int = (await admin.lag("audit")).total
    sys.stdout.write(f"{sorted(order.number for order in found)} {lag}\n")


asyncio.run(main(sys.argv[1]))
