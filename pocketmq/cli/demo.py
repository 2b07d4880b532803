"""``pocketmq demo``: orders handled in sequence, a delayed one, and two transactions."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from typing import Final

import click

import client
from client.errors import PocketMQError
from pocketmq import output, testing
from pocketmq.cli.running import json_option, quiet
from pocketmq.testing import ServerError
from remoting.runtime import tasks as loop

TOPIC: Final = "orders"
CUSTOMERS: Final = 20
DELAY_SECONDS: Final = 1.0
TIMEOUT: Final = 60.0


@click.command(epilog="Example: pocketmq demo --limit 10000")
@click.option(
    "--limit", type=click.IntRange(1), default=500, show_default=True, help="Number of orders."
)
@json_option
def demo(limit: int, as_json: bool) -> None:
    """Send orders to a temporary broker, handle them in a consumer group, and check each.

    The orders of each customer are handled in sequence. A message is delivered after a delay, and
    of two transactions only the committed one is. In a clone, `make demo` shows more.
    """
    quiet()
    try:
        with testing.broker() as server:
            facts = loop.run(_run(server.nameserver, limit))
    except (PocketMQError, ServerError, TimeoutError) as problem:
        text = str(problem) or f"not all messages were handled within {TIMEOUT:g} s"
        raise click.ClickException(text) from problem
    output.show_facts(facts, as_json=as_json)


async def _run(nameserver: str, limit: int) -> dict[str, object]:
    handled: defaultdict[str, list[bytes]] = defaultdict(list)
    delayed_at: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    done = asyncio.Event()

    async def handle(message: client.ReceivedMessage[bytes]) -> None:
        handled[message.tag or ""].append(message.body)
        if message.tag == "delayed":
            delayed_at.set_result(time.perf_counter())
        if sum(map(len, handled.values())) >= limit + 2:
            done.set()

    async with (
        client.Admin(nameserver) as admin,
        client.Producer(
            nameserver,
            group="shop",
            transaction_checker=lambda _: client.TransactionState.UNKNOWN,
        ) as producer,
    ):
        await admin.create_topic(TOPIC, queues=4)
        begun = time.perf_counter()
        await producer.send(TOPIC, b"tea", tag="delayed", delay=DELAY_SECONDS)
        orders = [
            client.Message(TOPIC, b"%d" % number, tag=name, sharding_key=name)
            for number in range(limit)
            for name in [f"customer-{number % CUSTOMERS}"]
        ]
        for receipt in await producer.send_many(orders):
            if isinstance(receipt, client.SendError):
                raise receipt
        async with producer.transaction(TOPIC, b"rolled back", tag="transaction") as transaction:
            await transaction.rollback()
        async with producer.transaction(TOPIC, b"committed", tag="transaction"):
            pass
        sent = time.perf_counter()
        async with client.PushConsumer(
            nameserver,
            group="billing",
            subscribe={TOPIC: "*"},
            handler=handle,
            order=client.Orderly(),
            start_from=client.FIRST,
        ):
            await asyncio.wait_for(done.wait(), TIMEOUT)
    expected = defaultdict(list, {"delayed": [b"tea"], "transaction": [b"committed"]})
    for order in orders:
        expected[str(order.tag)].append(order.body)
    delay = delayed_at.result() - begun
    if handled != expected or delay < DELAY_SECONDS:
        raise click.ClickException("a message is missing, came twice or too early")
    return {
        "messages": limit + 2,
        "send_seconds": round(sent - begun, 3),
        "group_seconds": round(time.perf_counter() - sent, 3),
        "in_order": f"the orders of each of {min(limit, CUSTOMERS)} customers",
        "delay_seconds": round(delay, 3),
        "transactions": "1 committed and handled, 1 rolled back",
        "checked": True,
    }
