"""Our stores are intact when stopped or killed, and repaired when damaged."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.store.engine import MessageStore
from broker.store.raw_files import StoreChanged
from broker.store.results import StoreError
from broker.storetools.verify.check import CheckOptions, check
from broker.storetools.verify.findings import is_open
from remoting.protocol.disk.files import ENTRY_BYTES
from remoting.protocol.message.record import TRANSACTION_PREPARED, TRANSACTION_ROLLBACK
from remoting.protocol.message.tags import tags_code
from tests.unit.broker.store.copy.copies import copied
from tests.unit.broker.store.crashes import forget, queue_file
from tests.unit.broker.store.stores import bodies, message, opened
from tests.unit.broker.store.verify.damaged import both, damage_in, files_of, flip, run_repair

HOST_V6 = bytes(range(16)) + b"\0\0\1\0"


def properties(number: int, tag: str) -> bytes:
    pairs = {"UNIQ_KEY": f"{number:032X}", "KEYS": f"o-{number} all", "TAGS": tag}
    return "\x02".join(f"{name}\x01{value}" for name, value in pairs.items() if value).encode()


def fill(store: MessageStore, count: int, *, topic: str = "TopicTest") -> None:
    for number in range(count):
        tag = ("", "red", "größe")[number % 3]
        more: dict[str, Any] = {}
        if number % 7 == 3:
            more["born_host"] = HOST_V6
        if number % 11 == 5:
            more["sys_flag"] = TRANSACTION_PREPARED
        if number % 13 == 5:
            more["sys_flag"] = TRANSACTION_ROLLBACK
        store.put(
            message(
                b"body" * (number % 50),
                topic=topic,
                queue_id=number % 3,
                properties=properties(number, tag),
                tags_code=tags_code(tag),
                **more,
            )
        )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Stopped cleanly: log, queues and index of several files."""
    store = opened(tmp_path / "store")
    fill(store, 400)
    store.close()
    return tmp_path / "store"


@pytest.fixture
def live(tmp_path: Path) -> Iterator[MessageStore]:
    store = opened(tmp_path / "live")
    fill(store, 400)
    yield store
    store.close()


def test_a_stopped_store_is_intact(root: Path) -> None:
    found = both(root)
    assert damage_in(found, root) == []
    assert found.findings.kinds == {"no-offsets": 1}
    assert found.index_entries == found.keys > 900
    assert found.records == 400


def test_a_copy_of_a_store_in_use_is_intact(root: Path, tmp_path: Path) -> None:
    store = opened(root)
    fill(store, 20)
    assert copied(root, tmp_path / "copy").index_files > 0
    store.close()
    found = both(tmp_path / "copy")
    assert damage_in(found, tmp_path / "copy") == []
    assert found.index_entries < found.keys


