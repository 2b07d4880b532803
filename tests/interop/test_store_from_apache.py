"""Ours takes over a store that Apache's broker filled for the Java client, stopped or killed.

In addition to the contents of ``test_store_to_apache``, the store has transactions: committed,
rolled back and unfinished ones. Our broker leaves their half messages unchanged, and Apache's
broker checks them when it opens the store again. Our broker runs an hour later, so that delayed
messages are due.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

import client
from broker.app import Broker
from broker.config import BrokerConfig
from nameserver.app import NameServer
from nameserver.config import NameServerConfig
from pocketmq import testing
from remoting.runtime.clock import SystemClock
from tests.interop import carried
from tests.interop.apache import Apache, JavaClient, apache
from tests.interop.carried import Fact, body_sha256
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

KINDS, WORK, DEALS, LATE = "kinds", "work", "deals", "late"
GROUP, DEALERS = "workers", "dealers"
RETRIES, DEAD = f"%RETRY%{GROUP}", f"%DLQ%{GROUP}"
TOPICS = (KINDS, WORK, DEALS, LATE, RETRIES, DEAD)
HALF, ENDED = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
LEVELS = "1s 3s 1h"
THERE = [
    f"messageDelayLevel={LEVELS}",
    "flushConsumerOffsetInterval=200",
    "flushDelayOffsetInterval=200",
]
ASKING = ["transactionTimeOut=100", "transactionCheckInterval=500"]
AT_ONCE, LATER = 1, 3
"""Delayed messages that Apache's broker delivers, and ones that still wait when it stops."""


class HourAhead(SystemClock):
    """A clock that is an hour ahead."""

    def now_ms(self) -> int:
        """Return the time in an hour, in milliseconds since the epoch."""
        return super().now_ms() + 3_600_000


@dataclass
class Left:
    """The contents of the store that Apache's broker left.

    Attributes:
        facts: what the Java client read there in the end.
        killed: the store as a kill of the broker leaves it.
        stopped: the store itself, once ``process`` has ended.
    """

    version: str
    facts: set[Fact]
    killed: Path
    stopped: Path
    process: subprocess.Popen[bytes]


@pytest.fixture(scope="module", params=["4.9.7", "5.3.3"])
def left(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Left]:
    home: Path = tmp_path_factory.mktemp("apache")
    with apache(request.param, home, settings=THERE) as theirs:
        facts = filled(JavaClient(request.param, "JSON", home), theirs, home / "store")
        theirs.process.send_signal(signal.SIGSTOP)
        killed = copied(home / "store", home / "killed")
        theirs.process.send_signal(signal.SIGCONT)
        theirs.process.terminate()
        yield Left(request.param, facts, killed, home / "store", theirs.process)


def copied(store: Path, home: Path) -> Path:
    """Copy a store into a directory. Of the 420 MB of its index next to nothing is on the disk."""
    home.mkdir(exist_ok=True)
    subprocess.run(["cp", "-a", "--sparse=always", store, home / "store"], check=True)
    return home / "store"


def filled(java: JavaClient, theirs: Apache, store: Path) -> set[Fact]:
    """Run the Java client's part, and wait until the broker has saved its periodic files."""
    asyncio.run(create(theirs.nameserver))
    lines = java.run(
        theirs.nameserver,
        *("late", LATE, "1", str(AT_ONCE), "/", "write", KINDS, "/", "deal", DEALS, DEALERS),
        *("/", "work", WORK, GROUP, "/", "await", LATE, str(AT_ONCE)),
        *("/", "late", LATE, "3", str(LATER), "/", "read", *TOPICS),
        program="Stores",
    )
    wait_until(lambda: carried.delivered(store).items() >= {1: AT_ONCE + 1, 2: 1}.items(), "1")
    wait_until(lambda: committed_work(store) == 6, "offsets aren't written")
    return carried.said_by_java(lines)


async def create(nameserver: str) -> None:
    async with client.Admin(nameserver) as admin:
        for topic in (KINDS, WORK, DEALS, LATE):
            await admin.create_topic(topic, queues=4 if topic == KINDS else 2)
        await admin.create_group(GROUP)
        # The Java client would refresh the route only 20 seconds after the topic's creation.
        await admin.create_topic(RETRIES, queues=1)
        # Apache's brokers forget first commits that come at the same time, as the Java client's do.
        await admin.commit(GROUP, dict.fromkeys(await admin.queues(WORK), 0))


def committed_work(store: Path) -> int:
    return sum(carried.committed(store).get(f"{WORK}@{GROUP}", {}).values())


@pytest.mark.parametrize("end", ["killed", "stopped"])
def test_our_broker_continues_with_apaches_store(left: Left, end: str, tmp_path: Path) -> None:
    if end == "killed":
        store = copied(left.killed, tmp_path)
    else:
        left.process.wait(60)
        store = left.stopped
    assert (store / "abort").exists() is (end == "killed")
    halves = carried.raw(store, HALF, ENDED)
    assert len(halves) >= 6
    places = {queue: at for queue, at in carried.committed(store).items() if "CID_RMQ" in queue}

    assert len(carried.raw(store, LATE)) == AT_ONCE
    here = asyncio.run(opened_by_ours(store, left.facts))
    assert carried.raw(store, HALF, ENDED) == halves
    assert carried.committed(store).items() >= places.items()

    if (left.version, end) == ("4.9.7", "killed"):
        check_there(left.version, store, tmp_path, here)


