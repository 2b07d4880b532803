"""Every captured store, read without a broker, matches its manifest."""

from __future__ import annotations

import hashlib
import json
import os
from bisect import bisect_left
from pathlib import Path
from typing import Any

import pytest

from broker.store.log_view import Damage, LogEnd
from broker.storetools.view import QueueRange, StoreView
from remoting.protocol.disk.files import ENTRY
from remoting.protocol.message.view import RecordView
from tests.support.archives import unpack

STORES = ("clean", "crash", "torn-properties", "torn-body", "clean-5.3.3")
TORN_AT = 23333


@pytest.fixture(params=STORES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def root(name: str, golden: Path, tmp_path: Path) -> Path:
    unpack(golden / "store" / f"{name}.tar.gz", tmp_path)
    return tmp_path / "store"


@pytest.fixture
def manifest(name: str, golden: Path) -> dict[str, Any]:
    return dict(json.loads((golden / "store" / f"{name}.manifest.json").read_text()))


def all_records(view: StoreView) -> list[RecordView]:
    found = []
    for chunk in view.log.walk(view.log.start, view.log_end().position):
        assert not isinstance(chunk, Damage), chunk
        found += [RecordView(chunk.data, start) for start in chunk.starts]
    return found


def described(record: RecordView) -> dict[str, Any]:
    return {
        "commitLogOffset": record.physical_offset,
        "size": record.size,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "tags": record.tags,
        "keys": " ".join(record.keys) or None,
        "storeTimestamp": record.store_timestamp_ms,
        "sysFlag": record.sys_flag,
        "bodyCRC": record.body_crc,
        "crc_ok": record.check_crc(),
        "body_sha256": hashlib.sha256(record.body).hexdigest(),
        "properties": record.properties or None,
        "msgId": record.offset_id,
    }


def test_a_walk_finds_every_message_but_the_torn_one(
    name: str, root: Path, manifest: dict[str, Any]
) -> None:
    wanted = [message for message in manifest["messages"] if message["crc_ok"]]
    found = [described(record) for record in all_records(StoreView(root))]
    assert len(found) == manifest["message_count"] - (name == "torn-body")
    assert found == [{key: message[key] for key in found[0]} for message in wanted]


def test_the_log_ends_where_the_manifest_says(
    name: str, root: Path, manifest: dict[str, Any]
) -> None:
    used = [end for end in manifest["commitlog_end"] if end["write_position"]][-1]
    end = StoreView(root).log_end()
    if name == "torn-body":
        assert end.position == TORN_AT
        assert end.torn == "the lengths in the record at 23333 don't add up to its 199 bytes"
    else:
        assert end == LogEnd(int(used["file"]) + used["write_position"], None)


def test_the_queues_have_the_entries_of_the_manifest(root: Path, manifest: dict[str, Any]) -> None:
    view = StoreView(root)
    names = [f"{topic}/{queue_id}" for topic in view.topics() for queue_id in view.queues(topic)]
    assert sorted(names) == sorted(manifest["consume_queues"])
    for queue_name, wanted in manifest["consume_queues"].items():
        topic, _, queue_id = queue_name.rpartition("/")
        queue = view.queue(topic, int(queue_id))
        assert queue.range() == QueueRange(wanted["first_index"], wanted["count"], 0)
        runs = queue.entries(wanted["first_index"], wanted["count"], max_entries=7)
        found = [list(entry) for run in runs for entry in ENTRY.iter_unpack(run.entries)]
        assert found == wanted["entries_offset_size_tagsCode"]


def test_each_entry_leads_to_its_message(root: Path, manifest: dict[str, Any]) -> None:
    view = StoreView(root)
    for message in manifest["messages"]:
        if message["consume_queue_entry"]:
            record = view.log.record_at(message["commitLogOffset"])
            assert record is not None
            assert record.queue_offset == message["queueOffset"]
            assert record.topic == message["topic"]


def test_a_time_leads_to_the_first_message_stored_then(
    root: Path, manifest: dict[str, Any]
) -> None:
    view = StoreView(root)
    by_queue: dict[tuple[str, int], list[int]] = {}
    for message in manifest["messages"]:
        if message["consume_queue_entry"]:
            times = by_queue.setdefault((message["topic"], message["queueId"]), [])
            times.append(message["storeTimestamp"])
    for (topic, queue_id), times in by_queue.items():
        queue = view.queue(topic, queue_id)
        for time in {*times, times[0] - 1, times[-1] + 1}:
            wanted = next((n for n, t in enumerate(times) if t >= time), len(times))
            assert queue.offset_of_time(time) == wanted


def test_wherever_a_log_is_split_the_parts_have_its_records_once(root: Path) -> None:
    view = StoreView(root)
    end = view.log_end().position
    whole = [record.physical_offset for record in all_records(view)]
    for cut in range(view.log.start - 1, end + 700, 331):
        border = view.log.first_start(cut, end)
        assert bisect_left(whole, border) == bisect_left(whole, cut)
        found = [
            chunk.position + start
            for begin, stop in ((view.log.start, border), (border, end))
            for chunk in view.log.walk(begin, stop, chunk_bytes=3000)
            if not isinstance(chunk, Damage)
            for start in chunk.starts
        ]
        assert found == whole, cut


def test_reading_changes_nothing(root: Path, manifest: dict[str, Any]) -> None:
    before = state(root)
    view = StoreView(root)
    all_records(view)
    view.log_end()
    assert state(root) == before


def test_a_store_may_be_read_on_a_read_only_file_system(
    root: Path, manifest: dict[str, Any]
) -> None:
    for directory, _, names in os.walk(root):
        for file in names:
            Path(directory, file).chmod(0o444)
        Path(directory).chmod(0o555)
    try:
        assert all_records(StoreView(root))
    finally:
        for directory, _, _ in os.walk(root):
            Path(directory).chmod(0o755)


def state(root: Path) -> list[tuple[str, int, int]]:
    paths = sorted(root.rglob("*"))
    return [(str(path), path.stat().st_mtime_ns, path.stat().st_size) for path in paths]
