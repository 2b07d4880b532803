"""Scanning many records at once equals scanning them one by one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.store.config import DEFAULT_DELAY_LEVELS_MS
from broker.store.engine import MessageStore
from broker.store.limits import StoreLimits
from broker.store.log_walk import LogRecord, LogWalk, Stretch
from broker.store.mapped_file import MappedFile, MappedFiles
from broker.store.os_files import Files
from broker.store.redispatch import entry_of
from remoting.protocol import core
from remoting.protocol.disk.files import ENTRY, name_of
from remoting.protocol.message.record import (
    MAGIC_V2,
    TRANSACTION_COMMIT,
    TRANSACTION_PREPARED,
    TRANSACTION_ROLLBACK,
    blank,
    encode_record,
    host_bytes,
)
from tests.support.core import LACKING
from tests.support.sizes import size
from tests.unit.broker.store.crashes import crash
from tests.unit.broker.store.stores import bodies, message, opened, small_config

if LACKING:
    pytest.skip(LACKING, allow_module_level=True)

FILE_BYTES = 32 * 1024


@pytest.fixture(autouse=True)
def _compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(core, "KIND", "compiled")


HOST, HOST_V6 = host_bytes("10.9.8.7", 10911), host_bytes("fe80::1", 10911)
SYNCED_MS = 1_700_000_000_000

SHAPES: list[dict[str, Any]] = [
    *[{}] * 6,
    {"topic": "Other", "queue_id": 3},
    {"body": b"longer " * 90},
    {"born_host": HOST_V6},
    {"magic": MAGIC_V2},
    {"sys_flag": TRANSACTION_PREPARED},
    {"sys_flag": TRANSACTION_PREPARED, "queue_offset": 1 << 40},
    {"sys_flag": TRANSACTION_ROLLBACK},
    {"sys_flag": TRANSACTION_COMMIT},
    {"topic": "SCHEDULE_TOPIC_XXXX", "properties": b"DELAY\x013\x02TAGS\x01t"},
    {"topic": "not a topic"},
    {"queue_id": -1},
    {"queue_offset": -1},
    {"queue_offset": 1 << 40},
    {"properties": b""},
    {"properties": b"TAGS\x01" + bytes(600)},
    {"properties": bytes(20)},
    {"topic": "T\0picTest"},
    {"topic": b"caf\xe9"},
    {"topic": "t" * 200, "magic": MAGIC_V2},
    {"store_host": HOST_V6},
    {"properties": b"TAGS\x01caf\xe9\xff"},
    {"properties": "TAGS\x01\U0001f600ü".encode()},
    {"topic": "SCHEDULE_TOPIC_XXXX", "properties": b"DELAY\x01x"},
    {"store_timestamp_ms": -1},
]


class Damage(NamedTuple):
    """Bytes put somewhere."""

    place: float
    data: bytes


class Found(NamedTuple):
    """The result of a scan."""

    entries: dict[tuple[str, int], list[tuple[int, bytes]]]
    end: int
    last: int
    last_store_ms: int
    records: int
    damaged: int


def log_of(shapes: Iterable[dict[str, Any]], damage: Iterable[Damage]) -> list[bytearray]:
    """Return log files with records of these shapes, and damage."""
    files = [bytearray()]
    for number, shape in enumerate(shapes):
        values: dict[str, Any] = {
            "topic": "TopicTest",
            "body": b"%d" % (number % 10),
            "properties": b"UNIQ_KEY\x01%032X\x02TAGS\x01t%d" % (number, number % 3),
            "born_host": HOST,
            "store_host": HOST,
            "queue_offset": number // 2 if number % 7 else number,
            "physical_offset": (len(files) - 1) * FILE_BYTES + len(files[-1]),
            "store_timestamp_ms": SYNCED_MS - 50 + number,
        }
        record = encode_record(**(values | shape))
        if len(files[-1]) + len(record) + 8 > FILE_BYTES:
            files[-1] += blank(FILE_BYTES - len(files[-1]))
            files.append(bytearray())
            values["physical_offset"] = (len(files) - 1) * FILE_BYTES
            record = encode_record(**(values | shape))
        files[-1] += record
    length = sum(map(len, files))
    for place, data in damage:
        index, at = divmod(int(place * length), FILE_BYTES)
        if index < len(files):
            files[index][at : at + len(data)] = data
    return [file[:FILE_BYTES].ljust(FILE_BYTES, b"\0") for file in files]


def mapped(root: Path, files: Iterable[bytearray]) -> list[MappedFile]:
    found = []
    maps = MappedFiles(16)
    for index, data in enumerate(files):
        path = root / name_of(index * FILE_BYTES)
        path.write_bytes(data)
        start = index * FILE_BYTES
        found.append(MappedFile(Files(), maps, path, start, FILE_BYTES, used=FILE_BYTES))
    return found


def walked(files: list[MappedFile], *, by_stretch: bool, **synced: Any) -> Found:
    walk = LogWalk(
        files,
        limits=SHORT_STRETCHES,
        check_crc=True,
        **synced,
        levels_ms=DEFAULT_DELAY_LEVELS_MS if by_stretch else None,
    )
    entries: dict[tuple[str, int], list[tuple[int, bytes]]] = {}
    for key, offset, packed in entries_of(walk.sweep()):
        entries.setdefault(key, []).append((offset, packed))
    return Found(entries, walk.end, walk.last, walk.last_store_ms, walk.records, walk.damaged)


def entries_of(
    found: Iterable[LogRecord | Stretch],
) -> Iterator[tuple[tuple[str, int], int, bytes]]:
    for one in found:
        if isinstance(one, Stretch):
            for key, first, packed in one.runs:
                for number in range(len(packed) // ENTRY.size):
                    at = number * ENTRY.size
                    yield key, first + number, bytes(packed[at : at + ENTRY.size])
        elif (entry := entry_of(one, DEFAULT_DELAY_LEVELS_MS)) is not None:
            packed = ENTRY.pack(entry.physical_offset, entry.size, entry.tags_code)
            yield (entry.topic, entry.queue_id), entry.queue_offset, packed


SHORT_STRETCHES = StoreLimits(alone_bytes=0, stretch_bytes=4096)


@settings(max_examples=size(test=80, ci=300, soak=20_000))
@given(
    shapes=st.lists(st.sampled_from(SHAPES) | st.sampled_from(SHAPES[:8]), max_size=300),
    damage=st.lists(
        st.builds(
            Damage,
            st.floats(0, 1, exclude_max=True),
            st.binary(min_size=1, max_size=8) | st.sampled_from([512, 1024]).map(bytes),
        ),
        max_size=3,
    ),
    synced_end=st.none() | st.integers(0, 3 * FILE_BYTES),
)
def test_a_scan_of_many_records_finds_what_a_scan_record_by_record_does(
    shapes: list[dict[str, Any]], damage: list[Damage], synced_end: int | None
) -> None:
    synced = {"synced_ms": SYNCED_MS, "synced_end": synced_end}
    with tempfile.TemporaryDirectory() as directory:
        files = mapped(Path(directory), log_of(shapes, damage))
        together = walked(files, by_stretch=True, **synced)
        assert together == walked(files, by_stretch=False, **synced)


def test_intact_records_are_scanned_together(tmp_path: Path) -> None:
    files = mapped(tmp_path, log_of([{}] * 400, []))
    walk = LogWalk(
        files,
        limits=SHORT_STRETCHES,
        check_crc=True,
        synced_ms=SYNCED_MS,
        levels_ms=DEFAULT_DELAY_LEVELS_MS,
    )
    found = list(walk.sweep())
    together = sum(one.records for one in found if isinstance(one, Stretch))
    assert walk.records == 400
    assert together > 380


@pytest.mark.parametrize("lost", ["queues", "safe point", "nothing"])
def test_queues_are_rebuilt_from_many_records_at_once(tmp_path: Path, lost: str) -> None:
    store = opened(tmp_path / "store")
    for number in range(900):
        store.put(message(b"%04d" % number, queue_id=number % 3, tag="abc"[number % 3]))
    found = crash(store, limits=SHORT_STRETCHES)
    if lost == "queues":
        for file in found.paths.consume_queues.rglob("0*"):
            if file.is_file():
                file.unlink()
    elif lost == "safe point":
        found.paths.own_checkpoint.unlink()
    report = found.open()
    assert (report.scanned_records, report.end_offset) == (900, store.log.end)
    assert report.rebuilt_entries == (900 if lost == "queues" else 0)
    for queue_id in range(3):
        expected = [b"%04d" % number for number in range(900) if number % 3 == queue_id]
        assert bodies(found, queue_id=queue_id) == expected
    found.close()
    store.close()


def test_without_the_crc_check_records_are_scanned_one_by_one(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    for number in range(400):
        store.put(message(b"%04d" % number))
    root = crash(store).paths.root
    (root / "commitlog" / name_of(0)).open("r+b").close()
    with (root / "commitlog" / name_of(0)).open("r+b") as log:
        log.seek(90)
        log.write(b"X")
    found = MessageStore(small_config(root, check_crc_on_recover=False))
    assert found.open().scanned_records == 400
    found.close()
    store.close()
