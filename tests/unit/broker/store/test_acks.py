"""When a message may be acknowledged: what waits for the disk, for a slave, or for both."""

from __future__ import annotations

import asyncio
import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.store.results import Ack, StoreStats
from broker.store.sync import AckGate
from tests.support.virtual_time import virtual
from tests.unit.broker.store.stores import message, opened, small_config


class Slaves:
    """What a master knows of its slaves."""

    def __init__(self, *, connected: bool = True) -> None:
        self.replicated = 0
        self.connected = connected

    def available(self, end_offset: int) -> bool:
        return self.connected


def gate(root: Path, *, disk: bool, slave: bool) -> AckGate:
    config = small_config(
        root,
        flush_disk_type="SYNC_FLUSH" if disk else "ASYNC_FLUSH",
        waits_for_slave=slave,
        sync_flush_timeout_ms=5000,
        slave_timeout_ms=3000,
    )
    return AckGate(asyncio.get_running_loop(), config, StoreStats())


@pytest.mark.parametrize(("disk", "slave"), [(True, False), (False, True), (True, True)])
def test_a_message_is_acknowledged_when_all_that_it_needs_has_it(
    tmp_path: Path, disk: bool, slave: bool
) -> None:
    @virtual
    async def run() -> None:
        waiting, acks = gate(tmp_path, disk=disk, slave=slave), list[Ack]()
        waiting.add(10, acks.append)
        waiting.reached(10 if disk else math.inf, 9 if slave else math.inf)
        assert acks == ([] if slave else [Ack.OK])
        waiting.reached(9 if disk else math.inf, 10 if slave else math.inf)
        assert acks == ([] if disk and slave else [Ack.OK])
        waiting.reached(10 if disk else math.inf, 10 if slave else math.inf)
        assert acks == [Ack.OK]

    run()


@pytest.mark.parametrize(
    ("flushed", "replicated", "ack", "after"),
    [
        (0, 10, Ack.FLUSH_DISK_TIMEOUT, 5.0),
        (10, 0, Ack.FLUSH_SLAVE_TIMEOUT, 3.0),
        (0, 0, Ack.FLUSH_SLAVE_TIMEOUT, 3.0),
    ],
)
def test_each_wait_has_its_own_timeout(
    tmp_path: Path, flushed: int, replicated: int, ack: Ack, after: float
) -> None:
    @virtual
    async def run() -> None:
        loop = asyncio.get_running_loop()
        waiting, begun = gate(tmp_path, disk=True, slave=True), loop.time()
        done: asyncio.Future[Ack] = loop.create_future()
        waiting.add(10, done.set_result)
        waiting.reached(flushed, replicated)
        assert await done is ack
        assert loop.time() - begun == pytest.approx(after)
        assert len(waiting) == 0

    run()


@given(
    ends=st.lists(st.integers(1, 50), min_size=1, max_size=8, unique=True).map(sorted),
    steps=st.lists(st.tuples(st.floats(0, 4), st.integers(0, 50), st.integers(0, 50)), max_size=8),
)
def test_every_caller_gets_exactly_one_answer_and_ok_only_for_what_is_safe(
    tmp_path_factory: pytest.TempPathFactory,
    ends: list[int],
    steps: list[tuple[float, int, int]],
) -> None:
    @virtual
    async def run() -> None:
        waiting = gate(Path(), disk=True, slave=True)
        answers: list[tuple[int, Ack, int, int]] = []
        flushed = replicated = 0
        for end in ends:
            waiting.add(end, lambda ack, end=end: answers.append((end, ack, flushed, replicated)))
        for pause, more_flushed, more_replicated in steps:
            await asyncio.sleep(pause)
            flushed, replicated = max(flushed, more_flushed), max(replicated, more_replicated)
            waiting.reached(flushed, replicated)
        await asyncio.sleep(10)
        assert sorted(end for end, *_ in answers) == ends
        for end, ack, at_flushed, at_replicated in answers:
            if ack is Ack.OK:
                assert end <= min(at_flushed, at_replicated)
            elif ack is Ack.FLUSH_SLAVE_TIMEOUT:
                assert end > at_replicated
            else:
                assert end > at_flushed

    run()


async def test_a_sync_master_waits_for_a_slave_that_is_connected(tmp_path: Path) -> None:
    store = opened(tmp_path, waits_for_slave=True, slave_timeout_ms=60_000)
    store.start(asyncio.get_running_loop())
    acks: list[Ack] = []
    store.when_durable(store.put(message()).end_offset, acks.append)
    assert acks == [Ack.SLAVE_NOT_AVAILABLE]

    slaves = Slaves()
    store.syncer.wait_for(slaves)
    ends = [store.put(message()).end_offset for _ in range(3)]
    acks.clear()
    for end in ends:
        store.when_durable(end, acks.append)
    assert acks == []
    for number, (end, after) in enumerate(pairwise([*ends, ends[-1] + 100]), 1):
        slaves.replicated = after - 1 if number < 3 else end
        store.syncer.replicated()
        assert acks == [Ack.OK] * number

    slaves.connected = False
    store.when_durable(store.put(message()).end_offset, acks.append)
    assert acks[-1] is Ack.SLAVE_NOT_AVAILABLE
    store.close()


async def test_messages_of_a_sync_master_are_visible_before_a_slave_has_them(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path, waits_for_slave=True)
    store.start(asyncio.get_running_loop())
    store.put(message())
    assert store.queries.max_offset("TopicTest", 0) == 1
    store.close()
