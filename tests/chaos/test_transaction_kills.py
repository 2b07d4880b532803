"""The broker is killed under transactions: what was committed arrives, nothing else does."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

import client
from client import TransactionState
from tests.chaos.load import PATIENCE, stored_numbers
from tests.harness.processes import processes
from tests.support.sizes import size

pytestmark = pytest.mark.timeout(300)

TOPIC = "numbers"
ROUNDS = size(test=3, ci=5, soak=50)
SENDERS = 16
AT_ONCE = 300
"""Transactions that end before the broker is killed, of each round."""

CHECKS = {"transactionTimeOut": "500", "transactionCheckInterval": "200"}
CLOSING_SECONDS = 60


class Bank:
    """What local transactions decided, by number, as a database keeps it."""

    def __init__(self) -> None:
        self.began = 0
        self.decided: dict[int, TransactionState] = {}
        self._enough = 0
        self._reached = asyncio.Event()

    def decide(self, number: int) -> TransactionState:
        state = TransactionState.ROLLBACK if number % 3 == 0 else TransactionState.COMMIT
        self.decided[number] = state
        if len(self.decided) == self._enough:
            self._reached.set()
        return state

    async def more(self, count: int) -> None:
        """Wait until so many more are decided."""
        self._enough = len(self.decided) + count
        self._reached.clear()
        await self._reached.wait()

    def check(self, found: client.OpenTransaction[bytes]) -> TransactionState:
        """One whose local transaction has not run, for its half message was not acknowledged."""
        return self.decided.get(int(found.message.body), TransactionState.ROLLBACK)

    @property
    def committed(self) -> set[int]:
        return {
            number for number, state in self.decided.items() if state == TransactionState.COMMIT
        }


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
async def test_killing_the_broker_breaks_no_transaction(tmp_path: Path, flush: str) -> None:
    bank = Bank()
    with processes(tmp_path, settings={**CHECKS, "flushDiskType": flush}) as running:
        async with client.Admin(running.address, request_timeout=PATIENCE) as admin:
            await admin.create_topic(TOPIC, queues=4)
        async with client.Producer(
            running.address, group="bank", transaction_checker=bank.check, heartbeat_period=1.0
        ) as producer:
            for _ in range(ROUNDS):
                async with asyncio.TaskGroup() as senders:
                    load = [senders.create_task(deal(producer, bank)) for _ in range(SENDERS)]
                    async with asyncio.timeout(CLOSING_SECONDS):
                        await bank.more(AT_ONCE)
                    await asyncio.to_thread(running.broker.kill)
                    for task in load:
                        task.cancel()
                await asyncio.to_thread(running.broker.start)
            stored = await closed(running.address, bank)

    assert Counter(stored) == dict.fromkeys(bank.committed, 1)


async def deal(producer: client.Producer[bytes], bank: Bank) -> None:
    """One transaction after the other, of which some leave the decision to the checker."""
    while True:
        number = bank.began
        bank.began += 1
        transaction = producer.transaction(TOPIC, b"%d" % number, timeout=1.0)
        try:
            await transaction.start()
        except client.SendError:
            continue
        if number % 10 == 1:
            bank.decide(number)
            await transaction.defer()
        elif bank.decide(number) == TransactionState.COMMIT:
            await transaction.commit()
        else:
            await transaction.rollback()


async def closed(nameserver: str, bank: Bank) -> list[int]:
    """The numbers of the topic, once all that were committed are there, and a few checks later."""
    stored: list[int] = []
    async with asyncio.timeout(CLOSING_SECONDS):
        while not bank.committed <= set(stored):
            await asyncio.sleep(0.5)
            stored = await stored_numbers(nameserver, TOPIC)
    await asyncio.sleep(2)
    return await stored_numbers(nameserver, TOPIC)
