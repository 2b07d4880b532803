"""Stores as files, and what a task reads from them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa

from broker.store.engine import MessageStore, StoreConfig
from broker.store.log_view import LogChunk
from broker.storetools.view import StoreView
from spark_connector.schema import STORE_COLUMNS
from spark_connector.source.pushdown import Pushed
from spark_connector.store.options import store_options
from spark_connector.store.planning import Piece, plan
from spark_connector.store.reading import StoreTask, open_view
from tests.support.archives import unpack
from tests.unit.broker.store.stores import message

LOG_FILE = 16 * 1024
QUEUES = 3
TOPICS = ("Orders", "Bills")
ALL = tuple(STORE_COLUMNS.values())


def golden_store(golden: Path, name: str, into: Path) -> Path:
    """A captured store, unpacked."""
    unpack(golden / "store" / f"{name}.tar.gz", into)
    return into / "store"


def manifest_of(golden: Path, name: str) -> dict[str, Any]:
    """Return the store's manifest."""
    return dict(json.loads((golden / "store" / f"{name}.manifest.json").read_text()))


def made_store(root: Path, count: int) -> Path:
    """A stopped store: messages 0, 1, 2 ... over two topics of three queues, tags by number."""
    store = MessageStore(
        StoreConfig(
            root=root, mapped_file_size_commit_log=LOG_FILE, mapped_file_size_consume_queue=1000
        )
    )
    store.open()
    for number in range(count):
        store.put(
            message(
                b"%d" % number + b"." * (number % 90),
                topic=TOPICS[number % 5 == 0],
                queue_id=number % QUEUES,
                tag="even" if number % 2 == 0 else "odd",
            )
        )
    store.close()
    return root


def planned(root: Path, pushed: Pushed | None = None, **given: str) -> list[Piece]:
    """The tasks of a query."""
    options = store_options({"path": str(root)} | given)
    return plan(open_view(options), options, pushed or Pushed())


def table(root: Path, *, pieces: list[Piece] | None = None, **given: str) -> Any:
    """Return what a query reads, as one Arrow table."""
    options = store_options({"path": str(root)} | given)
    task = StoreTask(options, ALL)
    parts = planned(root, None, **given) if pieces is None else pieces
    batches = [batch for piece in parts for batch in task.read(piece)]
    assert all(batch.num_rows for batch in batches)
    return pa.Table.from_batches(batches, pa.schema([(c.name, c.arrow) for c in ALL]))


def rows(root: Path, **given: Any) -> list[dict[str, Any]]:
    """Return the rows as dictionaries, ordered by physical offset."""
    found: list[dict[str, Any]] = table(root, **given).to_pylist()
    return sorted(found, key=lambda row: (row["physicalOffset"] is None, row["physicalOffset"]))


def number_of(row: dict[str, Any]) -> int:
    """Return the number of a row's message in ``made_store``."""
    return int(row["body"].rstrip(b"."))


def places(root: Path) -> list[int]:
    """Return the physical offsets of a store's records."""
    view = StoreView(root)
    found = []
    for chunk in view.log.walk(view.log.start, view.log_end().position):
        if isinstance(chunk, LogChunk):
            found += [chunk.position + start for start in chunk.starts]
    return found


def overwrite(root: Path, position: int, data: bytes) -> None:
    """Damage the log."""
    path = root / "commitlog" / f"{position // LOG_FILE * LOG_FILE:020d}"
    with path.open("r+b") as file:
        file.seek(position % LOG_FILE)
        file.write(data)
