"""Damaged consume queue entries are restored from the log; no intact message is skipped."""

from __future__ import annotations

import asyncio
import errno
import os
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from broker.store import cold_reads
from broker.store.engine import GetStatus, MessageStore, StoreError
from broker.store.limits import StoreLimits
from broker.store.log_view import LogView
from broker.store.restore import Search, find_entries
from broker.store.results import StoreBusy
from remoting.protocol.disk.files import ENTRY, FILLER
from remoting.protocol.message.view import RecordView, iter_records
from remoting.protocol.names import SCHEDULE_TOPIC
from tests.support.sizes import size
from tests.unit.broker.store.crashes import crash
from tests.unit.broker.store.damage import BODY, COUNT, PARTS, TOPIC, all_but, fill, flip
from tests.unit.broker.store.stores import QUEUE_FILE, FailingFiles, bodies, message, opened

Entry = tuple[int, int, int]

QUEUES: Final = 2
MESSAGES: Final = 200

OUTSIDE: Final[dict[str, Callable[[Entry, int], Entry]]] = {
    "zeros": lambda _, __: (0, 0, 0),
    "size 0": lambda entry, _: (entry[0], 0, entry[2]),
    "size -1": lambda entry, _: (entry[0], -1, entry[2]),
    "all ones": lambda _, __: (-1, -1, -1),
    "beyond the log": lambda entry, end: (end, entry[1], entry[2]),
    "far beyond it": lambda entry, _: (1 << 60, entry[1], entry[2]),
    "before it": lambda entry, _: (-entry[0] - 1, entry[1], entry[2]),
    "much too large": lambda entry, _: (entry[0], 0x7FFFFFFE, entry[2]),
}
"""What can be seen of an entry alone; other tags codes go with it."""

INSIDE: Final[dict[str, Callable[[Entry, int], Entry]]] = {
    "the first record": lambda entry, _: (0, entry[1], entry[2]),
    "a little behind": lambda entry, _: (entry[0] + 1, entry[1], entry[2]),
    "too short": lambda entry, _: (entry[0], entry[1] - 1, entry[2]),
    "too long": lambda entry, _: (entry[0], entry[1] + 1, entry[2]),
}
"""Fields that only the record contains."""


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = opened(tmp_path / "store")
    yield store
    store.close()


def file_of(store: MessageStore, number: int, topic: str = TOPIC, queue_id: int = 0) -> Path:
    at = number * ENTRY.size // QUEUE_FILE * QUEUE_FILE
    return store.paths.consume_queues / topic / str(queue_id) / f"{at:020d}"


def entry_of(store: MessageStore, number: int, topic: str = TOPIC, queue_id: int = 0) -> Entry:
    data = file_of(store, number, topic, queue_id).read_bytes()
    place, length, code = ENTRY.unpack_from(data, number * ENTRY.size % QUEUE_FILE)
    return place, length, code


def write_entry(
    store: MessageStore, number: int, entry: Entry, topic: str = TOPIC, queue_id: int = 0
) -> None:
    with file_of(store, number, topic, queue_id).open("r+b") as file:
        file.seek(number * ENTRY.size % QUEUE_FILE)
        file.write(ENTRY.pack(*entry))


def zero(store: MessageStore, *numbers: int, topic: str = TOPIC, queue_id: int = 0) -> None:
    for number in numbers:
        write_entry(store, number, (0, 0, 0), topic, queue_id)


# --- every sound message is delivered


def body_of(number: int) -> bytes:
    return b"%d." % number * (1 + number * 7 % 60)


def pulled(
    store: MessageStore, queue_id: int, count: int, wanted: set[int] | None
) -> list[tuple[int, bytes]]:
    """Return offset and body of a queue's messages, as consumers get them."""
    codes = None if wanted is None else frozenset(wanted)
    found: list[tuple[int, bytes]] = []
    offset = 0
    while True:
        result = store.get(TOPIC, queue_id, offset, count, codes=codes)
        for run in result.records:
            found += [(record.queue_offset, record.body) for record in iter_records(run)]
        if result.status is GetStatus.OFFSET_OVERFLOW_ONE:
            return found
        assert result.next_offset > offset
        offset = result.next_offset


