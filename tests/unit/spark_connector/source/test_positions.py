"""Where a query begins and ends, and the errors if it can't."""

from __future__ import annotations

import pytest

from remoting.protocol.queue import MessageQueue
from spark_connector.errors import DataLossError, OptionError
from spark_connector.source.options import SourceOptions
from spark_connector.source.positions import Edge, Instant, Position, Positions, QueueBounds
from spark_connector.source.resolve import resolve

Q0, Q1 = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)
FACTS = {Q0: QueueBounds(10, 100), Q1: QueueBounds(0, 0)}
NOW_MS = 1_000_000


def rules(**given: str) -> SourceOptions:
    """Return a query's options besides the positions."""
    return SourceOptions.of({"nameServer": "a:1", "topic": "T", "consumerGroup": "G"} | given)


RULES = rules()


class Brokers:
    """Brokers where message ``n`` was stored at ``1000 * n`` ms, with committed offsets."""

    def __init__(self, **committed: int) -> None:
        self._committed = committed

    def at_or_after(self, queue: MessageQueue, timestamp_ms: int) -> int:
        ends = FACTS[queue]
        return min(max(-(-timestamp_ms // 1000), ends.minimum), ends.maximum)

    def committed(self, queue: MessageQueue) -> int | None:
        return self._committed.get(f"q{queue.queue_id}")


def everywhere(position: Position) -> Positions:
    return Positions("startingOffsets", position)


def test_positions_at_the_ends_of_queues():
    assert resolve(everywhere(Edge.EARLIEST), FACTS, Brokers(), RULES, NOW_MS) == {Q0: 10, Q1: 0}
    assert resolve(everywhere(Edge.LATEST), FACTS, Brokers(), RULES, NOW_MS) == {Q0: 100, Q1: 0}


def test_one_position_is_that_of_all_queues_of_a_topic():
    for text, expected in (('{"T":-2}', {Q0: 10, Q1: 0}), ('{"T":-1}', {Q0: 100, Q1: 0})):
        starting = rules(startingOffsets=text).starting
        assert resolve(starting, FACTS, Brokers(), RULES, NOW_MS) == expected
    elsewhere = rules(startingOffsets='{"T":-2,"U":-2}').starting
    with pytest.raises(OptionError, match=r"names queue U/\*/\*, which the query doesn't read"):
        resolve(elsewhere, FACTS, Brokers(), RULES, NOW_MS)
    at = rules(startingOffsetsByTimestamp='{"T":50000}').starting
    assert resolve(at, FACTS, Brokers(), RULES, NOW_MS) == {Q0: 50, Q1: 0}


@pytest.mark.parametrize(
    ("instant", "offset"),
    [
        (Instant(50_000), 50),
        (Instant(49_001), 50),
        (Instant(0), 10),
        (Instant(99_001), 100),
        (Instant(-960_000, relative=True), 40),
        (Instant(-5_000_000, relative=True), 10),
    ],
)
def test_an_instant_is_the_first_message_at_or_after_it(instant: Instant, offset: int):
    assert resolve(everywhere(instant), FACTS, Brokers(), RULES, NOW_MS) == {Q0: offset, Q1: 0}


def test_an_instant_after_the_last_message_is_an_error_if_wanted():
    strict = rules(startingOffsetsByTimestampStrategy="error")
    with pytest.raises(OptionError, match=r"T/broker-a/1 holds no message .* 50000 ms"):
        resolve(everywhere(Instant(50_000)), FACTS, Brokers(), strict, NOW_MS)


def test_committed_offsets_and_their_fallback():
    asked = Brokers(q0=70)
    begin = everywhere(Edge.COMMITTED)
    bounds = FACTS | {Q1: QueueBounds(3, 8)}
    assert resolve(begin, bounds, asked, RULES, NOW_MS) == {Q0: 70, Q1: 3}
    latest = rules(onNoCommit="latest")
    assert resolve(begin, bounds, asked, latest, NOW_MS) == {Q0: 70, Q1: 8}
    with pytest.raises(OptionError, match="committed nothing in queue T/broker-a/1"):
        resolve(begin, bounds, asked, rules(onNoCommit="error"), NOW_MS)


@pytest.mark.parametrize("offset", [9, 101])
def test_an_offset_beyond_either_end_is_an_error_or_the_nearest(offset: int):
    begin = Positions("startingOffsets", None, {"T": {None: {0: offset, 1: 0}}})
    with pytest.raises(DataLossError, match=rf"offset {offset} of queue T/broker-a/0.*\[10, 100\)"):
        resolve(begin, FACTS, Brokers(), RULES, NOW_MS)
    skip = rules(onDataLoss="skip")
    assert resolve(begin, FACTS, Brokers(), skip, NOW_MS)[Q0] == (10 if offset == 9 else 100)
    earliest = rules(onDataLoss="earliest")
    assert resolve(begin, FACTS, Brokers(), earliest, NOW_MS)[Q0] == 10


def test_every_queue_has_to_be_named_and_no_other():
    with pytest.raises(OptionError, match="has no position for T/broker-a/1"):
        resolve(Positions("o", None, {"T": {"broker-a": {0: 20}}}), FACTS, Brokers(), RULES, NOW_MS)
    with pytest.raises(OptionError, match=r"names queue T/broker-a/2.*doesn't read"):
        resolve(
            Positions("o", None, {"T": {"broker-a": {0: 20, 1: 0, 2: 5}}}),
            FACTS,
            Brokers(),
            RULES,
            NOW_MS,
        )
    with pytest.raises(OptionError, match=r"names queue U/\*/0.*doesn't read"):
        resolve(
            Positions("o", None, {"T": {None: {0: 20, 1: 0}}, "U": {None: {0: 5}}}),
            FACTS,
            Brokers(),
            RULES,
            NOW_MS,
        )


def test_a_queue_of_several_brokers_has_to_be_named_with_its_broker():
    bounds = {Q0: QueueBounds(0, 5), MessageQueue("T", "broker-b", 0): QueueBounds(0, 5)}
    with pytest.raises(OptionError, match="without its broker"):
        resolve(Positions("o", None, {"T": {None: {0: 2}}}), bounds, Brokers(), RULES, NOW_MS)
