"""Copies of Apache's stores contain everything that can be read from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.engine import MessageStore, StoreConfig
from broker.storetools.view import StoreView
from tests.support.archives import unpack
from tests.unit.broker.store.copy.copies import check, copied
from tests.unit.broker.store.stores import read_all

STORES = ("clean", "crash", "torn-properties", "torn-body", "clean-5.3.3")


def config(root: Path) -> StoreConfig:
    """Return the configuration that the store's own broker had."""
    log = next((root / "commitlog").iterdir()).stat().st_size
    queue = next((root / "consumequeue").glob("*/*/*")).stat().st_size
    return StoreConfig(
        root=root, mapped_file_size_commit_log=log, mapped_file_size_consume_queue=queue
    )


def readable(root: Path) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    """Return the offsets and bytes of each queue that our broker delivers."""
    store = MessageStore(config(root))
    store.open()
    found = {
        (topic, queue): [
            (record.queue_offset, bytes(record.stored_body))
            for record in read_all(store, topic, queue)
        ]
        for topic in StoreView(root).topics()
        for queue in StoreView(root).queues(topic)
    }
    store.close()
    return {key: records for key, records in found.items() if records}


@pytest.mark.parametrize("name", STORES)
def test_a_copy_has_what_our_broker_finds_in_the_original(
    name: str, golden: Path, tmp_path: Path
) -> None:
    unpack(golden / "store" / f"{name}.tar.gz", tmp_path)
    report = copied(tmp_path / "store", tmp_path / "copy")
    assert report.sound
    check(tmp_path / "copy", report)
    assert readable(tmp_path / "copy") == readable(tmp_path / "store")
