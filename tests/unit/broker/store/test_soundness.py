"""A damaged record is omitted, counted and logged; all others are delivered."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.store import record_validator as soundness
from broker.store.engine import GetStatus, MessageStore
from broker.store.limits import StoreLimits
from remoting.protocol.disk.files import ENTRY
from remoting.protocol.message.record import MAGIC_V2, encode_record
from tests.support.clock import ManualClock
from tests.unit.broker.store.crashes import crash, queue_file
from tests.unit.broker.store.damage import BODY, COUNT, PARTS, TOPIC, all_but, fill, flip
from tests.unit.broker.store.stores import EVERY_CODE, LIMITS, NOTHING_HOT, bodies, message, opened
from tests.unit.broker.store.test_cold_reads import SlowFiles


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limits(request: pytest.FixtureRequest) -> StoreLimits:
    """Nothing is hot, unless a test names others in its parameters."""
    limits: StoreLimits = getattr(request, "param", NOTHING_HOT)
    return limits


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock, limits: StoreLimits) -> Iterator[MessageStore]:
    store = opened(tmp_path / "store", clock=clock, limits=limits)
    yield store
    store.close()


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of the messages that were checked."""
    checked: list[int] = []
    original = soundness.validate_run

    def counting(*args: Any) -> int:
        starts, number = args[2], args[5]
        checked.extend(range(number, number + len(starts)))
        return original(*args)

    monkeypatch.setattr(soundness, "validate_run", counting)
    return checked


# --- what is damaged


@pytest.mark.parametrize("others", [False, True], ids=["contiguous", "scattered"])
@pytest.mark.parametrize("part", PARTS)
def test_one_record_damaged_under_a_running_broker_is_omitted(
    store: MessageStore, part: str, others: bool
) -> None:
    places = fill(store, COUNT, others=others)
    with capture_logs() as logs:
        for number in (0, 17, COUNT - 1):
            flip(store, places[number] + PARTS[part])
        assert bodies(store) == all_but(0, 17, COUNT - 1)
        assert bodies(store) == all_but(0, 17, COUNT - 1)
    assert store.stats.damaged_messages == 3
    assert store.stats.restored_entries == 0
    named = [(log["topic"], log["queue"], log["offset"], log["place"]) for log in logs]
    assert named == [(TOPIC, 0, n, places[n]) for n in (0, 17, COUNT - 1)]
    assert all(log["reason"] and log["file"].endswith("0" * 20) for log in logs)


@pytest.mark.parametrize("killed", [False, True], ids=["clean stop", "crash"])
@pytest.mark.parametrize("part", PARTS)
def test_one_damaged_record_is_omitted_after_a_start(
    store: MessageStore, part: str, killed: bool
) -> None:
    places = fill(store, COUNT)
    store.flush()
    if killed:
        found = crash(store)
    else:
        store.close()
        found = store
    flip(found, places[17] + PARTS[part])
    found.open()
    assert bodies(found) == all_but(17)
    assert found.stats.damaged_messages == 1
    # What comes now is trusted, and has the next number.
    assert found.put(message(b"new")).queue_offset == COUNT
    assert bodies(found) == [*all_but(17), b"new"]
    found.close()


@pytest.mark.parametrize("part", ["body", "size", "crc", "magic"])
def test_the_last_record_may_be_the_damaged_one(store: MessageStore, part: str) -> None:
    places = fill(store, COUNT)
    store.close()
    flip(store, places[-1] + PARTS[part])
    store.open()
    assert bodies(store) == all_but(COUNT - 1)
    assert store.put(message(b"new")).queue_offset >= COUNT - 1
    assert bodies(store) == [*all_but(COUNT - 1), b"new"]


