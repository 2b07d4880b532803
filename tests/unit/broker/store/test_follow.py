"""A slave's store holds the master's bytes at the master's offsets, however they arrive."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from broker.store.config import StoreConfig
from broker.store.engine import MessageStore
from broker.store.follow import LogDiffers
from broker.store.results import PutStatus, StoreError
from remoting.protocol.message.record import blank
from tests.support.archives import unpack as unpack_archive
from tests.support.sizes import size
from tests.unit.broker.store.simulated_disk import ROOT, PowerCut, SimulatedDisk
from tests.unit.broker.store.stores import (
    LOG_FILE,
    FailingFiles,
    bodies,
    message,
    opened,
    read_all,
    small_config,
)
from tests.unit.broker.store.workload import QUEUES, Day

SEEDS = size(test=24, ci=150, soak=5_000)


def log_of(store: MessageStore) -> bytes:
    """Return the bytes of a store's log, from its first file on."""
    log = store.log
    return b"".join(bytes(file.view) for file in log.files)[: log.end - log.start]


def queues_of(store: MessageStore) -> dict[tuple[str, int], list[tuple[int, int, int] | None]]:
    """Return the entries of all queues that have messages."""
    return {
        queue.key: [queue.stored(n) for n in range(queue.min_offset, queue.max_offset)]
        for queue in store.queues.all()
        if queue.max_offset
    }


def follow(slave: MessageStore, master: bytes, random: Random, *, start: int = 0) -> None:
    """Let a slave append what it lacks of a master's log, in pieces of any length."""
    follower = slave.follower
    if slave.log.end == 0 and start:
        follower.begin(start)
    pending = b""
    at = slave.log.end - start
    while at < len(master):
        piece = master[at : at + random.choice([1, 7, 100, 3000, 40_000])]
        at += len(piece)
        pending += piece
        while taken := follower.append(pending, start + len(master)):
            pending = pending[taken:]
    assert not pending


def slave_of(master: MessageStore, root: Path) -> MessageStore:
    config = master.config
    slave = MessageStore(
        StoreConfig(
            root=root,
            mapped_file_size_commit_log=config.mapped_file_size_commit_log,
            mapped_file_size_consume_queue=config.mapped_file_size_consume_queue,
            delay_levels_ms=config.delay_levels_ms,
        )
    )
    slave.open()
    return slave


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[MessageStore, MessageStore]]:
    """An empty master and an empty slave."""
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    yield master, slave
    master.close()
    slave.close()


@pytest.mark.parametrize("name", ["clean", "crash", "clean-5.3.3"])
def test_a_copy_of_apaches_store_has_its_log_and_queues(
    golden: Path, tmp_path: Path, name: str
) -> None:
    unpack_archive(golden / "store" / f"{name}.tar.gz", tmp_path)
    config = StoreConfig(
        root=tmp_path / "store",
        mapped_file_size_commit_log=65536,
        mapped_file_size_consume_queue=2000,
    )
    master = MessageStore(config)
    master.open()
    slave = slave_of(master, tmp_path / "slave")
    follow(slave, log_of(master), Random(name), start=master.log.start)
    assert log_of(slave) == log_of(master)
    assert queues_of(slave) == queues_of(master)
    slave.close()
    for file in sorted(master.paths.commit_log.iterdir()):
        assert (slave.paths.commit_log / file.name).read_bytes() == file.read_bytes()
    master.close()


def test_messages_are_visible_once_their_record_is_whole(
    pair: tuple[MessageStore, MessageStore],
) -> None:
    master, slave = pair
    arrived: list[tuple[str, int, int]] = []
    slave.dispatcher.on_arrival = lambda topic, queue_id, number, _: arrived.append(
        (topic, queue_id, number)
    )
    for number in range(3):
        master.put(message(b"%d" % number))
    log = log_of(master)
    third = len(log) // 3
    assert slave.follower.append(log[: third - 1]) == 0
    assert slave.follower.append(log[: 2 * third + 5]) == 2 * third
    assert bodies(slave) == [b"0", b"1"]
    assert arrived == [("TopicTest", 0, 2)]


