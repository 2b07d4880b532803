"""Message trace: RocketMQ's tools read ours, ours read that of Java's and Go's clients."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import client
from pocketmq import testing
from tests.interop.apache import JavaClient, apache, mqadmin
from tests.interop.goclient import GoClient

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOPIC = "traced"
VERSIONS = ["4.9.7", "5.3.3"]
INDEXED_SECONDS = 60.0
"""Apache builds its index behind the sends, and creates its file of 420 MB for the first."""


@pytest.fixture(scope="module")
def ours() -> Iterator[str]:
    """A broker of ours with default settings."""
    with testing.broker() as server:
        asyncio.run(create(server.nameserver))
        yield server.nameserver


async def create(nameserver: str) -> None:
    async with client.Admin(nameserver) as admin:
        await admin.create_topic(TOPIC, queues=1)


async def records(nameserver: str, message_id: str, count: int) -> list[client.TraceRecord]:
    """Return the trace of a message, once the index has so many records."""
    found: list[client.TraceRecord] = []
    async with client.Admin(nameserver) as admin:
        with suppress(TimeoutError):
            async with asyncio.timeout(INDEXED_SECONDS):
                while len(found) < count:
                    with suppress(client.NotFound):
                        found = await admin.trace(message_id)
                    await asyncio.sleep(0.1)
    assert len(found) >= count, kinds(found)
    return found


def ids_of(process: subprocess.Popen[str]) -> dict[str, str]:
    """Return the ids that a program prints; it goes on, and sends its records meanwhile."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        if line == "done\n":
            return dict(line.rstrip().split("\t") for line in lines if "\t" in line)
        lines.append(line)
    raise AssertionError("".join(lines))


def kinds(found: list[client.TraceRecord]) -> list[tuple[str, str, bool]]:
    return [(record.kind, record.group, record.success) for record in found]


async def send_and_consume(nameserver: str) -> str:
    """Send a message and consume it at the second delivery, both traced. Returns its id.

    A transaction leaves the other kinds of records, in the same trace message.
    """
    trace = client.MessageTrace()
    delivered = []
    done = asyncio.Event()

    async def bill(message: client.ReceivedMessage[bytes]) -> None:
        if message.tag != "ours":
            return
        delivered.append(message.retries)
        if len(delivered) == 1:
            raise client.RetryLater(1)
        done.set()

    async with (
        client.PushConsumer(
            nameserver,
            group="billing",
            subscribe={TOPIC: "*"},
            handler=bill,
            start_from=client.FIRST,
            interceptors=[trace],
        ),
        client.Producer(
            nameserver,
            group="shop",
            transaction_checker=lambda _: client.TransactionState.UNKNOWN,
            interceptors=[trace],
        ) as producer,
    ):
        receipt = await producer.send(TOPIC, b"tea", tag="ours")
        async with producer.transaction(TOPIC, b"tea", tag="half") as transaction:
            pass
        await asyncio.wait_for(done.wait(), 60)
    assert trace.dropped == 0
    half, ended, *_ = await records(nameserver, transaction.id, 4)
    assert [half.message_type, ended.kind, ended.state] == [1, "EndTransaction", "COMMIT_MESSAGE"]
    return receipt.id


def printed(text: str) -> list[list[str]]:
    """Return kind, group, host and status of the lines of ``queryMsgTraceById``."""
    lines = [line.split() for line in text.splitlines() if line.startswith(("Pub", "Sub"))]
    return [[*words[:3], words[-1]] for words in lines]


READ_BY_APACHE = [
    ["Pub", "shop", "127.0.0.1", "success"],
    ["Sub", "billing", "127.0.0.1", "failed"],
    ["Sub", "billing", "127.0.0.1", "success"],
]
OUR_RECORDS = [
    ("Pub", "shop", True),
    ("SubBefore", "billing", True),
    ("SubAfter", "billing", False),
    ("SubBefore", "billing", True),
    ("SubAfter", "billing", True),
]


@pytest.fixture(scope="module")
def sent(ours: str) -> str:
    """The id of a message of ours that is sent, consumed and traced at our broker."""
    message_id = asyncio.run(send_and_consume(ours))
    assert kinds(asyncio.run(records(ours, message_id, 5))) == OUR_RECORDS
    return message_id


@pytest.mark.parametrize("version", VERSIONS)
def test_apaches_tool_reads_our_trace(version: str, ours: str, sent: str, tmp_path: Path) -> None:
    shown = mqadmin(version, tmp_path, ours, "queryMsgTraceById", "-i", sent)
    assert printed(shown) == READ_BY_APACHE


@pytest.mark.parametrize("version", VERSIONS)
def test_our_trace_at_apaches_broker(version: str, tmp_path: Path) -> None:
    with apache(version, tmp_path) as theirs:
        asyncio.run(create(theirs.nameserver))
        sent = asyncio.run(send_and_consume(theirs.nameserver))
        assert kinds(asyncio.run(records(theirs.nameserver, sent, 5))) == OUR_RECORDS
        shown = mqadmin(version, tmp_path, theirs.nameserver, "queryMsgTraceById", "-i", sent)
        assert printed(shown) == READ_BY_APACHE


@pytest.mark.parametrize("version", VERSIONS)
def test_the_trace_of_javas_clients_is_read(version: str, ours: str, tmp_path: Path) -> None:
    java = JavaClient(version, "JSON", tmp_path)
    with java.running(ours, TOPIC, program="Traces") as process:
        ids = ids_of(process)
        plain = asyncio.run(records(ours, ids["plain"], 3))
        half, ended, *consumed = asyncio.run(records(ours, ids["half"], 4))
        if version == "5.3.3":
            recalled = asyncio.run(records(ours, ids["recalled"], 2))
            assert kinds(recalled) == [("Pub", "java-shop", True), ("Recall", "java-shop", True)]
    handled = ("SubBefore", "java-billing", True)
    assert kinds(plain) == [
        *(("Pub", "java-shop", True), handled, ("SubAfter", "java-billing", False)),
    ]
    sent, before, after = plain
    assert (sent.topic, sent.tags, sent.keys, sent.body_bytes) == (TOPIC, "plain", "o-1 o-2", 3)
    assert (before.request_id, after.result) == (after.request_id, 4)
    assert (half.kind, half.message_type, half.keys) == ("Pub", 1, "")
    assert (ended.kind, ended.state, ended.from_check) == (
        *("EndTransaction", "COMMIT_MESSAGE", False),
    )
    assert kinds(consumed) == [handled, ("SubAfter", "java-billing", True)]


def test_the_trace_of_gos_client_is_read(ours: str) -> None:
    with GoClient().running("trace", ours, TOPIC) as process:
        found = asyncio.run(records(ours, ids_of(process)["plain"], 3))
    # Go's times of the send and of its consumption may be those of one moment.
    found.sort(key=lambda record: kinds([record]))
    assert kinds(found) == [
        ("Pub", "go-shop", True),
        ("SubAfter", "go-billing", True),
        ("SubBefore", "go-billing", True),
    ]
    sent, after, before = found
    assert (sent.topic, sent.tags, sent.keys, sent.body_bytes) == (TOPIC, "go", "o-1", 3)
    assert after.request_id == before.request_id
