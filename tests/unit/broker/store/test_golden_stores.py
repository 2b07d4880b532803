"""Stores written by Apache RocketMQ are opened, recovered and read as it would read them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.store.engine import GetStatus, MessageStore, StoreConfig
from remoting.protocol.disk.files import ENTRY
from remoting.protocol.message.view import RecordView, iter_records
from tests.support.archives import unpack as unpack_archive
from tests.unit.broker.store.stores import message

LOG_FILE = 65536
QUEUE_FILE = 2000
STORES = ("clean", "crash", "torn-properties", "torn-body", "clean-5.3.3")

Unpack = Callable[[str], MessageStore]


@pytest.fixture
def unpack(golden: Path, tmp_path: Path) -> Unpack:
    def unpacked(name: str) -> MessageStore:
        unpack_archive(golden / "store" / f"{name}.tar.gz", tmp_path)
        return MessageStore(
            StoreConfig(
                root=tmp_path / "store",
                mapped_file_size_commit_log=LOG_FILE,
                mapped_file_size_consume_queue=QUEUE_FILE,
            )
        )

    return unpacked


def manifest_of(golden: Path, name: str) -> dict[str, Any]:
    recovered = golden / "store" / f"{name}.recovered.manifest.json"
    path = recovered if recovered.exists() else golden / "store" / f"{name}.manifest.json"
    return dict(json.loads(path.read_text()))


def host_text(host: tuple[str, int]) -> str:
    return f"{host[0]}:{host[1]}"


def described(record: RecordView) -> dict[str, Any]:
    """Return a record in the form of a manifest."""
    return {
        "commitLogOffset": record.physical_offset,
        "size": record.size,
        "topic": record.topic,
        "queueId": record.queue_id,
        "queueOffset": record.queue_offset,
        "tags": record.tags,
        "keys": " ".join(record.keys) or None,
        "bornTimestamp": record.born_timestamp_ms,
        "bornHost": host_text(record.born_host),
        "storeTimestamp": record.store_timestamp_ms,
        "storeHost": host_text(record.store_host),
        "sysFlag": record.sys_flag,
        "flag": record.flag,
        "reconsumeTimes": record.reconsume_times,
        "preparedTransactionOffset": record.prepared_transaction_offset,
        "bodyCRC": record.body_crc,
        "crc_ok": record.check_crc(),
        "stored_body_sha256": hashlib.sha256(record.stored_body).hexdigest(),
        "body_sha256": hashlib.sha256(record.body).hexdigest(),
        "properties": record.properties or None,
        "msgId": record.offset_id,
    }


def pulled(store: MessageStore, queue: str) -> list[RecordView]:
    topic, _, queue_id = queue.rpartition("/")
    found: list[RecordView] = []
    offset = 0
    while True:
        result = store.get(topic, int(queue_id), offset, 32)
        if result.status is not GetStatus.FOUND:
            assert result.status in {GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE}
            return found
        for run in result.records:
            found.extend(iter_records(run))
        offset = result.next_offset


def entries(store: MessageStore, queue: str) -> list[list[int]]:
    directory = store.paths.consume_queues / queue
    data = b"".join(path.read_bytes() for path in sorted(directory.iterdir()))
    return [list(entry) for entry in ENTRY.iter_unpack(data) if entry[1] > 0]


def check(store: MessageStore, manifest: dict[str, Any]) -> None:
    for queue, expected in manifest["consume_queues"].items():
        assert entries(store, queue) == expected["entries_offset_size_tagsCode"], queue
        topic, _, queue_id = queue.rpartition("/")
        assert store.queries.min_offset(topic, int(queue_id)) == expected["first_index"]
        assert store.queries.max_offset(topic, int(queue_id)) == expected["count"]
    wanted = {
        fields["commitLogOffset"]: fields
        for fields in manifest["messages"]
        if fields["consume_queue_entry"]
    }
    seen = {
        record.physical_offset: described(record)
        for queue in manifest["consume_queues"]
        for record in pulled(store, queue)
    }
    assert seen.keys() == wanted.keys()
    for offset, fields in seen.items():
        assert fields == {name: wanted[offset][name] for name in fields}


@pytest.mark.parametrize("name", STORES)
def test_every_message_of_the_manifest_is_pulled_with_equal_fields(
    name: str, golden: Path, unpack: Unpack
) -> None:
    store = unpack(name)
    report = store.open()
    assert report.clean is name.startswith("clean")
    check(store, manifest_of(golden, name))
    store.close()


@pytest.mark.parametrize("name", STORES)
def test_nothing_changes_by_closing_and_opening_again(
    name: str, golden: Path, unpack: Unpack
) -> None:
    store = unpack(name)
    store.open()
    store.close()
    report = store.open()
    assert report.clean
    assert (report.cut_bytes, report.cut_entries, report.rebuilt_entries) == (0, 0, 0)
    check(store, manifest_of(golden, name))
    store.close()


@pytest.mark.parametrize("name", STORES)
def test_lost_queues_are_rebuilt_from_the_log(name: str, golden: Path, unpack: Unpack) -> None:
    store = unpack(name)
    shutil.rmtree(store.paths.consume_queues)
    store.paths.abort.touch()
    store.open()
    check(store, manifest_of(golden, name))
    store.close()


def test_queues_lost_after_a_clean_stop_are_rebuilt_too(golden: Path, unpack: Unpack) -> None:
    store = unpack("clean")
    shutil.rmtree(store.paths.consume_queues)
    report = store.open()
    assert report.rebuilt_entries == 362
    check(store, manifest_of(golden, "clean"))
    store.close()


@pytest.mark.parametrize("name", ["crash", "torn-properties", "torn-body"])
def test_recovery_leaves_the_files_that_the_real_broker_left(
    name: str, golden: Path, unpack: Unpack
) -> None:
    store = unpack(name)
    store.open()
    store.close()
    manifest = manifest_of(golden, name)
    names = sorted(path.name for path in store.paths.commit_log.iterdir())
    assert names == [end["file"] for end in manifest["commitlog_end"]]
    assert store.paths.abort.exists() is manifest["abort_file"]


def test_a_torn_message_leaves_no_byte_behind_the_end(unpack: Unpack) -> None:
    store = unpack("torn-body")
    report = store.open()
    assert report.end_offset == 23333
    # The second half of the body, and all that followed, was zero already.
    assert report.cut_bytes == 23425 - 23333
    store.close()
    (file,) = store.paths.commit_log.iterdir()
    assert not any(file.read_bytes()[23333:])


@pytest.mark.parametrize("sector", range(23532 // 512 + 1))
def test_a_store_torn_at_a_sector_serves_what_precedes_it_and_nothing_damaged(
    sector: int, golden: Path, unpack: Unpack
) -> None:
    # The real broker would serve a message that has lost nothing but properties (torn-properties).
    torn_at = sector * 512
    store = unpack("crash")
    with (store.paths.commit_log / "00000000000000000000").open("r+b") as file:
        file.seek(torn_at)
        file.write(bytes(LOG_FILE - torn_at))
    report = store.open()
    manifest = manifest_of(golden, "crash")
    whole = [m for m in manifest["messages"] if m["commitLogOffset"] + m["size"] <= torn_at]
    assert report.end_offset == sum(m["size"] for m in whole)
    seen = [
        described(record) for queue in manifest["consume_queues"] for record in pulled(store, queue)
    ]
    seen.sort(key=lambda fields: int(fields["commitLogOffset"]))
    assert seen == [
        {name: m[name] for name in fields} for fields, m in zip(seen, whole, strict=True)
    ]
    store.close()


def test_new_messages_continue_where_apaches_broker_stopped(golden: Path, unpack: Unpack) -> None:
    store = unpack("clean")
    store.open()
    end = manifest_of(golden, "clean")["commitlog_end"][-1]
    result = store.put(message(topic="OneQueue"))
    assert result.physical_offset == int(end["file"]) + end["write_position"]
    assert result.queue_offset == 230
    assert len(pulled(store, "OneQueue/0")) == 231
    store.close()