def test_our_broker_asks_about_the_transactions_of_apaches_store(
    left: Left, tmp_path: Path
) -> None:
    store = copied(left.killed, tmp_path)
    settings = {
        "brokerName": "broker-a",
        "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
        "transactionTimeOut": "300",
        "transactionCheckInterval": "300",
        # A Java producer starts slowly.
        "transactionCheckMax": "1000",
        "diskSpaceCleanForciblyRatio": "100",
        "diskSpaceWarningLevelRatio": "100",
        "messageDelayLevel": LEVELS,
    }
    with testing.broker(store=store, settings=settings) as ours:
        lines = JavaClient(left.version, "JSON", tmp_path).run(
            ours.nameserver,
            *("settle", DEALERS, "/", "await", DEALS, "4", "/", "read", DEALS),
            program="Stores",
        )
    assert {fields[1] for fields in lines if fields[0] == "asked"} == {"UNKNOW 0", "UNKNOW 1"}
    committed = [fact.body_sha256 for fact in carried.said_by_java(lines)]
    assert sorted(committed) == body_sha256(
        *(b"%s %d" % (state, n) for state in (b"COMMIT_MESSAGE", b"UNKNOW") for n in range(2))
    )


async def opened_by_ours(store: Path, facts: set[Fact]) -> set[Fact]:
    """Run our broker on a store during the checks; return what has to be readable at the end."""
    kv = store / "namesrv" / "kvConfig.json"
    async with NameServer(NameServerConfig(listen_port=0, kv_config_path=kv)) as nameserver:
        config = BrokerConfig(
            broker_name="broker-a",
            listen_port=0,
            namesrv_addr=(nameserver.address,),
            store_path_root_dir=store,
            mapped_file_size_commit_log=64 * 1024 * 1024,
            message_delay_level=LEVELS,
            disk_space_clean_forcibly_ratio=100,
            disk_space_warning_level_ratio=100,
            # The transactions stay for Apache's broker.
            transaction_check_interval_ms=24 * 3600 * 1000,
        )
        async with Broker(config, clock=HourAhead()):
            return await check_here(nameserver.address, facts)


async def check_here(nameserver: str, facts: set[Fact]) -> set[Fact]:
    """Check that all is unchanged, delayed messages come once and the group continues."""
    assert await consumed(nameserver) == sorted(
        [
            *((b"later work %d" % n, 0) for n in range(4)),
            *((b"work %d" % n, retries) for n, retries in ((1, 2), (3, 1), (4, 1))),
        ]
    )
    here = await carried.read(nameserver, *TOPICS)
    while carried.number(here, LATE) < AT_ONCE + LATER:
        await asyncio.sleep(0.1)
        here = await carried.read(nameserver, *TOPICS)
    assert facts <= here
    assert sorted(fact.body_sha256 for fact in carried.of(here, LATE)) == body_sha256(
        *(b"late %d %d" % (level, n) for level, count in ((1, 1), (3, 3)) for n in range(count))
    )
    deals = [fact.body_sha256 for fact in carried.of(here, DEALS)]
    assert sorted(deals) == body_sha256(b"COMMIT_MESSAGE 0", b"COMMIT_MESSAGE 1")
    (dead,) = carried.of(here, DEAD)
    assert (dead.body_sha256, dead.retries) == (body_sha256(b"work 2")[0], 1)
    return here | await sent(nameserver)


async def consumed(nameserver: str) -> list[tuple[bytes, int]]:
    """Return what the group gets: messages sent without members online, and its retries."""
    got: list[tuple[bytes, int]] = []
    enough = asyncio.Event()

    async def handle(message: client.ReceivedMessage[bytes]) -> None:
        got.append((message.body, message.retries))
        assert message.topic == WORK
        if len(got) == 7:
            enough.set()

    async with client.PushConsumer(
        nameserver, group=GROUP, subscribe={WORK: "*"}, handler=handle, start_from=client.FIRST
    ):
        await asyncio.wait_for(enough.wait(), carried.PATIENCE)
    async with client.Admin(nameserver) as admin:
        assert (await admin.lag(GROUP)).total == 0
    return sorted(got)


async def sent(nameserver: str) -> set[Fact]:
    """Send another message to each queue, with the next offset; return those found by key."""
    async with client.Admin(nameserver) as admin, client.Producer(nameserver) as producer:
        for queue, offsets in (await admin.topic_stats(KINDS)).items():
            receipt = await producer.send(client.Message(KINDS, b"here", queue=queue))
            assert receipt.offset == offsets.max_offset
        for key, count in (("key-3", 1), ("shared", 8), ("batch-4", 1), ("nothing", 0)):
            assert len(await admin.find_messages(KINDS, key)) == count
    facts = await carried.read(nameserver, KINDS)
    carried.assert_dense(facts)
    return facts


def check_there(version: str, store: Path, home: Path, here: set[Fact]) -> None:
    """Check that Apache's broker reads all again, and checks unfinished transactions."""
    places = [f"storePathRootDir={store}", f"storePathCommitLog={store}/commitlog"]
    with apache(version, home, settings=[*THERE, *ASKING, *places]) as theirs:
        lines = JavaClient(version, "JSON", home).run(
            theirs.nameserver,
            *("settle", DEALERS, "/", "await", DEALS, "4", "/", "read", *TOPICS),
            program="Stores",
        )
    there = carried.said_by_java(lines)
    assert here <= there
    assert len(there) == len(here) + 2
    asked = {fields[1] for fields in lines if fields[0] == "asked"}
    assert asked == {"UNKNOW 0", "UNKNOW 1"}
    committed = [fact.body_sha256 for fact in carried.of(there, DEALS)]
    assert sorted(committed) == body_sha256(
        *(b"%s %d" % (state, n) for state in (b"COMMIT_MESSAGE", b"UNKNOW") for n in range(2))
    )
    carried.assert_dense(there)
