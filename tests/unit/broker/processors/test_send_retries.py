"""Retries that a consumer sends as new messages: their topics, and their end."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from remoting.protocol.codes import RequestCode
from remoting.protocol.message import batch
from tests.unit.broker.harness import send_command
from tests.unit.broker.processors.sends import ADDED, refusal, stored


def test_a_retry_topic_is_made_with_one_queue(bench):
    reply = bench.send("%RETRY%g", default_topic="NoSuchTemplate", reconsume_times=1)
    assert reply.code == 0
    assert bench.state.topics.get("%RETRY%g").write_queue_nums == 1


def test_a_retry_of_an_unknown_group_is_refused(make_bench):
    bench = make_bench(auto_create_subscription_group=False)
    code, remark = refusal(bench, topic="%RETRY%g")
    assert code == 26
    assert remark.startswith("subscription group not exist, g ")


def test_a_message_without_retries_left_becomes_a_dead_letter(bench):
    bench.topic("%RETRY%g")
    with capture_logs() as lines:
        reply = bench.send(
            "%RETRY%g", b"dead", reconsume_times=16, properties="DELAY\x015\x02TAGS\x01a"
        )
    assert reply.code == 0
    (line,) = (line for line in lines if line["event"] == "message became a dead letter")
    assert (line["group"], line["member"]) == ("g", bench.connection.remote_text)
    assert bench.state.counters.messages_dead_lettered == 1
    assert stored(bench, "%RETRY%g") == []
    (record,) = stored(bench, "%DLQ%g")
    assert record.properties == {"DELAY": "0", "TAGS": "a", **ADDED}
    assert bench.state.topics.get("%DLQ%g").perm == 6
    assert bench.changes.topics[-1] == (["%DLQ%g"], True)


def test_each_message_of_a_dead_batch_is_counted(bench):
    bench.topic("%RETRY%g")
    body = batch.encode([(0, b"one", b""), (0, b"two", b"")])
    code = RequestCode.SEND_BATCH_MESSAGE
    bench.must(send_command("%RETRY%g", body, code=code, batch=True, reconsume_times=16))
    assert bench.state.counters.messages_dead_lettered == len(stored(bench, "%DLQ%g")) == 2


@pytest.mark.parametrize(
    ("version", "most", "topic"),
    [(407, 3, "%DLQ%g"), (120, 3, "%RETRY%g"), (407, None, "%RETRY%g")],
)
def test_the_header_may_set_the_number_of_retries(bench, version, most, topic):
    bench.topic("%RETRY%g")
    bench.send("%RETRY%g", reconsume_times=3, max_reconsume_times=most, version=version)
    assert len(stored(bench, topic)) == 1
