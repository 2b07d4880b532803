"""What is usual goes the short way; what is not is seen to go the other."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from remoting.protocol.command import Command
from remoting.protocol.frame import encode
from tests.unit.broker.harness import send_command
from tests.unit.broker.hot.paths import Side


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path, hot=True)
    side.bench.topic("plain", 4)
    side.bench.send("plain")
    yield side
    side.bench.close()


class Saved:
    """A write that is done when it is awaited."""

    def __await__(self) -> Generator[None, None, bool]:
        yield from ()
        return True


def usual_send(**fields: object) -> Command:
    text = "UNIQ_KEY\x017F00000100\x02WAIT\x01true\x02TAGS\x01A"
    return send_command("plain", b"x" * 100, **{"properties": text, **fields})


def test_usual_sends_go_the_short_way_and_their_answers_are_one_write(side: Side) -> None:
    side.feed(b"".join(encode(usual_send()) for _ in range(50)))
    assert (side.frames, side.wire.cold, len(side.wire.sent)) == (50, 0, 1)
    assert side.bench.store.max_offset("plain", 0) == 51


def test_a_send_to_a_queue_without_messages_makes_it_the_general_way(side: Side) -> None:
    side.feed(b"".join(encode(usual_send(queue_id=1)) for _ in range(3)))
    assert (side.frames, side.wire.cold) == (2, 1)


def test_sends_go_the_general_way_while_a_topic_is_being_saved(side: Side) -> None:
    side.bench.changes.topics_pending = Saved()
    side.feed(encode(usual_send()))
    assert (side.frames, side.wire.cold) == (0, 1)
    side.bench.changes.topics_pending = None
    side.feed(encode(usual_send()))
    assert (side.frames, side.wire.cold) == (1, 1)


def test_a_changed_topic_is_seen_by_the_next_message(side: Side) -> None:
    side.feed(encode(usual_send(queue_id=0)))
    side.bench.topic("plain", 4, topic_filter_type="MULTI_TAG")
    side.feed(encode(usual_send(queue_id=0)))
    assert (side.frames, side.wire.cold) == (1, 1)


def test_a_deleted_and_remade_topic_gets_a_new_queue(side: Side) -> None:
    side.feed(encode(usual_send()))
    side.bench.store.delete_topic("plain")
    side.feed(encode(usual_send()) + encode(usual_send()))
    assert (side.frames, side.wire.cold) == (2, 1)
    assert side.bench.store.max_offset("plain", 0) == 2
