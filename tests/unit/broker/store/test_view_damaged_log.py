"""Every complete record of a damaged or torn log is read, and the damage reported."""

from __future__ import annotations

import os
import shutil
from bisect import bisect_left
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.store.log_view import LogEnd
from broker.store.raw_files import ViewLimits
from broker.store.results import StoreError
from broker.storetools.view import StoreView
from remoting.protocol.disk.files import Checkpoint
from remoting.protocol.message.record import encode_record
from tests.unit.broker.store.stores import LOG_FILE, message, opened
from tests.unit.broker.store.views import (
    BODY,
    COUNT,
    copied,
    filled,
    found_by,
    numbers,
    overwrite,
    positions_of,
    unsynced,
)


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    """Four log files and four queue files that no store has open."""
    store = filled(tmp_path / "store")
    yield copied(store)
    store.close()


@pytest.mark.parametrize("at", [0, 4, 30], ids=["size", "magic", "place"])
def test_a_record_without_a_head_is_reported_and_skipped(root: Path, at: int) -> None:
    positions = positions_of(root)
    overwrite(root, positions[20] + at, b"\x7f\x7f\x7f\x7f")
    records, damage = found_by(StoreView(root))
    assert numbers(records) == [n for n in range(COUNT) if n != 20]
    assert [(found.begin, found.end) for found in damage] == [(positions[20], positions[21])]
    assert str(positions[20]) in damage[0].reason


@pytest.mark.parametrize("bit", [256, 2048, 8192])
def test_a_false_size_hides_no_other_record(root: Path, bit: int) -> None:
    positions = positions_of(root)
    size = positions[21] - positions[20]
    overwrite(root, positions[20], (size ^ bit).to_bytes(4, "big"))
    view = StoreView(root)
    records, damage = found_by(view)
    assert numbers(records) == [n for n in range(COUNT) if n != 20]
    assert [(found.begin, found.end) for found in damage] == [(positions[20], positions[21])]
    assert "don't add up to its" in damage[0].reason
    for position in (positions[20] + 1, positions[22], positions[23] - 1):
        assert view.log.first_start(position, positions[-1]) in positions


def test_a_changed_body_is_returned_and_fails_its_crc(root: Path) -> None:
    position = positions_of(root)[20]
    overwrite(root, position + 100, b"BODY")
    view = StoreView(root)
    records, damage = found_by(view)
    assert not damage
    assert [record.physical_offset for record in records if not record.check_crc()] == [position]
    assert view.log.record_at(position) is None


def test_a_page_of_zeros_costs_the_messages_on_it(root: Path) -> None:
    positions = positions_of(root)
    overwrite(root, 4096, bytes(4096))
    records, damage = found_by(StoreView(root))
    whole = [record for record in records if record.check_crc()]
    pairs = enumerate(pairwise(positions))
    hit = [n for n, (begin, end) in pairs if end > 4096 and begin < 8192]
    assert numbers(whole) == [n for n in range(COUNT) if n not in hit]
    assert damage[0].begin == positions[hit[0]]
    assert damage[0].end == positions[hit[-1] + 1]
    assert f"the record at {positions[hit[0]]} don't add up to its" in damage[0].reason


def test_a_file_that_is_missing_is_damage(root: Path) -> None:
    (root / "commitlog" / f"{LOG_FILE:020d}").unlink()
    view = StoreView(root)
    records, damage = found_by(view)
    assert [(found.begin, found.end) for found in damage] == [(LOG_FILE, 2 * LOG_FILE)]
    assert "missing" in damage[0].reason
    with pytest.raises(StoreError, match="missing or too short"):
        view.log.record_at(LOG_FILE)
    assert records[-1].body[-3:] == b"%03d" % (COUNT - 1)


def test_a_file_that_is_too_short_is_read_as_far_as_it_goes(root: Path) -> None:
    positions = positions_of(root)
    os.truncate(root / "commitlog" / f"{LOG_FILE:020d}", 5000)
    records, damage = found_by(StoreView(root))
    lost = [n for n, at in enumerate(positions) if LOG_FILE <= at < 2 * LOG_FILE]
    lost = [n for n in lost if positions[n + 1] > LOG_FILE + 5000]
    assert numbers(records) == [n for n in range(COUNT) if n not in lost]
    assert damage[0].begin == positions[lost[0]]
    assert damage[-1].end == 2 * LOG_FILE


def test_a_torn_last_record_is_no_part_of_the_log(root: Path) -> None:
    unsynced(root)
    positions = positions_of(root)
    overwrite(root, positions[-1] + 100, b"BODY")
    end = StoreView(root).log_end()
    assert end.position == positions[-1]
    assert end.torn == f"the body of the record at {positions[-1]} fails its CRC"
    assert numbers(found_by(StoreView(root))[0]) == list(range(COUNT - 1))


def test_records_after_a_gap_in_the_last_file_count_if_they_were_synced(root: Path) -> None:
    positions = positions_of(root)
    shutil.rmtree(root / "consumequeue")
    gap = COUNT - 10
    overwrite(root, positions[gap], bytes(8))
    records, damage = found_by(StoreView(root))
    assert numbers(records) == [n for n in range(COUNT) if n != gap]
    assert [(found.begin, found.end) for found in damage] == [(positions[gap], positions[gap + 1])]
    unsynced(root)
    assert StoreView(root).log_end() == LogEnd(positions[gap], None)