def test_a_slave_that_becomes_a_master_goes_on_where_the_log_ends(
    pair: tuple[MessageStore, MessageStore],
) -> None:
    master, slave = pair
    for number in range(5):
        master.put(message(b"%d" % number))
    follow(slave, log_of(master), Random(1))
    result = slave.put(message(b"5"))
    assert result.status is PutStatus.OK
    assert result.queue_offset == 5
    assert bodies(slave) == [b"%d" % number for number in range(6)]


def test_a_topic_that_the_master_deleted_and_created_again_begins_anew(
    pair: tuple[MessageStore, MessageStore],
) -> None:
    master, slave = pair
    for number in range(3):
        master.put(message(b"old%d" % number))
        master.put(message(b"other", topic="Other"))
    master.delete_topic("TopicTest")
    for number in range(2):
        master.put(message(b"new%d" % number))
        master.put(message(b"other", topic="Other"))
    follow(slave, log_of(master), Random(2))
    assert bodies(slave) == [b"new0", b"new1"]
    assert len(bodies(slave, "Other")) == 5
    assert slave.deleted.ends["TopicTest"] > 0
    assert log_of(slave) == log_of(master)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_messages_of_a_new_topic_stay_when_a_queue_of_the_old_one_begins_again_later(
    tmp_path: Path, flush: str
) -> None:
    master = opened(tmp_path / "master")
    slave = opened(tmp_path / "slave", flush_disk_type=flush)
    for queue_id in (0, 1, 0, 0, 1):
        master.put(message(b"old", queue_id=queue_id))
    master.delete_topic("TopicTest")
    delayed = master.put(message(b"delayed", topic="SCHEDULE_TOPIC_XXXX"))
    for queue_id in (2, 2, 3):
        master.put(message(b"new", queue_id=queue_id))
    assert delayed.physical_offset is not None
    follow(slave, log_of(master), Random(5))
    assert slave.deleted.ends == {}
    for queue_id in (0, 3):
        master.put(message(b"new", queue_id=queue_id))
    follow(slave, log_of(master), Random(6))
    slave.flush()
    assert [bodies(slave, queue_id=n) for n in range(4)] == [
        *([b"new"], []),
        *([b"new"] * 2, [b"new"] * 2),
    ]
    assert not slave.deleted.is_void("TopicTest", delayed.physical_offset)
    slave.close()
    slave.open()
    assert [len(bodies(slave, queue_id=n)) for n in range(4)] == [1, 0, 2, 2]
    slave.close()
    master.close()


def test_a_slave_may_begin_where_the_masters_log_begins(tmp_path: Path) -> None:
    master = opened(tmp_path / "master")
    for number in range(120):
        master.put(message(b"%03d" % number * 100))
    dropped = master.log.drop_before(2 * LOG_FILE)
    assert len(dropped) == 2
    slave = opened(tmp_path / "slave")
    follow(slave, log_of(master), Random(3), start=master.log.start)
    assert log_of(slave) == log_of(master)
    kept = read_all(slave)
    assert kept[0].physical_offset == master.log.start
    assert [record.body for record in kept] == [b"%03d" % n * 100 for n in range(120)][-len(kept) :]
    assert slave.queries.min_offset("TopicTest", 0) == kept[0].queue_offset
    master.close()
    slave.close()


@pytest.mark.parametrize(
    ("at", "damage"),
    [
        (None, b"B"),  # of the body
        (0, b"\x7f"),  # the size: no file has so much
        (2, b"\xff"),  # the size: one that may be right
        (4, bytes(1)),  # the magic
        (0, bytes(512)),  # two records
    ],
)
def test_a_damaged_record_of_the_master_is_copied_without_an_entry(
    tmp_path: Path, at: int | None, damage: bytes
) -> None:
    master, slave = opened(tmp_path / "master"), opened(tmp_path / "slave")
    puts = [master.put(message(b"body %04d" % number + b"." * 200)) for number in range(300)]
    log = bytearray(log_of(master))
    begin = log.index(b"body 0001") if at is None else (puts[1].physical_offset or 0) + at
    log[begin : begin + len(damage)] = damage
    follow(slave, bytes(log), Random(4))
    assert log_of(slave) == log
    lost = 2 if len(damage) > 1 else 1
    rest = [b"body %04d" % number for number in (0, *range(1 + lost, 300))]
    assert [body[:9] for body in bodies(slave)] == rest
    slave.close()
    slave.open()
    assert [body[:9] for body in bodies(slave)] == rest
    slave.close()
    master.close()


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        (bytes(200), "has no record at offset 0"),
        (b"\x7f\xff\xff\xff" + bytes(196), "has no record at offset 0"),
        (b"\x00\x00\x00\xc8\xda\xa3\x20\xa7" + b"\xff" * 192, "has no record at offset 0"),
        (blank(LOG_FILE), None),
        (blank(LOG_FILE // 2), "mappedFileSizeCommitLog"),
    ],
)
def test_what_is_no_record_is_refused_and_changes_nothing(
    tmp_path: Path, changed: bytes, reason: str | None
) -> None:
    slave = opened(tmp_path / "slave")
    if reason is None:
        assert slave.follower.append(changed) == 0
    else:
        with pytest.raises(LogDiffers, match=reason):
            slave.follower.append(changed)
    assert slave.log.end == 0
    slave.close()