def test_messages_put_after_a_repair_of_a_log_that_lost_its_end_survive(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = opened(root)
    for _ in range(400):
        store.put(message(b""))
    store.close()
    forget(store.paths.own_checkpoint)
    for path in sorted(store.paths.commit_log.iterdir())[1:]:
        path.unlink()
    flip(queue_file(store), 19)
    assert "rebuilt queue 0 of topic TopicTest" in run_repair(root).done
    store.open()
    left = len(bodies(store))
    store.put(message(b"new"))
    for _ in range(2):
        store.close()
        store.open()
        assert bodies(store)[left:] == [b"new"]
    store.close()


def test_a_store_in_use_is_intact_and_recognized_as_in_use(live: MessageStore) -> None:
    root = live.paths.root
    assert is_open(root)
    found = both(root)
    assert found.running
    assert damage_in(found, root) == []
    with pytest.raises(StoreError, match=r"a broker has the store .* open: stop it first"):
        run_repair(root)


def test_a_killed_store_is_intact_except_for_what_a_start_repairs(
    live: MessageStore, tmp_path: Path
) -> None:
    root = tmp_path / "killed"
    live.flush()
    fill(live, 20)
    shutil.copytree(live.paths.root, root)
    found = both(root)
    assert not found.running
    assert not found.clean
    assert damage_in(found, root) == []


def test_messages_without_entries_at_the_end_are_left_to_the_next_start(
    live: MessageStore, tmp_path: Path
) -> None:
    root = tmp_path / "killed"
    live.flush()
    for queue in (0, 1, 2):
        shutil.copytree(
            live.paths.consume_queues / "TopicTest" / str(queue), tmp_path / "old" / str(queue)
        )
    fill(live, 20)
    shutil.copytree(live.paths.root, root)
    shutil.rmtree(root / "consumequeue" / "TopicTest")
    shutil.copytree(tmp_path / "old", root / "consumequeue" / "TopicTest")
    found = both(root)
    assert damage_in(found, root) == []
    assert found.findings.kinds["entries-to-come"] == 3


def test_an_entry_that_a_killed_broker_has_half_written_is_left_to_the_next_start(
    live: MessageStore, tmp_path: Path
) -> None:
    root = tmp_path / "killed"
    fill(live, 20)
    shutil.copytree(live.paths.root, root)
    end = live.queries.max_offset("TopicTest", 0) * ENTRY_BYTES
    file = max((root / "consumequeue" / "TopicTest" / "0").iterdir())
    last = end - int(file.name)
    flip(file, last - 1)
    found = both(root)
    assert damage_in(found, root) == []
    assert found.findings.kinds["entries-to-come"] == 1
    flip(file, last - ENTRY_BYTES - 1)
    assert "entry-tags" in both(root).findings.kinds
    opened(root).close()
    assert damage_in(both(root), root) == []


def test_messages_of_a_deleted_topic_are_no_finding(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = opened(root)
    fill(store, 50, topic="Gone")
    fill(store, 50)
    store.delete_topic("Gone")
    store.close()
    found = both(root)
    assert damage_in(found, root) == []
    # It was made again, and has no message yet.
    (root / "config").mkdir(exist_ok=True)
    (root / "config" / "topics.json").write_text('{"topicConfigTable":{"Gone":{},"TopicTest":{}}}')
    (root / "pocketmq-checkpoint").unlink()
    assert damage_in(both(root), root) == []
    # Its queues count from 0.
    store = opened(root)
    fill(store, 20, topic="Gone")
    store.close()
    assert damage_in(both(root), root) == []


def test_entries_of_deleted_messages_are_no_finding(root: Path) -> None:
    first, second = sorted((root / "commitlog").iterdir())[:2]
    first.unlink()
    second.unlink()
    forget(root / "pocketmq-checkpoint", "stop")
    assert damage_in(both(root), root) == []


def test_a_message_may_be_longer_than_what_is_read_at_once(tmp_path: Path) -> None:
    root = tmp_path / "store"
    store = opened(root, mapped_file_size_commit_log=8 << 20)
    fill(store, 10)
    store.put(message(b"x" * (3 << 20)))
    fill(store, 10)
    store.close()
    found = both(root)
    assert damage_in(found, root) == []
    assert found.records == 21


def test_an_empty_store_is_intact(tmp_path: Path) -> None:
    opened(tmp_path / "store").close()
    found = both(tmp_path / "store")
    assert found.findings.shown == []
    assert found.records == 0


def test_no_store_is_a_one_line_error(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no commit log at"):
        check(tmp_path, CheckOptions())
    with pytest.raises(StoreError, match="there is no store at"):
        run_repair(tmp_path / "nothing")


def test_a_repaired_store_opens_and_continues_its_offsets(root: Path) -> None:
    store = opened(root)
    wanted = {queue: bodies(store, queue_id=queue) for queue in (0, 1, 2)}
    ends = {queue: store.queries.max_offset("TopicTest", queue) for queue in (0, 1, 2)}
    store.close()
    before = files_of(root)
    shutil.rmtree(root / "consumequeue" / "TopicTest" / "1")
    flip(next((root / "consumequeue" / "TopicTest" / "2").iterdir()), 23)
    next((root / "index").iterdir()).unlink()
    repaired = run_repair(root)
    assert repaired.after.findings.is_sound
    assert repaired.moved is not None
    assert (repaired.moved / "consumequeue" / "TopicTest" / "2").is_dir()
    after = files_of(root)
    queues = {name for name in before if name.startswith("consumequeue")}
    assert {name: after[name] for name in queues} == {name: before[name] for name in queues}
    store = opened(root)
    assert {queue: bodies(store, queue_id=queue) for queue in (0, 1, 2)} == wanted
    assert {queue: store.queries.max_offset("TopicTest", queue) for queue in (0, 1, 2)} == ends
    store.close()
    assert damage_in(both(root), root) == []


def test_an_index_of_another_size_is_only_a_note(root: Path) -> None:
    store = opened(root, max_hash_slots=70)
    fill(store, 30)
    store.close()
    found = both(root)
    assert damage_in(found, root) == []
    assert found.findings.kinds["index-other"] > 0


def test_a_queue_without_messages_keeps_its_next_offset(root: Path) -> None:
    store = opened(root)
    end = store.queries.max_offset("TopicTest", 1)
    fill(store, 300, topic="Other")
    store.close()
    # The log lost all of TopicTest to retention, and then its queue was lost.
    logs = sorted((root / "commitlog").iterdir())
    for path in logs[:-1]:
        path.unlink()
    shutil.rmtree(root / "consumequeue" / "TopicTest" / "1")
    (root / "consumequeue" / "TopicTest" / "1").mkdir()
    found = both(root)
    assert ("derived", "queue-short", "consumequeue/TopicTest/1", None) in damage_in(found, root)
    assert run_repair(root).after.findings.is_sound
    store = opened(root)
    assert store.queries.max_offset("TopicTest", 1) == end
    store.close()


def test_the_check_restarts_when_retention_deletes_files(
    live: MessageStore,
) -> None:
    output: list[int] = []
    failures = [StoreChanged("gone"), StoreChanged("gone")]

    def tell(walked: int) -> None:
        output.append(walked)
        if walked > 0 and failures:
            raise failures.pop()

    assert check(live.paths.root, CheckOptions(), tell).findings.is_sound
    first, second, third, fourth = output[:4]
    assert first == third == -second == -fourth > 0


def test_a_closed_store_is_not_reported_as_open(tmp_path: Path) -> None:
    assert not is_open(tmp_path)
    (tmp_path / "lock").write_bytes(b"lock")
    assert not is_open(tmp_path)
