"""Stores as a kill leaves them, and helpers to damage them further."""

from __future__ import annotations

import shutil
from itertools import count
from pathlib import Path
from typing import Any

from broker.store.checkpoint import decode, encode
from broker.store.engine import MessageStore
from broker.store.os_files import Files
from remoting.protocol.message.record import encode_record
from tests.unit.broker.store.stores import LOG_FILE, small_config

_number = count()


def crash(store: MessageStore, *, files: Files | None = None, **changes: Any) -> MessageStore:
    """Open the same files as after a kill, with some settings changed."""
    root = store.paths.root.parent / f"crashed-{next(_number)}"
    shutil.copytree(store.paths.root, root)
    return MessageStore(small_config(root, **changes), files=files)


def forget(path: Path, *sections: str) -> None:
    """Remove sections from a store's own checkpoint, if it has one; without a name all of it."""
    if not sections:
        path.unlink(missing_ok=True)
    elif path.exists():
        content = decode(path.read_bytes())
        path.write_bytes(encode({k: v for k, v in content.items() if k not in sections}))


def log_files(store: MessageStore) -> list[Path]:
    return sorted(store.paths.commit_log.iterdir())


def log_bytes(store: MessageStore) -> bytearray:
    return bytearray(b"".join(path.read_bytes() for path in log_files(store)))


def overwrite(store: MessageStore, position: int, data: bytes) -> None:
    path = store.paths.commit_log / f"{position // LOG_FILE * LOG_FILE:020d}"
    with path.open("r+b") as file:
        file.seek(position % LOG_FILE)
        file.write(data)


def queue_file(store: MessageStore, start: int = 0) -> Path:
    return store.paths.consume_queues / "TopicTest" / "0" / f"{start:020d}"


def put_raw(
    store: MessageStore,
    *,
    queue_offset: int = 0,
    place: int | None = None,
    topic: str = "TopicTest",
    body: bytes = b"raw",
) -> None:
    """Append a record to the log without a queue entry."""
    log = store.log
    at = log.end
    record = encode_record(
        topic=topic,
        body=body,
        born_host=bytes(8),
        store_host=bytes(8),
        queue_offset=queue_offset,
        physical_offset=at if place is None else place,
        store_timestamp_ms=1,
    )
    log.store(log.reserve(len(record)), record)