def test_records_after_a_gap_count_if_a_queue_points_to_them(root: Path) -> None:
    unsynced(root)
    positions = positions_of(root)
    overwrite(root, positions[-5], bytes(8))
    records, damage = found_by(StoreView(root))
    assert numbers(records) == [n for n in range(COUNT) if n != COUNT - 5]
    assert len(damage) == 1


def test_old_records_behind_the_end_are_not_taken_for_new_ones(root: Path) -> None:
    """A truncated tail keeps its bytes, and they say that they lie where they lie."""
    positions = positions_of(root)
    shutil.rmtree(root / "consumequeue")
    view = StoreView(root)
    last = view.log.record_at(positions[-1])
    assert last is not None
    cut = COUNT - 10
    newer = last.store_timestamp_ms + 60_000
    record = encode_record(
        topic="TopicTest",
        body=b"newer",
        born_host=bytes(8),
        store_host=bytes(8),
        physical_offset=positions[cut],
        store_timestamp_ms=newer,
    )
    overwrite(root, positions[cut], record)
    (root / "checkpoint").write_bytes(Checkpoint(newer, newer).encode())
    end = StoreView(root).log_end()
    assert end.position == positions[cut] + len(record)
    assert end.torn is not None


def test_a_file_created_ahead_does_not_hide_the_end(root: Path) -> None:
    end = StoreView(root).log_end()
    files = sorted((root / "commitlog").iterdir())
    (root / "commitlog" / f"{len(files) * LOG_FILE:020d}").write_bytes(bytes(LOG_FILE))
    assert StoreView(root).log_end() == end


def test_copies_of_records_within_a_body_are_not_taken_for_records(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    for _ in range(3):
        first = store.put(message(BODY))
        # Where its copies will say they lie is where they will lie.
        inner = first.end_offset + 88
        copies = b""
        for _ in range(5):
            copies += encode_record(
                topic="Fake",
                body=b"fake",
                born_host=bytes(8),
                store_host=bytes(8),
                physical_offset=inner + len(copies),
            )
        store.put(message(copies))
    view = StoreView(tmp_path / "store")
    end = view.log_end().position
    whole = [record.physical_offset for record in found_by(view)[0]]
    assert len(whole) == 6
    for cut in range(end):
        border = view.log.first_start(cut, end)
        assert border == end or border in whole
    store.close()


def test_a_border_is_found_far_from_the_beginning_of_a_file(root: Path) -> None:
    limits = ViewLimits(overlap_bytes=700, search_bytes=150, chunk_bytes=500)
    view = StoreView(root, limits=limits)
    end = view.log_end().position
    whole = [record.physical_offset for record in found_by(view)[0]]
    for cut in range(0, end + 1000, 97):
        border = view.log.first_start(cut, end)
        assert bisect_left(whole, border) == bisect_left(whole, cut)
    wound = whole[50]
    overwrite(root, wound, b"\xff" * 40)
    assert view.log.first_start(wound, end) == wound
    assert view.log.first_start(wound + 1, end) == whole[51]
    assert view.log.first_start(wound + 700, end) == whole[bisect_left(whole, wound + 700)]
    assert [found.begin for found in found_by(view)[1]] == [wound]


def test_a_record_that_no_chunk_holds_is_found_and_followed(root: Path) -> None:
    view = StoreView(root, limits=ViewLimits(chunk_bytes=64))
    whole = positions_of(root)
    assert view.log_end() == StoreView(root).log_end()
    assert view.log.first_start(whole[5] + 1, whole[-1]) == whole[6]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    wounds=st.lists(
        st.tuples(st.integers(0, 3 * LOG_FILE - 300), st.binary(min_size=1, max_size=300)),
        max_size=5,
    )
)
def test_all_records_that_are_not_overwritten_are_found(
    root: Path, tmp_path: Path, wounds: list[tuple[int, bytes]]
) -> None:
    hurt = tmp_path / "hurt"
    shutil.rmtree(hurt, ignore_errors=True)
    shutil.copytree(root, hurt)
    whole = found_by(StoreView(root))[0]
    for at, data in wounds:
        overwrite(hurt, at, data)
    end = StoreView(root).log_end().position
    records, damage = found_by(StoreView(hurt), end)
    found = {record.physical_offset for record in records if record.check_crc()}
    for record in whole:
        begin, stop = record.physical_offset, record.physical_offset + record.size
        if not any(begin < at + len(data) and at < stop for at, data in wounds):
            hidden = any(one.begin <= begin < one.end for one in damage)
            assert begin in found or hidden
            # Only a file's blank record, or the file's whole rest, may be lost with it.
            assert begin in found or any(at // LOG_FILE == begin // LOG_FILE for at, _ in wounds)


def test_a_size_above_the_maximum_is_no_record(tmp_path: Path) -> None:
    """It would be read into memory as a whole."""
    store = opened(tmp_path)
    small, large = (store.put(message(b"x" * length)) for length in (10, 5000))
    log = StoreView(tmp_path, limits=ViewLimits(longest_bytes=1000)).log
    assert log.record_at(small.physical_offset) is not None
    assert log.record_at(large.physical_offset) is None
    store.close()
