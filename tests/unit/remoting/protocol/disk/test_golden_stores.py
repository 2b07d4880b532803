"""Every record, blank, queue entry and index of the captured stores matches its manifest."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from remoting.protocol.disk import files as consume_queue_entry
from remoting.protocol.disk.files import Checkpoint, offset_of
from remoting.protocol.disk.index_file import IndexTable
from remoting.protocol.message.record import Blank, End, FoundRecord, Invalid, examine
from remoting.protocol.message.tags import tags_code
from remoting.protocol.message.view import RecordView
from tests.support.archives import unpack as unpack_archive

NAMES = ["clean", "crash", "torn-properties", "torn-body", "clean-5.3.3"]
COMMIT_LOG_FILE_BYTES = 65536


class Store:
    """An unpacked store and what its manifest says."""

    def __init__(self, root: Path, manifest: dict[str, Any]) -> None:
        self.root = root
        self.manifest = manifest

    def walk(self) -> Iterator[tuple[str, int, Any, bytes]]:
        """File, offset, what is there, and the file's bytes, up to where each file ends."""
        for path in sorted((self.root / "commitlog").iterdir()):
            start, data, position = offset_of(path.name), path.read_bytes(), 0
            assert start is not None
            assert len(data) == COMMIT_LOG_FILE_BYTES
            while True:
                scan = examine(data, position)
                yield path.name, start + position, scan, data
                if not isinstance(scan, FoundRecord):
                    break
                position += scan.size

    def views(self) -> Iterator[tuple[dict[str, Any], RecordView]]:
        """Every whole message of the manifest and the view of it."""
        for message in self.manifest["messages"]:
            offset = message["commitLogOffset"]
            start = offset - offset % COMMIT_LOG_FILE_BYTES
            data = (self.root / "commitlog" / f"{start:020d}").read_bytes()
            if message["crc_ok"]:
                yield message, RecordView(data, offset - start)


@pytest.fixture(scope="module", params=NAMES)
def store(
    request: pytest.FixtureRequest, golden: Path, tmp_path_factory: pytest.TempPathFactory
) -> Store:
    name = request.param
    root = tmp_path_factory.mktemp(name)
    unpack_archive(golden / f"store/{name}.tar.gz", root)
    manifest = json.loads((golden / f"store/{name}.manifest.json").read_text("utf-8"))
    return Store(root / "store", manifest)


def test_examine_finds_exactly_the_messages_of_the_manifest(store: Store) -> None:
    found = [(at, scan.size) for _, at, scan, _ in store.walk() if isinstance(scan, FoundRecord)]
    messages = store.manifest["messages"]
    assert found == [(m["commitLogOffset"], m["size"]) for m in messages if m["crc_ok"]]


def test_a_message_with_a_wrong_crc_ends_the_log(store: Store) -> None:
    invalid = [at for _, at, scan, _ in store.walk() if isinstance(scan, Invalid)]
    assert invalid == [m["commitLogOffset"] for m in store.manifest["messages"] if not m["crc_ok"]]


def test_blank_records_end_the_files(store: Store) -> None:
    blanks = [(f, at, scan.size) for f, at, scan, _ in store.walk() if isinstance(scan, Blank)]
    assert blanks == [(b["file"], b["offset"], b["size"]) for b in store.manifest["blanks"]]


def test_the_log_ends_where_nothing_was_written(store: Store) -> None:
    ends = {f: at - int(f) for f, at, scan, _ in store.walk() if isinstance(scan, End)}
    torn = {f for f, _, scan, _ in store.walk() if isinstance(scan, Invalid)}
    assert ends == {
        end["file"]: end["write_position"]
        for end in store.manifest["commitlog_end"]
        if end["file"] not in torn
    }


