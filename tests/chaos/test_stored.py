"""The store reader used by the kill tests detects every kind of error."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.store.engine import MessageStore, PendingMessage
from tests.chaos.flood import Place, body_of, copies_of
from tests.chaos.stored import Stored
from tests.unit.broker.store.stores import small_config

TOPIC = "numbers"


@pytest.fixture
def store(tmp_path: Path) -> MessageStore:
    """One queue with the numbers 5, 6 and 7, stopped."""
    made = MessageStore(small_config(tmp_path))
    made.open()
    put(made, 5, 6, 7)
    made.close()
    return made


def put(store: MessageStore, *numbers: int) -> None:
    for number in numbers:
        store.put(PendingMessage(TOPIC, 0, body_of(number)))


def test_an_intact_store_passes(store: MessageStore) -> None:
    stored = Stored(store.paths.root, TOPIC, 1)
    stored.read_on()
    assert stored.rows == [[5, 6, 7]]
    stored.check([Place(0, 0, 5), Place(0, 2, 7)])
    store.open()
    put(store, 8)
    stored.read_on()
    assert stored.rows == [[5, 6, 7, 8]]
    store.close()


@pytest.mark.parametrize("place", [Place(0, 3, 8), Place(0, 1, 7)])
def test_a_message_that_is_lost_or_another_one_is_seen(store: MessageStore, place: Place) -> None:
    stored = Stored(store.paths.root, TOPIC, 1)
    stored.read_on()
    with pytest.raises(AssertionError, match=r"is lost|became 6"):
        stored.check([place])


def test_a_changed_byte_is_seen(store: MessageStore) -> None:
    log = store.paths.commit_log / f"{0:020d}"
    data = log.read_bytes()
    at = data.index(body_of(6)) + 20
    log.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    with pytest.raises(AssertionError, match="no sound record"):
        Stored(store.paths.root, TOPIC, 1).read_on()


def test_a_body_that_was_never_sent_is_seen(store: MessageStore) -> None:
    store.open()
    store.put(PendingMessage(TOPIC, 0, body_of(6) + b"!"))
    store.close()
    with pytest.raises(AssertionError):
        Stored(store.paths.root, TOPIC, 1).read_on()


def test_offsets_that_go_back_are_seen(store: MessageStore) -> None:
    stored = Stored(store.paths.root, TOPIC, 1)
    stored.read_on()
    stored.rows[0].append(8)
    with pytest.raises(AssertionError, match="went back from 4 to 3"):
        stored.read_on()


def test_only_a_producer_that_retries_may_store_twice() -> None:
    assert [copies_of(number) for number in range(5)] == [1, 3, 1, 3, 1]