def test_first_and_last_of_a_get_may_be_damaged(store: MessageStore) -> None:
    places = fill(store, COUNT)
    for number in (8, 15):
        flip(store, places[number] + PARTS["body"])
    result = store.get(TOPIC, 0, 8, 8)
    assert (result.status, result.count, result.next_offset) == (GetStatus.FOUND, 6, 16)
    assert len(result.records) == 1
    assert result.size == len(result.records[0])
    result = store.get(TOPIC, 0, 0, 32)
    assert [len(run) // (places[1] - places[0]) for run in result.records] == [8, 6, 16]


@pytest.mark.parametrize("codes", [None, EVERY_CODE])
def test_a_get_that_finds_only_damaged_ones_moves_on(store: MessageStore, codes: Any) -> None:
    for place in fill(store, COUNT):
        flip(store, place + PARTS["body"])
    for count in (8, 1):
        result = store.get(TOPIC, 0, 8, count, codes=codes)
        assert result.status is GetStatus.MESSAGE_WAS_REMOVING
        assert (result.next_offset, result.records, result.size) == (8 + count, (), 0)
    assert bodies(store) == []
    assert store.stats.damaged_messages == COUNT


def test_a_filter_gets_past_damaged_records(store: MessageStore) -> None:
    places = [
        store.put(message(BODY % number, tag="ab"[number % 2])).physical_offset
        for number in range(COUNT)
    ]
    for number in (4, 5):
        flip(store, places[number] + PARTS["body"])
    result = store.get(TOPIC, 0, 0, 5, codes=frozenset({97}))
    assert (result.count, result.next_offset) == (4, 9)
    # Nobody has looked at the other one.
    assert store.stats.damaged_messages == 1


def test_all_records_of_a_large_get_are_checked(store: MessageStore) -> None:
    entries = 50  # of one queue file
    places = fill(store, entries)
    flip(store, places[30] + PARTS["body"])
    assert store.get(TOPIC, 0, 0, 1024).count == entries - 1


def test_false_entries_are_restored_and_not_followed(store: MessageStore) -> None:
    places = fill(store, COUNT)
    size = places[1] - places[0]
    store.close()
    with queue_file(store).open("r+b") as file:
        for number, (place, length) in {
            3: (places[4], size),
            5: (places[5], size + 7),
            7: (places[7] + 1, size),
            9: (places[9], size - 1),
        }.items():
            file.seek(number * ENTRY.size)
            file.write(ENTRY.pack(place, length, 97))
    store.open()
    assert bodies(store) == all_but()
    assert store.stats.restored_entries == 4
    assert store.stats.damaged_messages == 0


@pytest.mark.parametrize("limits", [LIMITS], indirect=True)
def test_an_old_entry_that_points_to_a_new_record_is_restored(store: MessageStore) -> None:
    size = fill(store, COUNT)[1]
    store.close()
    store.open()
    new = store.put(message(b"new 0000", tag="a"))
    with queue_file(store).open("r+b") as file:
        file.seek(10 * ENTRY.size)
        file.write(ENTRY.pack(new.physical_offset, size, 97))
    for first in (10, 0):
        assert store.get(TOPIC, 0, first, 20 - first).count == 20 - first
    assert bodies(store) == [*all_but(), b"new 0000"]


@pytest.mark.parametrize("limits", [replace(NOTHING_HOT, max_named_damage=3)], indirect=True)
def test_damage_that_is_not_logged_is_counted(store: MessageStore) -> None:
    for place in fill(store, 5):
        flip(store, place + PARTS["body"])
    with capture_logs() as logs:
        assert bodies(store) == []
    assert store.stats.damaged_messages == 5
    assert [log.get("offset") for log in logs] == [0, 1, 2, None]
    assert logs[-1]["named"] == 3


# --- records of other brokers


@pytest.mark.parametrize("magic", [None, MAGIC_V2])
@pytest.mark.parametrize("host", [bytes(8), bytes(20)])
def test_records_of_any_layout_are_distinguished_from_damaged_ones(
    store: MessageStore, magic: int | None, host: bytes
) -> None:
    log = store.log
    more: dict[str, Any] = {} if magic is None else {"magic": magic}
    for number in range(10):
        record = encode_record(
            topic=TOPIC,
            body=b"%d" % number * 5,
            born_host=host,
            store_host=bytes(8),
            queue_offset=number,
            physical_offset=log.end,
            store_timestamp_ms=1,
            **more,
        )
        log.store(log.reserve(len(record)), record)
    found = crash(store)
    found.open()
    assert len(bodies(found)) == 10
    size = found.log.end // 10
    body_at = 88 + (12 if len(host) == 20 else 0)
    flip(found, 3 * size + body_at)
    flip(found, 5 * size + 27)
    flip(found, 7 * size + 35)
    flip(found, 8 * size + body_at + 5 + (2 if magic else 1))
    found.close()
    found.open()
    assert bodies(found) == [b"%d" % n * 5 for n in (0, 1, 2, 4, 6, 9)]
    found.close()


def test_light_queues_may_point_to_messages_of_other_topics(store: MessageStore) -> None:
    places = fill(store, COUNT)
    size = places[1] - places[0]
    queue = store.queues.get_or_create("%LMQ%mine", 0)
    for number in (3, 4, 9):
        queue.prepare(1)
        queue.append_packed(ENTRY.pack(places[number], size, 0))
    flip(store, places[4] + PARTS["body"])
    assert bodies(store, "%LMQ%mine") == [BODY % 3, BODY % 9]


# --- what is remembered


def test_just_appended_records_are_trusted(
    tmp_path: Path, store: MessageStore, checks: list[int]
) -> None:
    places = fill(store, COUNT)
    newest = replace(NOTHING_HOT, hot_log_bytes=store.log.end - places[20])
    store = opened(tmp_path / "another", limits=newest)
    fill(store, COUNT)
    assert bodies(store) == all_but()
    # Those that one get gives are checked together.
    assert checks == list(range(21))
    checks.clear()
    assert store.get(TOPIC, 0, 20, 20, codes=EVERY_CODE).count == 20
    assert checks == []


@pytest.mark.parametrize("others", [False, True], ids=["contiguous", "scattered"])
def test_each_record_is_checked_once_for_all_readers(
    store: MessageStore, checks: list[int], others: bool
) -> None:
    fill(store, COUNT, others=others)
    assert bodies(store) == all_but()
    assert checks == list(range(COUNT))
    assert bodies(store) == all_but()
    assert store.get(TOPIC, 0, 3, 1024).count == COUNT - 3
    assert store.get(TOPIC, 0, 3, 30, codes=frozenset({97})).count == 30
    assert checks == list(range(COUNT))


def test_a_get_from_the_middle_starts_over(store: MessageStore, checks: list[int]) -> None:
    fill(store, COUNT)
    store.get(TOPIC, 0, 10, 10)
    store.get(TOPIC, 0, 15, 10)
    assert checks == list(range(10, 25))
    checks.clear()
    store.get(TOPIC, 0, 5, 10)
    assert checks == list(range(5, 15))
    checks.clear()
    store.get(TOPIC, 0, 5, 10)
    store.get(TOPIC, 0, 12, 10, codes=EVERY_CODE)
    assert checks == list(range(15, 22))


def test_filtered_reads_do_not_evict_check_results(store: MessageStore, checks: list[int]) -> None:
    for number in range(COUNT):
        store.put(message(BODY % number, tag="ab"[number % 2]))
    store.get(TOPIC, 0, 0, 10)
    checks.clear()
    assert store.get(TOPIC, 0, 20, 5, codes=frozenset({97})).count == 5
    assert checks == [20, 22, 24, 26, 28]
    checks.clear()
    store.get(TOPIC, 0, 0, 10)
    assert checks == []


def test_a_get_starts_over_after_a_damaged_record(store: MessageStore, checks: list[int]) -> None:
    places = fill(store, COUNT)
    flip(store, places[12] + PARTS["body"])
    assert store.get(TOPIC, 0, 0, 20).count == 19
    checks.clear()
    assert store.get(TOPIC, 0, 13, 10).count == 10
    assert checks == [20, 21, 22]
    checks.clear()
    assert store.get(TOPIC, 0, 10, 10).count == 9
    assert 12 in checks


def test_after_a_minute_everything_is_checked_again(
    store: MessageStore, clock: ManualClock, checks: list[int]
) -> None:
    places = fill(store, COUNT)
    assert bodies(store) == all_but()
    clock.advance(LIMITS.checked_seconds - 0.1)
    store.get(TOPIC, 0, 0, 10)
    assert len(checks) == COUNT
    clock.advance(0.1)
    flip(store, places[3] + PARTS["body"])
    assert bodies(store) == all_but(3)


async def test_everything_is_checked_again_when_a_page_has_left_memory(
    tmp_path: Path, clock: ManualClock
) -> None:
    disk = SlowFiles()
    store = opened(tmp_path, files=disk, clock=clock, limits=NOTHING_HOT)
    places = fill(store, COUNT)
    assert store.get(TOPIC, 0, 0, 20, wait=False).count == 20
    disk.cold = True
    clock.advance(1.1)
    flip(store, places[3] + PARTS["body"])
    assert store.get(TOPIC, 0, 30, 5, wait=False).status is GetStatus.COLD
    disk.cold = False
    assert store.get(TOPIC, 0, 0, 20).count == 19
    store.close()


async def test_records_fetched_by_a_thread_are_checked(tmp_path: Path) -> None:
    disk = SlowFiles()
    store = opened(tmp_path, files=disk, limits=NOTHING_HOT)
    places = fill(store, COUNT, others=True)
    flip(store, places[3] + PARTS["body"])
    disk.cold = True
    result = await store.cold_reads.get("me", TOPIC, 0, 0, 20)
    assert (result.count, result.next_offset) == (19, 20)
    assert disk.fetched
    store.close()


async def test_appended_records_are_trusted_until_a_page_of_that_age_leaves_memory(
    tmp_path: Path, clock: ManualClock, checks: list[int]
) -> None:
    disk = SlowFiles()
    trusting = StoreLimits(hot_log_bytes=0)
    store = opened(tmp_path, files=disk, clock=clock, limits=trusting)
    fill(store, COUNT)
    assert store.get(TOPIC, 0, 0, 20, wait=False).count == 20
    assert checks == []
    disk.cold = True
    clock.advance(1.1)
    assert store.get(TOPIC, 0, 5, 5, wait=False).status is GetStatus.COLD
    disk.cold = False
    assert store.get(TOPIC, 0, 0, 20, wait=False).count == 20
    assert checks == list(range(20))
    # What is younger than all that had left is not doubted.
    assert store.get(TOPIC, 0, 30, 10, wait=False).count == 10
    assert checks == list(range(20))
    store.close()
