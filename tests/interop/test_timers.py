"""Either broker delivers the timers of the other's store; clients of either at the other."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta
from pathlib import Path

import pytest

import client
from pocketmq import testing
from tests.interop.apache import JavaClient, apache
from tests.interop.carried import first_messages

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "timed"
SAME = {"brokerName": "broker-a"}
WAITS = (1, 2.5, 12, 12, 13.25, 14, 15)
"""Seconds; the first two are delivered before the store changes hands."""


async def send(nameserver: str) -> None:
    """Send the messages, and two more that are recalled: one now, one by the other broker."""
    async with client.Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, queues=1)
    async with client.Producer(nameserver) as producer:
        for number, wait in enumerate(WAITS):
            await producer.send(TOPIC, b"message %d" % number, tag="a", keys=["k"], delay=wait)
        recalled = await producer.send(TOPIC, b"recalled", delay=13)
        assert recalled.recall_handle is not None
        await producer.recall(recalled.recall_handle)
    assert len(await first_messages(nameserver, TOPIC, 2)) == 2
    # RocketMQ saves its progress every second.
    await asyncio.sleep(3)


async def read_different(nameserver: str) -> list[client.ReceivedMessage[bytes]]:
    """The messages of the topic, waited for, each once."""
    count = len(WAITS)
    while True:
        found = {
            message.body: message for message in await first_messages(nameserver, TOPIC, count)
        }
        if len(found) == len(WAITS):
            return list(found.values())
        count += len(WAITS) - len(found)


def check(messages: list[client.ReceivedMessage[bytes]]) -> None:
    # RocketMQ delivers those of one second in any order.
    messages = sorted(messages, key=lambda message: message.body)
    assert [message.body for message in messages] == [b"message %d" % n for n in range(len(WAITS))]
    for message, wait in zip(messages, WAITS, strict=True):
        assert (message.tag, message.keys) == ("a", ["k"])
        # The store time of the waiting message is that of its birth, give or take a moment.
        assert message.stored_at - message.born_at >= timedelta(seconds=wait, milliseconds=-20)


@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_apache_delivers_the_timers_of_our_store(end: str, tmp_path: Path) -> None:
    store = tmp_path / "store"
    with testing.broker(store=store, settings=SAME) as ours:
        asyncio.run(send(ours.nameserver))
        if end == "killed":
            ours.kill()
    home = tmp_path / "apache"
    home.mkdir()
    places = [f"storePathRootDir={store}", f"storePathCommitLog={store}/commitlog"]
    with apache("5.3.3", home, settings=places) as theirs:
        if end == "killed":
            # RocketMQ continues with what is on the disk: it repeats some seconds.
            check(asyncio.run(read_different(theirs.nameserver)))
        else:
            check(asyncio.run(first_messages(theirs.nameserver, TOPIC, len(WAITS))))


@pytest.mark.parametrize("end", [pytest.param("stopped", marks=pytest.mark.slow), "killed"])
def test_our_broker_delivers_the_timers_of_apaches_store(end: str, tmp_path: Path) -> None:
    home = tmp_path / "apache"
    home.mkdir()
    with apache("5.3.3", home, settings=["recallMessageEnable=true"]) as theirs:
        asyncio.run(send(theirs.nameserver))
        if end == "stopped":
            theirs.process.terminate()
            theirs.process.wait(60)
    with testing.broker(store=home / "store", settings=SAME) as ours:
        if end == "killed":
            # RocketMQ's saved progress may be older than what it delivered.
            check(asyncio.run(read_different(ours.nameserver)))
        else:
            check(asyncio.run(first_messages(ours.nameserver, TOPIC, len(WAITS))))


def test_a_4_9_broker_gets_no_timed_message(tmp_path: Path) -> None:
    async def refused(nameserver: str) -> None:
        async with client.Admin(nameserver) as admin:
            await admin.create_topic(TOPIC, queues=1)
        async with client.Producer(nameserver) as producer:
            with pytest.raises(client.SendError, match="no timers"):
                await producer.send(TOPIC, b"x", delay=60)
        async with client.Producer(nameserver, without_timers="delay_level") as producer:
            await producer.send(TOPIC, b"late", delay=0.5)
        assert [message.body for message in await first_messages(nameserver, TOPIC, 1)] == [b"late"]

    with apache("4.9.7", tmp_path) as theirs:
        asyncio.run(refused(theirs.nameserver))


@pytest.mark.parametrize("serialize", ["JSON", "ROCKETMQ"])
def test_the_java_client_of_5_3_sends_and_recalls_timers_here(
    serialize: str, tmp_path: Path
) -> None:
    with testing.broker(settings=SAME) as ours:
        java = JavaClient("5.3.3", serialize, tmp_path)
        delays = [1200, 1700, 2300, 3900]
        facts = java.run(ours.nameserver, TOPIC, *map(str, delays), program="Timers")
        *sent, (_, recalled, answered) = facts
        assert recalled == answered
        due = {body.encode(): int(at) for _, body, at, _ in sent}
        time.sleep(4)  # the recalled message would be delivered after 3
        found = asyncio.run(first_messages(ours.nameserver, TOPIC, len(delays)))
    assert sorted(due) == sorted(message.body for message in found)
    for message in found:
        late_ms = message.stored_at.timestamp() * 1000 - due[message.body]
        # A relative delay counts from the arrival, shortly after.
        assert -1 <= late_ms < 30_000
