"""A copy is the store at one moment, whatever happens to the store meanwhile."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.store.engine import MessageStore
from broker.storetools.view import StoreView
from remoting.protocol.disk.files import Checkpoint
from tests.unit.broker.store.copy.copies import check, copied
from tests.unit.broker.store.stores import (
    LOG_FILE,
    QUEUE_FILE,
    bodies,
    message,
    opened,
    small_config,
)

COUNT = 400


def fill(store: MessageStore, begin: int = 0, end: int = COUNT, topic: str = "TopicTest") -> None:
    for number in range(begin, end):
        properties = b"TAGS\x01t\x02KEYS\x01k%d" % number
        body = b"%04d" % number + bytes(range(100))
        store.put(message(body, topic=topic, queue_id=number % 2, properties=properties))


def numbers(store: MessageStore, topic: str = "TopicTest") -> list[int]:
    return sorted(int(body[:4]) for queue in (0, 1) for body in bodies(store, topic, queue))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """Several log and queue files, still open."""
    store = opened(tmp_path / "store")
    fill(store)
    yield store
    store.close()


@pytest.fixture
def root(store: MessageStore) -> Path:
    return store.paths.root


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "copy"


def test_a_copy_of_an_open_store_has_what_was_put_before(
    store: MessageStore, root: Path, target: Path
) -> None:
    end = store.log.end

    def put_more(_what: str, _done: int) -> None:
        fill(store, COUNT, COUNT + 20)

    report = copied(root, target, put_more)

    records = check(target, report)
    assert [int(record.body[:4]) for record in records] == list(range(COUNT))
    assert (report.end, report.queues, report.topics, report.sound) == (end, 2, 1, True)
    assert store.log.end > end
    sizes = {path.stat().st_size for path in (target / "commitlog").iterdir()}
    assert sizes == {LOG_FILE}
    sizes = {path.stat().st_size for path in (target / "consumequeue").glob("*/*/*")}
    assert sizes == {QUEUE_FILE}


def test_a_copy_opens_without_reading_its_log_and_continues(
    store: MessageStore, root: Path, target: Path
) -> None:
    fill(store, 0, 1, topic="Other")
    copied(root, target)
    copy = MessageStore(small_config(target))

    report = copy.open()

    assert report.clean
    assert (report.scanned_records, report.damaged_records, report.notes) == (1, 0, [])
    assert (report.cut_bytes, report.cut_entries, report.rebuilt_entries) == (0, 0, 0)
    fill(copy, COUNT, COUNT + 10)
    assert numbers(copy) == list(range(COUNT + 10))
    copy.close()


def test_a_copy_of_a_stopped_store_has_its_index(
    store: MessageStore, root: Path, target: Path
) -> None:
    assert copied(root, target.with_name("running")).index_files == 0
    store.close()
    report = copied(root, target)
    check(target, report)
    names = {path.name for path in (root / "index").iterdir()}
    assert report.index_files == len(names) > 0
    assert {path.name for path in (target / "index").iterdir()} == names
    for name in names:
        assert (target / "index" / name).read_bytes() == (root / "index" / name).read_bytes()


def test_messages_that_are_not_visible_yet_are_in_the_copy(tmp_path: Path, target: Path) -> None:
    store = opened(tmp_path / "sync", flush_disk_type="SYNC_FLUSH")
    fill(store, 0, 150)
    assert numbers(store) == []

    report = copied(tmp_path / "sync", target)

    check(target, report)
    copy = opened(target)
    assert numbers(copy) == list(range(150))
    copy.close()
    store.close()


def test_entries_lost_in_a_crash_are_rebuilt(store: MessageStore, root: Path, target: Path) -> None:
    crashed = target.with_name("crashed")
    shutil.copytree(root, crashed)
    # As another broker leaves it: no safe point, and the checkpoint of some time ago.
    (crashed / "pocketmq-checkpoint").unlink(missing_ok=True)
    (crashed / "checkpoint").write_bytes(Checkpoint().encode())
    assert (crashed / "abort").exists()
    for path in sorted((crashed / "consumequeue" / "TopicTest" / "1").iterdir())[2:]:
        path.write_bytes(bytes(QUEUE_FILE))

    report = copied(crashed, target)

    records = check(target, report)
    assert len(records) == COUNT


def test_a_queue_that_lost_earlier_entries_is_reported_and_repaired_when_the_copy_opens(
    store: MessageStore, root: Path, target: Path
) -> None:
    store.close()
    for path in sorted((root / "consumequeue" / "TopicTest" / "0").iterdir())[1:]:
        path.unlink()

    report = copied(root, target)

    (note,) = report.notes
    assert "queue 0 of topic TopicTest lacks entries from message 50 on" in note
    copy = opened(target)
    assert numbers(copy) == list(range(COUNT))
    copy.close()


def test_a_lost_queue_is_reported_and_rebuilt_when_the_copy_opens(
    store: MessageStore, root: Path, target: Path
) -> None:
    store.close()
    shutil.rmtree(root / "consumequeue" / "TopicTest" / "0")
    assert "lacks entries from message 0 on" in copied(root, target).notes[0]
    copy = opened(target)
    assert numbers(copy) == list(range(COUNT))
    copy.close()


def test_retention_may_delete_files_meanwhile(
    store: MessageStore, root: Path, target: Path
) -> None:
    files = sorted((root / "commitlog").iterdir())

    def take(what: str, done: int) -> None:
        if what == "copying the log" and done and files[0].exists():
            for path in files[:3]:
                path.unlink()

    report = copied(root, target, take)

    assert report.begin == 3 * LOG_FILE
    records = check(target, report)
    assert [path.name for path in sorted((target / "commitlog").iterdir())] == [
        path.name for path in files[3 : 3 + len(list((target / "commitlog").iterdir()))]
    ]
    copy = opened(target)
    assert numbers(copy) == [int(record.body[:4]) for record in records]
    copy.close()


def test_a_recreated_topic_has_its_new_messages(
    store: MessageStore, root: Path, target: Path
) -> None:
    fill(store, 0, 30, topic="Again")
    store.delete_topic("Again")
    fill(store, 30, 40, topic="Again")
    copied(root, target)
    copy = opened(target)
    assert numbers(copy, "Again") == list(range(30, 40))
    assert numbers(copy) == list(range(COUNT))
    copy.close()


@pytest.mark.parametrize("step", ["copying queues", "copying the log", "checking the copy"])
def test_a_topic_deleted_meanwhile_is_copied_whole_or_not_at_all(
    store: MessageStore, root: Path, target: Path, step: str
) -> None:
    topics = root / "config" / "topics.json"
    fill(store, 0, 30, topic="Gone")
    topics.parent.mkdir(exist_ok=True)
    topics.write_text('{"topicConfigTable":{"TopicTest":{},"Gone":{"writeQueueNums":2}}}')

    def delete(what: str, done: int) -> None:
        # When some of the queues have been copied.
        if what == step and done and topics.read_bytes().find(b"Gone") > 0:
            topics.write_text('{"topicConfigTable":{"TopicTest":{}}}')
            store.delete_topic("Gone")

    copied(root, target, delete)
    table = json.loads((target / "config" / "topics.json").read_bytes())["topicConfigTable"]
    copy = opened(target)
    assert numbers(copy) == list(range(COUNT))
    whole = step != "copying queues"
    assert table == {"TopicTest": {}} | ({"Gone": {"writeQueueNums": 2}} if whole else {})
    assert numbers(copy, "Gone") == (list(range(30)) if whole else [])
    assert copy.deleted.is_void("Gone", 0) is not whole
    copy.close()


def test_a_store_without_a_message_is_copied(tmp_path: Path, target: Path) -> None:
    opened(tmp_path / "empty").close()
    report = copied(tmp_path / "empty", target)
    assert (report.records, report.begin, report.end) == (0, 0, 0)
    copy = opened(target)
    fill(copy, 0, 5)
    assert numbers(copy) == list(range(5))
    copy.close()


def test_a_log_on_several_disks_is_joined(store: MessageStore, root: Path, target: Path) -> None:
    store.close()
    disks = [target.with_name("disk-0"), target.with_name("disk-1")]
    for number, path in enumerate(sorted((root / "commitlog").iterdir())):
        disks[number % 2].mkdir(exist_ok=True)
        path.rename(disks[number % 2] / path.name)
    (root / "commitlog").rmdir()
    report = copied(root, target, commit_log=",".join(map(str, disks)))
    assert len(check(target, report)) == COUNT


def test_what_lies_before_an_offset_is_copied(
    store: MessageStore, root: Path, target: Path
) -> None:
    records = _positions(StoreView(root))
    border = records[123]
    report = copied(root, target, until=border)
    assert report.end == border
    assert len(check(target, report)) == 123
    inside = copied(root, target.with_name("inside"), until=border + 1)
    assert inside.end == records[124]
    whole = copied(root, target.with_name("whole"), until=store.log.end)
    assert whole.records == COUNT
    copy = opened(target)
    assert numbers(copy) == list(range(123))
    copy.close()


def test_a_copy_may_end_at_the_border_of_files(
    store: MessageStore, root: Path, target: Path
) -> None:
    records = _positions(StoreView(root))
    first = [n for n in range(1, COUNT) if records[n] // LOG_FILE != records[n - 1] // LOG_FILE]
    for count in [n + shift for n in first for shift in (-1, 0, 1)]:
        place = target / str(count)
        target.mkdir(exist_ok=True)
        report = copied(root, place, until=records[count])
        assert len(check(place, report)) == count
        copy = MessageStore(small_config(place))
        opening = copy.open()
        assert (opening.scanned_records, opening.notes) == (1, [])
        fill(copy, count, count + 3)
        assert numbers(copy) == list(range(count + 3))
        copy.close()


def _positions(view: StoreView) -> list[int]:
    found: list[int] = []
    for part in view.log.walk(0, view.log_end().position):
        found += [part.position + start for start in part.starts]  # type: ignore[union-attr] # no damage here
    return found
