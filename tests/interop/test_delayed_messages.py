"""Either broker delivers the delayed messages and retries of the other's store."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

import client
from pocketmq import testing
from remoting.connection import Connection
from remoting.pool import ConnectionPool
from remoting.protocol import bodies
from remoting.protocol.bodies.group import DelayOffsetSerializeWrapper
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from tests.interop.apache import VERSIONS, apache
from tests.interop.carried import first_messages

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "late"
GROUP = "sent-back"
RETRIES = f"%RETRY%{GROUP}"
LEVELS = "1s 15s"
SAME = {"brokerName": "broker-a", "messageDelayLevel": LEVELS}
THEIRS = [f"messageDelayLevel={LEVELS}", "flushDelayOffsetInterval=500"]
OURS = {**SAME, "flushDelayOffsetInterval": "200", "flushDiskType": "SYNC_FLUSH"}
AT_ONCE = 5
"""Number of messages of the first level."""


def leave_some_waiting(nameserver: str, broker: str, store: Path) -> None:
    """Wait until the messages of the first level are delivered, while some of the second wait."""
    asyncio.run(send_and_send_back(nameserver, broker))
    deadline = time.monotonic() + 14
    while written_down(store).get(1) != AT_ONCE and time.monotonic() < deadline:
        time.sleep(0.1)
    assert written_down(store) in ({1: AT_ONCE}, {1: AT_ONCE, 2: 0})


async def send_and_send_back(nameserver: str, broker: str) -> None:
    async with client.Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, queues=1)
        await admin.create_group(GROUP)
    async with client.Producer(nameserver) as producer:
        for number in range(10):
            body = b"message %d" % number
            await producer.send(TOPIC, body, tag="a", keys=["k"], delay_level=1 + number % 2)
    first = await first_messages(nameserver, TOPIC, AT_ONCE)
    assert [message.body for message in first] == [b"message %d" % n for n in range(0, 10, 2)]
    await send_back(broker, first[0].offset_id)


def written_down(store: Path) -> dict[int, int]:
    """How far the levels are by the file that both brokers read; it changes hands as a whole."""
    file = store / "config" / "delayOffset.json"
    text = file.read_bytes() if file.exists() else b""
    return bodies.decode(DelayOffsetSerializeWrapper, text).offset_table if text else {}


async def send_back(broker: str, offset_id: str) -> None:
    pool = ConnectionPool()
    try:
        connection: Connection = await pool.get(broker)
        header = ConsumerSendMsgBackRequestHeader(
            offset=int(offset_id[16:], 16), group=GROUP, delay_level=2, origin_topic=TOPIC
        )
        request = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
        answer = await connection.request(request, timeout=30)
    finally:
        await pool.close()
    assert answer.code == 0, answer.remark


async def check_what_came(nameserver: str) -> None:
    """Check that each message came once, and the one sent back under its group."""
    messages = await first_messages(nameserver, TOPIC, 10)
    assert [message.body for message in messages] == [
        b"message %d" % n for n in (*range(0, 10, 2), *range(1, 10, 2))
    ]
    assert all((message.tag, message.keys) == ("a", ["k"]) for message in messages)
    (back,) = await first_messages(nameserver, RETRIES, 1)
    assert (back.body, back.retries) == (b"message 0", 1)
    assert back.properties["RETRY_TOPIC"] == TOPIC


# test_store_to_apache has the other combinations.
@pytest.mark.parametrize(("end", "version"), [("stopped", "4.9.7"), ("killed", "5.3.3")])
def test_apache_delivers_the_delayed_messages_of_our_store(
    end: str, version: str, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    with testing.broker(store=store, settings=OURS) as ours:
        leave_some_waiting(ours.nameserver, ours.broker, store)
        if end == "killed":
            ours.kill()
    home = tmp_path / "apache"
    home.mkdir()
    places = [f"storePathRootDir={store}", f"storePathCommitLog={store}/commitlog"]

    with apache(version, home, settings=[*THEIRS, *places]) as theirs:
        asyncio.run(check_what_came(theirs.nameserver))


@pytest.mark.parametrize("version", VERSIONS)
def test_our_broker_delivers_the_delayed_messages_of_apaches_store(
    version: str, tmp_path: Path
) -> None:
    home = tmp_path / "apache"
    home.mkdir()
    with apache(version, home, settings=THEIRS) as theirs:
        leave_some_waiting(theirs.nameserver, theirs.broker, home / "store")

    with testing.broker(store=home / "store", settings=SAME) as ours:
        asyncio.run(check_what_came(ours.nameserver))
