"""Every kind of damage is found at its position, and repaired where possible."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from broker.storetools.verify.check import CheckOptions, check
from broker.storetools.verify.repair import repair
from tests.support.archives import unpack
from tests.unit.broker.store.verify.damaged import (
    FoundDamage,
    both,
    damage_in,
    files_of,
    flip,
    run_repair,
)

LOG = "commitlog/00000000000000000000"
LOG_2 = "commitlog/00000000000000065536"
LOG_3 = "commitlog/00000000000000131072"
LAST_LOG = "commitlog/00000000000000196608"
QUEUE = "consumequeue/OneQueue/0/00000000000000000000"
INDEX = "index/20261120221648490"
INDEX_2 = "index/20261120221648866"
ENTRIES_AT = 40 + 4 * 100

Harm = Callable[[Path], object]


def bit(name: str, at: int) -> Harm:
    return lambda root: flip(root / name, at)


def gone(name: str) -> Harm:
    return lambda root: (root / name).unlink()


def cut(name: str, size: int) -> Harm:
    return lambda root: os.truncate(root / name, size)


def zeros(name: str, begin: int, length: int) -> Harm:
    def harm(root: Path) -> None:
        with (root / name).open("r+b") as file:
            file.seek(begin)
            file.write(bytes(length))

    return harm


def swapped(root: Path) -> None:
    first, second = (root / LOG).read_bytes(), (root / LOG_2).read_bytes()
    (root / LOG).write_bytes(second)
    (root / LOG_2).write_bytes(first)


def queue_gone(root: Path) -> None:
    shutil.rmtree(root / "consumequeue/OneQueue")


def ahead(root: Path) -> None:
    flip(root / "checkpoint", 1)


@pytest.fixture
def root(golden: Path, tmp_path: Path) -> Path:
    unpack(golden / "store" / "clean.tar.gz", tmp_path)
    return tmp_path / "store"


LOST: list[tuple[str, Harm, list[FoundDamage]]] = [
    ("body", bit(LOG, 95), [("damage", "record", LOG, 0)]),
    ("size", bit(LOG, 3), [("damage", "log", LOG, 0)]),
    ("magic", bit(LOG, 4), [("damage", "log", LOG, 0)]),
    ("its own place", bit(LOG, 35), [("damage", "log", LOG, 0)]),
    ("an impossible number", bit(LOG, 27), [("damage", "record", LOG, 0)]),
    ("the topic's length", bit(LOG, 100), [("damage", "log", LOG, 0)]),
    ("a page of zeros", zeros(LOG, 4096, 4096), [("damage", "log", LOG, 4051)]),
    ("a file gone", gone(LOG_2), [("damage", "file-missing", LOG_2, 65536)]),
    ("the last file gone", gone(LAST_LOG), [("damage", "log-short", LOG_3, 196608)]),
    ("a file cut", cut(LOG, 30000), [("damage", "file-size", LOG, None)]),
    ("the last file cut", cut(LAST_LOG, 30000), [("damage", "log", LAST_LOG, 196608)]),
    ("two files swapped", swapped, [("damage", "log", LOG, 0), ("damage", "log", LOG_2, 65536)]),
    (
        "a file twice",
        lambda root: shutil.copy(root / LOG, root / LOG_2),
        [("damage", "log", LOG_2, 65536)],
    ),
]

DERIVED: list[tuple[str, Harm, list[FoundDamage]]] = [
    ("an entry's place", bit(QUEUE, 407), [("derived", "entry-place", QUEUE, 400)]),
    ("an entry's size", bit(QUEUE, 411), [("derived", "entry-size", QUEUE, 400)]),
    ("an entry's tag", bit(QUEUE, 419), [("derived", "entry-tags", QUEUE, 400)]),
    ("zeros in a queue", zeros(QUEUE, 0, 2000), [("derived", "entry-missing", QUEUE, 0)]),
    ("a queue file gone", gone(QUEUE), [("derived", "entry-missing", QUEUE, 0)]),
    (
        "a queue gone",
        queue_gone,
        [("derived", "queue-missing", "consumequeue/OneQueue/0", None)],
    ),
    (
        "an entry too many",
        bit("consumequeue/OneQueue/0/00000000000000004000", 20 * 30 + 11),
        [
            (
                "derived",
                "entry-without-message",
                "consumequeue/OneQueue/0/00000000000000004000",
                600,
            )
        ],
    ),
    ("a slot", bit(INDEX, 43), [("derived", "index-slot", INDEX, 40)]),
    ("an index entry's place", bit(INDEX, 548), [("derived", "index-entry", INDEX, 540)]),
    ("an index entry's time", bit(INDEX, 554), [("derived", "index-time", INDEX, 540)]),
    ("an index entry's chain", bit(INDEX, 558), [("derived", "index-chain", INDEX, 540)]),
    ("the index's begin", bit(INDEX, 3), [("derived", "index-header", INDEX, 0)]),
    ("the index's end", bit(INDEX, 15), [("derived", "index-header", INDEX, 0)]),
    ("the slots in use", bit(INDEX, 33), [("derived", "index-header", INDEX, 0)]),
    ("an index file gone", gone(INDEX), [("derived", "index-missing", "index", None)]),
    ("the last index file gone", gone(INDEX_2), [("derived", "index-missing", "index", None)]),
    ("no checkpoint", gone("checkpoint"), [("derived", "checkpoint", "checkpoint", None)]),
    ("a checkpoint ahead", ahead, [("derived", "checkpoint", "checkpoint", 0)]),
    ("a checkpoint cut", cut("checkpoint", 20), [("derived", "checkpoint", "checkpoint", None)]),
]


@pytest.mark.parametrize(("harm", "wanted"), [row[1:] for row in LOST], ids=[r[0] for r in LOST])
def test_damage_of_the_log_is_found_and_left_alone(
    root: Path, harm: Harm, wanted: list[FoundDamage]
) -> None:
    harm(root)
    before = files_of(root)
    assert damage_in(both(root), root) == wanted
    repaired = run_repair(root)
    assert repaired.done == []
    assert repaired.moved is None
    assert files_of(root) == before


@pytest.mark.parametrize(
    ("harm", "wanted"), [row[1:] for row in DERIVED], ids=[r[0] for r in DERIVED]
)
@pytest.mark.parametrize("plain", [False, True], ids=["compiled", "plain"])
def test_damage_of_derived_files_is_found_and_repaired(
    root: Path, harm: Harm, wanted: list[FoundDamage], *, plain: bool
) -> None:
    before = files_of(root)
    harm(root)
    assert damage_in(both(root), root) == wanted
    repaired = run_repair(root, plain=plain)
    assert repaired.done
    assert damage_in(repaired.after, root) == []
    assert damage_in(check(root, CheckOptions(plain=not plain)), root) == []
    after = files_of(root)
    for name, content in before.items():
        if name.startswith(("commitlog", "config", "consumequeue")) and harm is not TOO_MANY:
            assert after[name] == content, name


TOO_MANY = DERIVED[6][1]


def test_an_altered_topic_is_distinguished_from_a_lost_message(root: Path) -> None:
    flip(root / LOG, 101)
    found = both(root)
    assert ("damage", "record-queue", LOG, 0) in damage_in(found, root)
    assert found.bad_queues == frozenset()


def test_an_altered_tag_is_found_by_its_entry(root: Path) -> None:
    flip(root / LOG, 206)
    place = "consumequeue/PlainTopic/0/00000000000000000000"
    assert damage_in(both(root), root) == [("derived", "entry-tags", place, 0)]


def test_a_message_whose_offset_contradicts_its_neighbours_is_damaged(root: Path) -> None:
    # Message 10 of the queue; only its neighbours reveal its offset.
    (position,) = [
        int.from_bytes((root / QUEUE).read_bytes()[200:208], "big"),
    ]
    flip(root / LOG, position + 27, 4)
    assert damage_in(both(root), root) == [("damage", "record-number", LOG, position)]
    assert run_repair(root).done == []


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json", "queueLocks.json"])
@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_a_damaged_table_is_damage_even_if_a_start_would_take_its_backup(
    root: Path, name: str, text: str
) -> None:
    path = root / "config" / name
    backup = path.with_name(f"{name}.bak")
    backup.write_text("{}")
    path.unlink(missing_ok=True)
    found = check(root, CheckOptions())
    assert damage_in(found, root) == []
    assert found.findings.kinds["table-backup"] == 1
    path.write_text(text)
    found = check(root, CheckOptions())
    assert damage_in(found, root) == [("damage", "table", f"config/{name}", None)]
    backup.write_text(text)
    found = check(root, CheckOptions())
    assert len(damage_in(found, root)) == 2


def test_a_damaged_backup_is_moved_away_by_a_repair(root: Path) -> None:
    backup = root / "config" / "topics.json.bak"
    backup.write_text("{")
    wanted = [("derived", "small-file", "config/topics.json.bak", None)]
    assert damage_in(check(root, CheckOptions()), root) == wanted
    assert run_repair(root).done == ["moved config/topics.json.bak away"]
    assert damage_in(check(root, CheckOptions()), root) == []


def test_offsets_beyond_a_queue_and_lost_offsets_are_noted(root: Path) -> None:
    path = root / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"PlainTopic@g":{0:5000,1:2}}}')
    found = check(root, CheckOptions())
    assert found.findings.kinds["offset-beyond"] == 1
    path.unlink()
    path.with_name("consumerOffset.json.bak").unlink()
    found = check(root, CheckOptions())
    assert found.findings.kinds == {"no-offsets": 1}
    assert found.findings.is_sound


def test_findings_above_the_limit_are_only_counted(root: Path) -> None:
    zeros(INDEX, ENTRIES_AT + 200, 400)(root)
    found = check(root, CheckOptions(max_shown=5))
    assert len(found.findings.shown) == 5
    assert found.findings.left_out > 10
    # A repair needs these, which are found last.
    (root / "config" / "deliveryProgress").write_bytes(b"damaged")
    options = CheckOptions(max_shown=5)
    assert "moved config/deliveryProgress away" in repair(root, options, lambda _: None).done
    assert check(root, options).findings.shown == []


def test_files_may_be_walked_by_several_processes(root: Path) -> None:
    flip(root / LOG, 95)
    flip(root / QUEUE, 407)
    flip(root / INDEX, 548)
    alone = check(root, CheckOptions())
    together = check(root, CheckOptions(jobs=2, worth_processes=0))
    assert damage_in(together, root) == damage_in(alone, root)
    assert together[1:9] == alone[1:9]
