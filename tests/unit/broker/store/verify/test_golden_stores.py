"""Apache's stores, intact, crashed or torn, cause no false alarm."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.storetools.verify.overview import overview
from tests.support.archives import unpack
from tests.unit.broker.store.verify.damaged import both, damage_in


@pytest.mark.parametrize(
    ("name", "records", "keys", "notes"),
    [
        ("clean", 362, 729, {}),
        ("clean-5.3.3", 20, 40, {}),
        ("crash", 118, 236, {"abort": 1, "entries-to-come": 3}),
        ("torn-body", 117, 234, {"abort": 1, "entries-to-come": 2, "torn-tail": 1}),
        ("torn-properties", 118, 236, {"abort": 1, "entries-to-come": 4}),
    ],
)
def test_a_captured_store_is_intact(
    golden: Path, tmp_path: Path, name: str, records: int, keys: int, notes: dict[str, int]
) -> None:
    unpack(golden / "store" / f"{name}.tar.gz", tmp_path)
    root = tmp_path / "store"
    found = both(root)
    assert damage_in(found, root) == []
    assert found.findings.kinds == notes
    assert (found.records, found.keys) == (records, keys)
    if found.clean:
        assert (found.entries, found.index_entries) == (records, keys)


def test_the_overview_shows_what_is_in_a_captured_store(golden: Path, tmp_path: Path) -> None:
    unpack(golden / "store" / "clean.tar.gz", tmp_path)
    found = overview(tmp_path / "store")
    assert found.writer == "Apache RocketMQ 4"
    assert (found.begin, found.end, found.log_files, found.log_bytes) == (0, 250195, 4, 250195)
    assert found.first_ms == 1795213008462
    assert found.last_ms == 1795213025615
    assert not found.running
    assert not found.abort
    topics = {row.topic: row for row in found.topics}
    one = topics["OneQueue"]
    assert (one.queues, one.min_offset, one.max_offset, one.messages) == (1, 0, 230, 230)
    assert {(row.group, row.topic, row.lag) for row in found.groups} >= {
        ("cg_pull", "OneQueue", 80)
    }
    assert [row.keys for row in found.index_files] == [399, 330]
    unpack(golden / "store" / "clean-5.3.3.tar.gz", tmp_path / "five")
    assert overview(tmp_path / "five" / "store").writer == "Apache RocketMQ 5"
