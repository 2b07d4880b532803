"""Stores of one topic, and what a reader without the broker finds in them."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from broker.store.engine import MessageStore
from broker.store.log_view import Damage
from broker.storetools.view import StoreView
from remoting.protocol.disk.files import Checkpoint
from remoting.protocol.errors import RecordError
from remoting.protocol.message.view import RecordView
from tests.unit.broker.store.stores import LOG_FILE, message, opened

COUNT = 400
BODY = bytes(range(100))


def filled(root: Path) -> MessageStore:
    """Four log files and four queue files, still open."""
    store = opened(root)
    for number in range(COUNT):
        store.put(message(BODY + b"%03d" % number, queue_id=number % 2))
    store.flush()
    return store


def copied(store: MessageStore) -> Path:
    """A copy of the files that no store has open."""
    copy = store.paths.root.parent / "copy"
    shutil.copytree(store.paths.root, copy)
    return copy


def found_by(view: StoreView, end: int | None = None) -> tuple[list[RecordView], list[Damage]]:
    records: list[RecordView] = []
    damage = []
    stop = view.log_end().position if end is None else end
    for found in view.log.walk(view.log.start, stop):
        if isinstance(found, Damage):
            damage.append(found)
        else:
            for start in found.starts:
                # Lengths within a record are the decoder's business.
                with contextlib.suppress(RecordError):
                    records.append(RecordView(found.data, start))
    return records, damage


def numbers(records: list[RecordView]) -> list[int]:
    return [int(record.body[-3:]) for record in records]


def positions_of(root: Path) -> list[int]:
    return [record.physical_offset for record in found_by(StoreView(root))[0]]


def overwrite(root: Path, position: int, data: bytes) -> None:
    with (root / "commitlog" / f"{position // LOG_FILE * LOG_FILE:020d}").open("r+b") as file:
        file.seek(position % LOG_FILE)
        file.write(data)


def unsynced(root: Path) -> None:
    (root / "checkpoint").write_bytes(Checkpoint().encode())
