"""Deletions requested by administrators, and what the broker reports about them."""

from __future__ import annotations

from remoting.protocol import names
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from tests.unit.broker.harness import Bench, pull_command

RESERVED_SECONDS = 73 * 3600


def fill(bench: Bench) -> None:
    """Fill more than a log file, and another one much later."""
    bench.topic("T")
    for _ in range(40):
        assert bench.send("T", b"x" * 30_000).code == 0
    bench.store.flush()
    bench.clock.advance(RESERVED_SECONDS)
    for _ in range(40):
        assert bench.send("T", b"x" * 30_000).code == 0
    bench.store.flush()


def runtime(bench: Bench) -> dict[str, str]:
    answer = bench.must(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
    return decode(KVTable, answer.body).table


def test_expired_messages_are_deleted_on_request(bench: Bench) -> None:
    fill(bench)
    assert bench.must(Command.request(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
    bench.store.retention.step()
    low = bench.store.queries.min_offset("T", 0)
    assert low > 0
    answer = bench.must(pull_command("T", queue_offset=0))
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert dict(answer.all_pairs() or ())["nextBeginOffset"] == str(low)
    assert runtime(bench)["pocketmqLogFilesDeleted"] == "1"
    assert runtime(bench)["pocketmqLogFilesDeletedYoung"] == "0"
    assert runtime(bench)["commitLogMinOffset"] == str(1 << 20)


def test_queues_are_cleaned_on_request(bench: Bench) -> None:
    fill(bench)
    assert bench.must(Command.request(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
    bench.store.retention.step()
    assert bench.store.queries.min_offset("T", 0) > 0


def test_queues_of_deleted_topics_are_removed_and_others_stay(bench: Bench) -> None:
    bench.topic("T")
    bench.topic("Gone")
    bench.send("T")
    bench.send("Gone")
    bench.send("T", properties="DELAY\x011\x02")
    bench.send("T", properties="TRAN_MSG\x01true\x02PGROUP\x01p")
    bench.send("T", properties=f"TIMER_DELIVER_MS\x01{bench.clock.now_ms() + 5_000}")
    for topic in ("Gone", names.HALF_TOPIC):
        bench.state.topics.delete(topic, 1)
    kept = set(bench.store.queues.topics()) - {"Gone"}
    assert bench.must(Command.request(RequestCode.CLEAN_UNUSED_TOPIC)).code == 0
    assert set(bench.store.queues.topics()) == kept
    assert kept == {"T", names.SCHEDULE_TOPIC, names.HALF_TOPIC, names.TIMER_TOPIC}


def test_a_broker_that_accepts_no_messages_says_why(bench: Bench) -> None:
    assert "pocketmqWhyNotWritable" not in runtime(bench)
    bench.store.disk.measured("the disk is full")
    assert runtime(bench)["pocketmqWhyNotWritable"] == "the disk is full"
    refused = bench.send("T")
    assert refused.code != 0
