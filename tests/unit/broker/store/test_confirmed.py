"""A store in controller mode: visible is what is confirmed, and a log can be cut."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.replication.epochs import EpochList
from broker.store.engine import MessageStore
from broker.store.results import Ack
from broker.storetools.verify.check import CheckOptions, check
from tests.unit.broker.store.crashes import crash
from tests.unit.broker.store.stores import LOG_FILE, bodies, message, opened, small_config

FLUSHES = pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])


class Slaves:
    """Slaves that have the log up to ``has``."""

    def __init__(self) -> None:
        self.has = 0

    @property
    def replicated(self) -> int:
        return self.has

    def available(self, end_offset: int) -> bool:
        return True

    def confirmed(self, end: int) -> int:
        return min(end, self.has)


def group_store(root: Path, flush: str) -> MessageStore:
    """Return an open store whose log has epochs."""
    root.mkdir(parents=True)
    (root / "epochFileCheckpoint").write_text(EpochList([(1, 0)]).encode())
    return opened(root, controlled=True, flush_disk_type=flush, waits_for_slave=True)


def filled(store: MessageStore, count: int) -> list[int]:
    """Store messages of two queues; return where each ends."""
    return [
        store.put(message(b"%d" % number, queue_id=number % 2)).end_offset
        for number in range(count)
    ]


def seen(store: MessageStore) -> list[bytes]:
    """Return the messages that consumers see."""
    return sorted(bodies(store) + bodies(store, queue_id=1))


@FLUSHES
async def test_a_message_is_seen_and_acknowledged_when_the_replicas_have_it(
    tmp_path: Path, flush: str
) -> None:
    store, slaves = group_store(tmp_path / "store", flush), Slaves()
    store.syncer.wait_for(slaves)
    store.start(asyncio.get_running_loop())
    ends = filled(store, 3)
    acks: list[Ack] = []
    done = asyncio.Event()
    store.when_durable(ends[1], lambda ack: (acks.append(ack), done.set()))
    await asyncio.sleep(0.05)
    assert seen(store) == []
    assert not acks
    slaves.has = ends[1]
    while not done.is_set():
        store.syncer.replicated()
        await asyncio.sleep(0.01)
    assert acks == [Ack.OK]
    assert seen(store) == [b"0", b"1"]
    store.when_durable(ends[2], acks.append)
    store.syncer.fail_waiting()
    assert acks == [Ack.OK, Ack.FLUSH_DISK_TIMEOUT]
    store.close()


@FLUSHES
@pytest.mark.parametrize("how", ["clean", "crash"])
def test_after_a_restart_no_more_is_seen_than_was_confirmed(
    tmp_path: Path, flush: str, how: str
) -> None:
    store = group_store(tmp_path / "store", flush)
    ends = filled(store, 5)
    store.flush()
    store.syncer.confirm(ends[2])
    store.syncer.queues.write_times()
    if how == "clean":
        store.close()
        again = MessageStore(store.config)
    else:
        again = crash(store, controlled=True, flush_disk_type=flush)
    again.open()
    assert seen(again) == [b"0", b"1", b"2"]
    assert again.put(message(b"5", queue_id=1)).queue_offset == 2
    again.flush()
    again.syncer.confirm(2 * ends[-1])
    assert seen(again) == [b"%d" % number for number in range(6)]
    again.close()
    store.close()


def test_a_store_that_was_never_in_a_group_is_confirmed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    filled(store, 4)
    store.close()
    member = opened(tmp_path, controlled=True)
    assert seen(member) == [b"0", b"1", b"2", b"3"]
    assert member.syncer.confirmed == member.log.end
    member.close()


@FLUSHES
@pytest.mark.parametrize("how", ["clean", "crash"])
def test_a_log_that_is_cut_ends_there_with_its_queues(tmp_path: Path, flush: str, how: str) -> None:
    store = group_store(tmp_path / "store", flush)
    ends = filled(store, 400)
    assert store.log.end > 2 * LOG_FILE
    store.flush()
    if how == "clean":
        store.close()
        again = MessageStore(store.config)
    else:
        again = crash(store, controlled=True, flush_disk_type=flush)
    again.open(cut=ends[20])
    again.syncer.confirm(ends[20])
    assert again.log.end == ends[20]
    assert len(seen(again)) == 21
    assert len(again.log.files) == 1
    assert again.put(message(b"new", queue_id=1)).queue_offset == 10
    again.flush()
    again.syncer.confirm(2 * ends[20])
    again.close()
    store.close()
    assert check(again.paths.root, CheckOptions()).findings.is_sound
    assert MessageStore(small_config(again.paths.root)).open().end_offset > ends[20]
