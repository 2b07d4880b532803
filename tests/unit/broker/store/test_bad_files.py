"""Truncated, swapped or newer files: no wrong message is served."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import pytest

from broker.store.engine import GetStatus, MessageStore, PutStatus
from broker.store.results import StoreError
from remoting.protocol.message.record import MAGIC_V1
from remoting.protocol.message.view import iter_records
from tests.unit.broker.store.crashes import crash, log_files, overwrite
from tests.unit.broker.store.stores import LOG_FILE, bodies, message, opened

MESSAGES = 60
"""Thirty of each of two queues, in seven files of the log."""


def body_of(number: int) -> bytes:
    return b"%02d" % number + b"x" * 1500


def of_queue(queue_id: int) -> list[bytes]:
    return [body_of(number) for number in range(MESSAGES) if number % 2 == queue_id]


@pytest.fixture(params=["stopped", "killed"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> MessageStore:
    """A store that is not open."""
    made = opened(tmp_path / "store")
    for number in range(MESSAGES):
        made.put(message(body_of(number), queue_id=number % 2))
    made.flush()
    left = crash(made)
    made.close()
    return left if request.param == "killed" else made


def queue_of(store: MessageStore, queue_id: int) -> Path:
    return store.paths.consume_queues / "TopicTest" / str(queue_id)


# --- cut off


@pytest.mark.parametrize("which", [0, 3, -1])
@pytest.mark.parametrize("length", [1, 4096, LOG_FILE - 1])
def test_a_truncated_log_file_is_an_error_with_a_remedy(
    store: MessageStore, which: int, length: int
) -> None:
    path = log_files(store)[which]
    os.truncate(path, length)
    with pytest.raises(StoreError) as refused:
        store.open()
    assert f"{path} has {length} bytes, but others have {LOG_FILE}" in str(refused.value)
    assert f"truncate -s {LOG_FILE}" in str(refused.value)
    assert path.stat().st_size == length

    os.truncate(path, LOG_FILE)
    store.open()
    found = bodies(store), bodies(store, queue_id=1)
    for queue_id, there in enumerate(found):
        wanted = of_queue(queue_id)
        assert [body for body in wanted if body in there] == there
    assert len(found[0]) + len(found[1]) >= MESSAGES - LOG_FILE // 1500
    assert store.put(message()).queue_offset <= MESSAGES // 2
    store.close()


def test_a_truncated_queue_file_is_an_error_with_a_remedy(store: MessageStore) -> None:
    path = min(queue_of(store, 0).iterdir())
    os.truncate(path, 300)
    with pytest.raises(StoreError, match=r"or remove the file if it was cut off"):
        store.open()
    path.unlink()
    store.open()
    assert bodies(store) == of_queue(0)
    assert bodies(store, queue_id=1) == of_queue(1)
    store.close()


# --- mixed up


def swap_queues(store: MessageStore) -> None:
    first, second = queue_of(store, 0), queue_of(store, 1)
    aside = first.with_name("aside")
    first.rename(aside)
    second.rename(first)
    aside.rename(second)


def copy_queue(store: MessageStore) -> None:
    shutil.rmtree(queue_of(store, 1))
    shutil.copytree(queue_of(store, 0), queue_of(store, 1))


def take_queue_of_another_topic(store: MessageStore) -> None:
    shutil.copytree(queue_of(store, 0), store.paths.consume_queues / "Other" / "0")


@pytest.mark.parametrize("mix", [swap_queues, copy_queue, take_queue_of_another_topic])
def test_a_queue_with_the_entries_of_another_serves_none_of_its_messages(
    store: MessageStore, mix: Callable[[MessageStore], None]
) -> None:
    mix(store)
    store.open()
    for queue_id in (0, 1):
        offset = 0
        while (result := store.get("TopicTest", queue_id, offset, 8)).next_offset > offset:
            for record in chain.from_iterable(map(iter_records, result.records)):
                assert record.queue_id == queue_id
                assert record.body == of_queue(queue_id)[record.queue_offset]
            offset = result.next_offset
    assert store.get("Other", 0, 0, 8).status is not GetStatus.FOUND
    assert store.put(message(queue_id=1)).queue_offset == MESSAGES // 2
    store.close()


# --- of a later version


@pytest.mark.parametrize("magic", [MAGIC_V1 + 0x100, MAGIC_V1 + 7, 0x7FFFFFFF])
def test_a_record_of_unknown_format_is_not_served_but_later_ones_are(
    store: MessageStore, magic: int
) -> None:
    data = log_files(store)[2].read_bytes()
    at = data.index(MAGIC_V1.to_bytes(4, "big")) + 2 * LOG_FILE
    overwrite(store, at, magic.to_bytes(4, "big"))
    number = int(data[data.index(b"x" * 1500) - 2 :][:2])
    shutil.rmtree(store.paths.consume_queues)
    report = store.open()
    assert report.damaged_records == 1
    for queue_id in (0, 1):
        wanted = [body for body in of_queue(queue_id) if body != body_of(number)]
        assert bodies(store, queue_id=queue_id) == wanted
    store.close()


@pytest.mark.parametrize("name", ["checkpoint", "pocketmq-checkpoint"])
@pytest.mark.parametrize("content", [b"", b"\xff" * 4096, b'{"format":99}00000000', b"{" * 100])
def test_foreign_side_files_lose_no_message(store: MessageStore, name: str, content: bytes) -> None:
    (store.paths.root / name).write_bytes(content)
    store.open()
    assert bodies(store) == of_queue(0)
    assert bodies(store, queue_id=1) == of_queue(1)
    store.close()


# --- under a running broker


def test_a_removed_queue_is_an_error_and_rebuilt_by_the_next_start(
    tmp_path: Path,
) -> None:
    store = opened(tmp_path / "store")
    for number in range(MESSAGES):
        assert store.put(message(body_of(number), queue_id=number % 2)).status is PutStatus.OK
    shutil.rmtree(queue_of(store, 0))
    stored = [body_of(number) for number in range(MESSAGES)]
    errors = []
    for number in range(MESSAGES, 2 * MESSAGES):
        result = store.put(message(body_of(number % 100), queue_id=number % 2))
        if result.status is PutStatus.OK:
            stored.append(body_of(number % 100))
        else:
            errors.append(result.message)
    assert all("consumequeue/TopicTest/0" in sentence for sentence in errors)
    store.close()
    store.open()
    assert bodies(store) == stored[::2]
    assert bodies(store, queue_id=1) == stored[1::2]
    store.close()