@pytest.mark.timeout(size(ci=120, soak=1800))
@settings(max_examples=size(test=12, ci=25, soak=2000))
@given(data=st.data())
def test_every_message_is_delivered_once_at_its_offset(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as directory:
        store = opened(Path(directory) / "store")
        for number in range(MESSAGES):
            tag = "ab"[number // 3 % 2]
            store.put(message(body_of(number), queue_id=number % QUEUES, tag=tag))
            store.put(message(b"of another topic", topic="Other", queue_id=number % QUEUES))
        life = data.draw(st.sampled_from(["running", "stopped", "killed"]), "life")
        # A broker asks no record of what it has written itself and is still in memory.
        kinds = OUTSIDE if life == "running" else OUTSIDE | INSIDE
        end = store.log.end
        if life == "killed":
            store.flush()
            killed = crash(store)
            store.close()
            store = killed
        elif life == "stopped":
            store.close()
        first = data.draw(st.integers(0, MESSAGES - 1), "first of many in a row")
        many = range(first, min(MESSAGES, first + data.draw(st.integers(0, 120), "how many")))
        some = data.draw(st.lists(st.integers(0, MESSAGES - 1), max_size=10), "some")
        for number in {*many, *some}:
            place = number // QUEUES, TOPIC, number % QUEUES
            damaged = kinds[data.draw(st.sampled_from(sorted(kinds)), "kind")]
            there = entry_of(store, *place)
            write_entry(store, place[0], damaged(there, end), *place[1:])
        if life != "running":
            store.open()
        for wanted in data.draw(st.permutations([None, {97}]), "filters"):
            for queue_id in range(QUEUES):
                count = data.draw(st.integers(1, 150), "at once")
                assert pulled(store, queue_id, count, wanted) == [
                    (number // QUEUES, body_of(number))
                    for number in range(queue_id, MESSAGES, QUEUES)
                    if wanted is None or number // 3 % 2 == 0
                ]
        assert store.stats.damaged_messages == 0
        store.close()


@pytest.mark.parametrize("kind", [*OUTSIDE, *INSIDE])
@pytest.mark.parametrize("number", [0, 7, COUNT - 1])
def test_an_entry_is_restored_exactly(store: MessageStore, kind: str, number: int) -> None:
    fill(store, COUNT, others=True)
    before = entry_of(store, number)
    store.close()
    write_entry(store, number, (OUTSIDE | INSIDE)[kind](before, 10**6))
    store.open()
    assert bodies(store) == all_but()
    assert entry_of(store, number) == before


async def test_the_loop_does_not_search_the_log(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []

    def searching(*args: object) -> dict[int, bytes]:
        threads.append(threading.current_thread().name)
        return find_entries(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(cold_reads, "find_entries", searching)
    fill(store, COUNT)
    zero(store, 3, 4, 20)
    result = store.get(TOPIC, 0, 0, COUNT, wait=False)
    assert (result.status, result.broken, result.records) == (GetStatus.COLD, [3, 4, 20], ())
    # Who asks for them meanwhile waits for the same search.
    pulls = [store.cold_reads.get(who, TOPIC, 0, 0, COUNT) for who in ("me", "you", "them")]
    assert [result.count for result in await asyncio.gather(*pulls)] == [COUNT] * 3
    assert len(threads) == 1
    assert threads[0].startswith("store-cold-read")
    assert store.get(TOPIC, 0, 0, COUNT, wait=False).count == COUNT


async def test_a_search_whose_caller_has_left_is_finished_by_the_next_one(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on, ended = threading.Event(), threading.Event(), threading.Semaphore(0)
    outcomes: list[bool] = []

    def slow(search: Search, goes_on: Callable[[], bool]) -> dict[int, bytes]:
        begun.set()
        go_on.wait(30)
        outcomes.append(goes_on())
        ended.release()
        return find_entries(search, goes_on)

    monkeypatch.setattr(cold_reads, "find_entries", slow)
    fill(store, COUNT)
    zero(store, 3)
    first = asyncio.ensure_future(store.cold_reads.get("me", TOPIC, 0, 0, COUNT))
    await asyncio.to_thread(begun.wait, 30)
    second = asyncio.ensure_future(store.cold_reads.get("you", TOPIC, 0, 0, COUNT))
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    go_on.set()
    assert (await asyncio.wait_for(second, 30)).count == COUNT
    for _ in range(2):
        assert await asyncio.to_thread(ended.acquire, timeout=30)
    assert sorted(outcomes) == [False, True]


async def test_a_store_that_closes_gives_up_its_search(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = threading.Event()

    def slow(search: Search, goes_on: Callable[[], bool]) -> dict[int, bytes]:
        begun.set()
        while goes_on():
            pass
        return find_entries(search, goes_on)

    monkeypatch.setattr(cold_reads, "find_entries", slow)
    store = opened(tmp_path / "store")
    fill(store, COUNT, others=True)
    zero(store, 3)
    pull = asyncio.ensure_future(store.cold_reads.get("me", TOPIC, 0, 0, COUNT))
    await asyncio.to_thread(begun.wait, 30)
    store.close()
    with pytest.raises(StoreError):
        await pull
    # Nothing was given up.
    assert entry_of(store, 3) == (0, 0, 0)


async def test_delayed_messages_keep_their_times(store: MessageStore) -> None:
    delayed = {"properties": b"DELAY\x013\x02", "due_in_ms": 10_000}
    for number in range(5):
        store.put(message(BODY % number, topic=SCHEDULE_TOPIC, queue_id=2, **delayed))
    times = await store.cold_reads.tags_codes("me", SCHEDULE_TOPIC, 2, 0, 5)
    assert min(times) > 10_000
    zero(store, 0, 2, topic=SCHEDULE_TOPIC, queue_id=2)
    assert await store.cold_reads.tags_codes("me", SCHEDULE_TOPIC, 2, 0, 5) == times
    assert await store.cold_reads.tags_codes("me", "Nobody's", 2, 0, 5) == []


def test_a_recreated_topic_delivers_its_new_messages(store: MessageStore) -> None:
    for life in (b"old", b"new"):
        if life == b"new":
            store.delete_topic(TOPIC)
        for number in range(3):
            store.put(message(life + b"%d" % number))
    # No neighbouring entry shows where the new ones begin.
    zero(store, 0, 1, 2)
    assert bodies(store) == [b"new0", b"new1", b"new2"]


def test_new_messages_after_those_of_a_deleted_topic_are_delivered(store: MessageStore) -> None:
    for _ in range(3):
        store.put(message(b"old"))
    store.delete_topic(TOPIC)
    for number in range(3):
        store.put(message(b"new%d" % number))
    for damaged in (0, 1, 2):
        zero(store, damaged)
        assert bodies(store) == [b"new0", b"new1", b"new2"]


# --- what the log does not have


def test_a_message_found_nowhere_is_counted_and_logged_once(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    searches: list[Search] = []

    def searching(search: Search, goes_on: Callable[[], bool]) -> dict[int, bytes]:
        searches.append(search)
        return find_entries(search, goes_on)

    monkeypatch.setattr(cold_reads, "find_entries", searching)
    places = fill(store, COUNT, others=True)
    for number in (5, 6, 30):
        flip(store, places[number] + PARTS["body"])
    zero(store, 5, 6, 7, 30)
    with capture_logs() as logs:
        for _ in range(3):
            assert bodies(store) == all_but(5, 6, 30)
    assert store.stats.damaged_messages == 3
    assert store.stats.restored_entries == 1
    assert len(searches) == 2
    named = [(log["offset"], log["reason"]) for log in logs if log["log_level"] == "error"]
    assert [offset for offset, _ in named] == [5, 6, 30]
    assert "its queue entry is damaged (offset 0, size 0)" in named[0][1]
    # As recovery writes what the log has not.
    assert ENTRY.pack(*entry_of(store, 5)) == FILLER


def test_a_record_whose_number_is_damaged_is_not_taken_for_another_one(
    store: MessageStore,
) -> None:
    """No checksum covers it; but the entry of the message that it was leads to it."""
    places = fill(store, COUNT, others=True)
    store.close()
    flip(store, places[6] + PARTS["queue offset"], 6 ^ 7)
    flip(store, places[7] + PARTS["physical offset"])
    zero(store, 20)
    store.open()
    assert bodies(store) == all_but(6, 7)
    assert store.stats.damaged_messages == 2


def test_two_entries_that_point_to_one_record_are_distinguished(store: MessageStore) -> None:
    fill(store, COUNT, others=True)
    store.close()
    write_entry(store, 6, entry_of(store, 7))
    zero(store, 7)
    store.open()
    # The second one is asked for alone, and first.
    assert store.get(TOPIC, 0, 7, 1).count == 1
    assert bodies(store) == all_but()


def test_restored_entries_are_counted_and_the_first_of_a_queue_is_named(
    store: MessageStore,
) -> None:
    fill(store, COUNT)
    with capture_logs() as logs:
        for numbers in ((4, 6), (20,)):
            zero(store, *numbers)
            assert bodies(store) == all_but()
    assert store.stats.restored_entries == 3
    (outcomes,) = logs
    named = outcomes["log_level"], outcomes["topic"], outcomes["queue"], outcomes["offset"]
    assert named == ("warning", TOPIC, 0, 4)


def test_a_damaged_record_starts_no_search(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its head says that it is the one that the entry means."""
    places = fill(store, COUNT)
    store.close()
    flip(store, places[5] + PARTS["body"])
    store.open()

    walks: list[object] = []
    monkeypatch.setattr(LogView, "walk", lambda *args, **_: walks.append(args))
    assert bodies(store) == all_but(5)
    assert (walks, store.stats.damaged_messages) == ([], 1)


def test_the_search_ends_with_its_bound(tmp_path: Path) -> None:
    store = opened(tmp_path / "store", limits=StoreLimits(max_restore_bytes=3000))
    for number in range(4):
        store.put(message(BODY % number))
        for _ in range(20 if number < 2 else 60):
            store.put(message(b"other", queue_id=1))
    zero(store, 1, 3)
    with capture_logs() as logs:
        assert bodies(store) == [BODY % number for number in (0, 1, 2)]
    assert [log["offset"] for log in logs if log["log_level"] == "error"] == [3]


def test_an_entry_that_cannot_be_written_is_not_skipped(tmp_path: Path) -> None:
    disk = FailingFiles()
    store = opened(tmp_path / "store", files=disk)
    fill(store, COUNT)
    zero(store, 3)
    disk.full, disk.full_for = True, "consumequeue"
    with pytest.raises(StoreBusy, match=r"can't be restored \(No space left on device\)"):
        store.get(TOPIC, 0, 0, COUNT)
    disk.full = False
    assert bodies(store) == all_but()
    store.close()


@pytest.mark.parametrize(("number", "skipped"), [(errno.EMFILE, False), (errno.EIO, True)])
def test_a_log_that_cannot_be_read_now_is_searched_later(
    store: MessageStore, monkeypatch: pytest.MonkeyPatch, number: int, skipped: bool
) -> None:
    fill(store, COUNT)
    zero(store, 3)

    def fail(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("broker.storetools.view.os.preadv", fail)
    if not skipped:
        with pytest.raises(StoreBusy, match="can't be restored now"):
            store.get(TOPIC, 0, 0, COUNT)
        monkeypatch.undo()
    assert bodies(store) == all_but(*([3] if skipped else []))


def test_what_retention_has_deleted_is_not_called_damaged(store: MessageStore) -> None:
    for number in range(60):
        store.put(message(BODY % number + b"x" * 900))
    log = store.log
    # The log has lost its first file, and the queue is not trimmed yet.
    for file in log.drop_before(2 * log.file_size):
        file.remove()
    first = RecordView(store.get(TOPIC, 0, 40, 1).records[0]).queue_offset
    assert first == 40
    got = bodies(store)
    assert got == [BODY % number + b"x" * 900 for number in range(60 - len(got), 60)]
    assert store.stats.damaged_messages == 0