def test_a_master_with_longer_files_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    master = opened(tmp_path / "master", mapped_file_size_commit_log=2 * LOG_FILE)
    slave = opened(tmp_path / "slave")
    while master.log.end < LOG_FILE + 2000:
        master.put(message(b"x" * 1000))
    log = log_of(master)
    with pytest.raises(LogDiffers, match="use the master's mappedFileSizeCommitLog"):
        follow(slave, log, Random(5))
    assert log_of(slave) == log[: slave.log.end]
    with pytest.raises(LogDiffers, match="use the master's mappedFileSizeCommitLog"):
        opened(tmp_path / "other").follower.begin(LOG_FILE // 2)
    master.close()
    slave.close()


def test_a_full_disk_stops_the_slave_until_there_is_space(tmp_path: Path) -> None:
    master = opened(tmp_path / "master")
    files = FailingFiles()
    slave = opened(tmp_path / "slave", files=files)
    for number in range(40):
        master.put(message(b"%02d" % number * 500))
    files.full = True
    with pytest.raises(StoreError, match="no space left"):
        follow(slave, log_of(master), Random(6))
    files.full = False
    follow(slave, log_of(master), Random(6))
    assert bodies(slave) == bodies(master)
    assert log_of(slave) == log_of(master)
    master.close()
    slave.close()


def live(seed: int) -> None:
    """Let a master work, and its slave follow through several power cuts of the slave."""
    random = Random(seed)
    day = Day(SimulatedDisk(Random(seed)), sync=False)
    day.open()
    disk = SimulatedDisk(Random(seed + 1))
    sync = random.random() < 0.5
    kind = "SYNC_FLUSH" if sync else "ASYNC_FLUSH"
    safe = 0
    for _ in range(4):
        for _ in range(40):
            day.act()
        disk.kept = random.choice([0.0, 0.1, 0.9, 1.0])
        disk.cut_at = disk.steps + random.randrange(1, 150)
        with contextlib.suppress(PowerCut):
            slave = MessageStore(small_config(ROOT, flush_disk_type=kind), files=disk)
            slave.open()
            assert slave.log.end >= safe, "the slave lost what it had acknowledged"
            log = log_of(day.store)
            assert log_of(slave) == log[: slave.log.end]
            for part in range(1, 4):
                follow(slave, log[: slave.log.end + len(log) // part], random)
                if slave.syncer.sync_log():
                    safe = max(safe, slave.syncer.log.flushed)
                if random.random() < 0.5:
                    slave.syncer.sync_queues()
        disk = disk.crashed or disk.cut()
    disk.cut_at = None
    slave = MessageStore(small_config(ROOT, flush_disk_type=kind), files=disk)
    slave.open()
    follow(slave, log_of(day.store), random)
    slave.flush()
    assert log_of(slave) == log_of(day.store)
    for queue in QUEUES:
        assert bodies(slave, *queue) == bodies(day.store, *queue)


@pytest.mark.parametrize("chunk", range(6))
def test_a_slave_follows_through_power_cuts(chunk: int) -> None:
    given = os.environ.get("POCKETMQ_CRASH_SEED")
    for seed in [int(given)] if given else range(chunk, SEEDS, 6):
        try:
            live(seed)
        except BaseException:
            print(f"POCKETMQ_CRASH_SEED={seed}")  # noqa: T201 - to replay it
            raise
