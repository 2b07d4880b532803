"""Stores with small index files, messages with keys, and searches."""

from __future__ import annotations

from typing import Any

from broker.store.engine import MessageStore, PendingMessage
from broker.store.results import PutStatus
from remoting.protocol.message.view import RecordView
from tests.unit.broker.store.crashes import forget
from tests.unit.broker.store.stores import message

SLOTS, ENTRIES = 50, 40
SMALL = {"max_hash_slots": SLOTS, "max_index_entries": ENTRIES}
FOREVER = 2**62


def keyed(key: str, **more: Any) -> PendingMessage:
    return message(
        key.encode(), properties=f"KEYS\x01{key}\x02UNIQ_KEY\x01U-{key}".encode(), **more
    )


def fill(store: MessageStore, numbers: range) -> None:
    for number in numbers:
        assert store.put(keyed(f"k{number}")).status is PutStatus.OK


async def find(store: MessageStore, key: str, **more: Any) -> list[bytes]:
    """Bodies of the messages with a key, newest first."""
    asked = {"max_count": 100, "begin_ms": 0, "end_ms": FOREVER} | more
    found = await store.index.find("TopicTest", key, **asked)
    bodies = []
    for offset in found.offsets:
        raw = store.queries.record_at(offset)
        if raw is not None and key in {(record := RecordView(raw)).unique_id, *record.keys}:
            bodies.append(record.body)
    return bodies


async def check(store: MessageStore, numbers: range) -> None:
    for number in numbers:
        assert await find(store, f"k{number}") == [b"k%d" % number]
        assert await find(store, f"U-k{number}") == [b"k%d" % number]


def index_files(store: MessageStore) -> list[str]:
    return sorted(path.name for path in store.paths.index.iterdir())


def reopen(store: MessageStore, *, crash: bool = False) -> MessageStore:
    if crash:
        flushed = store.flush()
        assert flushed
    store.close()
    if crash:
        store.paths.abort.touch()
        forget(store.paths.own_checkpoint, "index")
    store.open()
    return store