def test_every_field_of_every_message_is_the_manifests(store: Store) -> None:
    for message, view in store.views():
        assert {
            "commitLogOffset": view.physical_offset,
            "size": view.size,
            "topic": view.topic,
            "queueId": view.queue_id,
            "queueOffset": view.queue_offset,
            "tags": view.tags,
            "keys": view.properties.get("KEYS"),
            "uniqKey": view.unique_id,
            "bornTimestamp": view.born_timestamp_ms,
            "bornHost": "{}:{}".format(*view.born_host),
            "storeTimestamp": view.store_timestamp_ms,
            "storeHost": "{}:{}".format(*view.store_host),
            "sysFlag": view.sys_flag,
            "flag": view.flag,
            "reconsumeTimes": view.reconsume_times,
            "preparedTransactionOffset": view.prepared_transaction_offset,
            "bodyCRC": view.body_crc,
            "crc_ok": view.check_crc(),
            "stored_body_length": len(view.stored_body),
            "stored_body_sha256": hashlib.sha256(view.stored_body).hexdigest(),
            "properties": view.properties,
            "msgId": view.offset_id,
            "client_msgId": view.message_id,
        }.items() <= message.items()


def test_every_body_inflates_to_the_manifests(store: Store) -> None:
    for message, view in store.views():
        assert len(view.body) == message["body_length"]
        assert hashlib.sha256(view.body).hexdigest() == message["body_sha256"]


def test_consume_queues_hold_the_entries_of_the_manifest(store: Store) -> None:
    for name, queue in store.manifest["consume_queues"].items():
        folder = store.root / "consumequeue" / name
        data = b"".join((folder / file).read_bytes() for file in queue["files"])
        first = queue["first_index"] - int(queue["files"][0]) // consume_queue_entry.ENTRY_BYTES
        entries = list(consume_queue_entry.ENTRY.iter_unpack(data))
        kept = [list(entry) for entry in entries[first : first + queue["count"]]]
        assert kept == queue["entries_offset_size_tagsCode"]


def test_the_tags_code_of_an_entry_is_that_of_its_message(store: Store) -> None:
    for message, view in store.views():
        entry = message["consume_queue_entry"]
        if entry and entry["topic"] != "SCHEDULE_TOPIC_XXXX":
            assert tags_code(view.tags) == entry["tagsCode"]


def test_the_checkpoint_holds_the_times_of_the_manifest(store: Store) -> None:
    expected = store.manifest["checkpoint"]
    data = (store.root / "checkpoint").read_bytes()
    assert len(data) == expected["file_size"]
    assert Checkpoint.decode(data) == Checkpoint(
        expected["physicMsgTimestamp"],
        expected["logicsMsgTimestamp"],
        expected["indexMsgTimestamp"],
    )


def test_index_files_hold_the_header_of_the_manifest(store: Store) -> None:
    for index in store.manifest["index_files"]:
        table = IndexTable(index_data(store, index), slots=100, entries=400)
        assert table.header == (
            index["beginTimestamp"],
            index["endTimestamp"],
            index["beginPhyOffset"],
            index["endPhyOffset"],
            index["hashSlotCount"],
            index["indexCount"],
        )


def index_data(store: Store, index: dict[str, Any]) -> bytearray:
    return bytearray((store.root / "index" / index["name"]).read_bytes())


def test_putting_the_keys_again_makes_the_same_index_file(store: Store) -> None:
    by_offset = {m["commitLogOffset"]: m for m in store.manifest["messages"]}
    for index in store.manifest["index_files"]:
        stored = index_data(store, index)
        rebuilt = bytearray(len(stored))
        table = IndexTable(rebuilt, slots=100, entries=400)
        offsets = [entry[2] for entry in index["entries_n_keyHash_phyOffset_seconds_prev"]]
        for offset, key in keys_in_order(by_offset, offsets):
            assert table.put(key, offset, by_offset[offset]["storeTimestamp"])
        assert rebuilt == stored


def keys_in_order(by_offset: dict[int, Any], offsets: list[int]) -> Iterator[tuple[int, str]]:
    """The keys behind the entries of an index: unique id first, then the keys of KEYS."""
    remaining: list[str] = []
    for previous, offset in pairwise([-1, *offsets]):
        if offset != previous:
            message = by_offset[offset]
            keys = [message["uniqKey"], *(message["keys"] or "").split(" ")]
            remaining = [f"{message['topic']}#{key}" for key in keys if key]
        yield offset, remaining.pop(0)
