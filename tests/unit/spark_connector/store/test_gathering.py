"""Records are collected from any positions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.storetools.view import StoreView, ViewedRun
from remoting.protocol.disk.files import ENTRY
from remoting.protocol.message.view import RecordView
from spark_connector.store.gathering import Gatherer, QueueEntries, entries_of, merged
from tests.unit.spark_connector.store.directories import made_store, places

COUNT = 250


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_store(tmp_path_factory.mktemp("gathering") / "store", COUNT)


@pytest.fixture(scope="module")
def positions(root: Path) -> list[int]:
    return places(root)


def entries_at(view: StoreView, positions: list[int]) -> QueueEntries:
    packed = b""
    for position in positions:
        record = view.log.record_at(position)
        assert record is not None
        packed += ENTRY.pack(position, record.size, 7)
    return entries_of(ViewedRun(3, memoryview(packed)), 0)


def test_entries_become_columns(root: Path, positions: list[int]) -> None:
    entries = entries_at(StoreView(root), positions[:3])
    assert entries["offset"].tolist() == [3, 4, 5]
    assert entries["position"].tolist() == positions[:3]
    assert entries["tags_code"].tolist() == [7, 7, 7]
    assert entries[np.array([True, False, True])]["offset"].tolist() == [3, 5]


def test_entries_of_several_queues_come_in_the_order_of_the_log() -> None:
    runs = [
        ViewedRun(5, memoryview(ENTRY.pack(300, 100, 0) + ENTRY.pack(500, 100, 0))),
        ViewedRun(7, memoryview(ENTRY.pack(100, 100, 0) + ENTRY.pack(400, 100, 0))),
    ]
    whole = merged([entries_of(run, number) for number, run in enumerate(runs)])
    assert whole["position"].tolist() == [100, 300, 400, 500]
    assert whole["queue"].tolist() == [1, 0, 1, 0]
    assert whole["offset"].tolist() == [7, 5, 8, 6]
    alone = merged([entries_of(run, 0) for run in runs])
    assert alone["position"].tolist() == [300, 500, 100, 400]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), gap=st.sampled_from([0, 300, 4096]), most=st.sampled_from([1, 700, 9000]))
def test_requested_records_come_in_order(
    root: Path, positions: list[int], data: st.DataObject, gap: int, most: int
) -> None:
    chosen = data.draw(st.lists(st.sampled_from(positions), max_size=60))
    if data.draw(st.booleans()):
        chosen.sort()
    view = StoreView(root)
    found = []
    gatherer = Gatherer(view.log, max_gap_bytes=gap, gather_bytes=most)
    for gathered in gatherer.gather(entries_at(view, chosen)):
        assert len(gathered.starts) == len(gathered.entries)
        for start in gathered.starts.tolist():
            record = RecordView(gathered.buffer, start)
            assert record.check_crc()
            assert view.log.file_name(record.physical_offset) == gathered.file
            found.append(record.physical_offset)
    assert found == chosen


def test_nearby_records_are_read_together(root: Path, positions: list[int]) -> None:
    view = StoreView(root)
    reads = []
    read_into = view.log.read_into

    def counted(position: int, target: memoryview) -> None:
        reads.append(len(target))
        read_into(position, target)

    view.log.read_into = counted  # type: ignore[method-assign]  # to see it
    first = [position for position in positions if position < 8000]
    entries = entries_at(StoreView(root), first[::3])
    assert len(list(Gatherer(view.log).gather(entries))) == 1
    assert len(reads) == 1
