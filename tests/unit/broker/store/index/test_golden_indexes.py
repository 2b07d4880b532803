"""Index files written by Apache RocketMQ are searched, and ours have the same bytes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from broker.store.engine import MessageStore, StoreConfig
from remoting.protocol.message.view import RecordView
from tests.support.archives import unpack

STORES = ("clean", "crash", "torn-properties", "torn-body", "clean-5.3.3")
CLEAN = ("clean", "clean-5.3.3")
FOREVER = 2**62


@pytest.fixture(params=STORES)
def named(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(named: str, golden: Path, tmp_path: Path) -> MessageStore:
    unpack(golden / "store" / f"{named}.tar.gz", tmp_path)
    return MessageStore(
        StoreConfig(
            root=tmp_path / "store",
            mapped_file_size_commit_log=65536,
            mapped_file_size_consume_queue=2000,
            max_hash_slots=100,
            max_index_entries=400,
        )
    )


def manifest_of(golden: Path, name: str) -> dict[str, Any]:
    recovered = golden / "store" / f"{name}.recovered.manifest.json"
    path = recovered if recovered.exists() else golden / "store" / f"{name}.manifest.json"
    return dict(json.loads(path.read_text()))


async def offsets_of(store: MessageStore, topic: str, key: str) -> list[int]:
    """Return the offsets of the messages with a key, without hash collisions."""
    found = await store.index.find(topic, key, max_count=1000, begin_ms=0, end_ms=FOREVER)
    offsets = []
    for offset in found.offsets:
        raw = store.queries.record_at(offset)
        assert raw is not None
        record = RecordView(raw)
        if record.topic == topic and key in {record.unique_id, *record.keys}:
            offsets.append(offset)
    return offsets


def keys_of(manifest: dict[str, Any]) -> dict[tuple[str, str], list[int]]:
    """Return the physical offsets of each topic's keys, newest first."""
    wanted: dict[tuple[str, str], list[int]] = {}
    for message in manifest["messages"]:
        unique = (message["properties"] or {}).get("UNIQ_KEY")
        keys = {unique, *(message["keys"] or "").split(" ")}
        for key in keys - {None, ""}:
            places = wanted.setdefault((message["topic"], key), [])
            places.insert(0, message["commitLogOffset"])
    return wanted


async def check(store: MessageStore, manifest: dict[str, Any]) -> None:
    wanted = keys_of(manifest)
    assert wanted
    for (topic, key), offsets in wanted.items():
        assert await offsets_of(store, topic, key) == offsets, key


async def test_every_key_of_the_manifest_is_found(
    named: str, store: MessageStore, golden: Path
) -> None:
    store.open()
    await check(store, manifest_of(golden, named))
    store.close()


async def test_every_key_is_found_when_the_index_was_lost(
    named: str, store: MessageStore, golden: Path
) -> None:
    shutil.rmtree(store.paths.index, ignore_errors=True)
    store.open()
    await check(store, manifest_of(golden, named))
    store.close()


def contents(store: MessageStore) -> list[bytes]:
    return [path.read_bytes() for path in sorted(store.paths.index.iterdir())]


@pytest.mark.parametrize("named", CLEAN, indirect=True)
def test_a_rebuilt_index_has_the_bytes_of_the_original(store: MessageStore) -> None:
    theirs = contents(store)
    shutil.rmtree(store.paths.index)
    store.open()
    store.close()
    assert contents(store) == theirs


@pytest.mark.parametrize("named", CLEAN, indirect=True)
def test_the_index_of_a_clean_stop_is_left_as_it_is(store: MessageStore) -> None:
    before = contents(store)
    store.open()
    store.close()
    assert contents(store) == before
