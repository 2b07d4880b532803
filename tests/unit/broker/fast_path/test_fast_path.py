"""Common requests take the fast path, others the slow path."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from broker.store.results import Ack
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.frame import encode
from remoting.protocol.headers.pull import UpdateConsumerOffsetRequestHeader
from remoting.protocol.message import batch
from remoting.protocol.message.view import iter_records
from tests.unit.broker.fast_path.paths import Side, frame
from tests.unit.broker.harness import pull_command, send_command
from tests.unit.broker.store.stores import FailingFiles, read_all


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path, fast=True)
    side.bench.topic("plain", 4)
    side.bench.send("plain")
    yield side
    side.bench.close()


class Saved:
    """A write that completes when awaited."""

    def __await__(self) -> Generator[None, None, bool]:
        yield from ()
        return True


def usual_send(topic: str = "plain", **fields: object) -> Command:
    text = "UNIQ_KEY\x017F00000100\x02WAIT\x01true\x02TAGS\x01A"
    return send_command(topic, b"x" * 100, **{"properties": text, **fields})


def test_common_sends_take_the_fast_path_and_their_answers_are_one_write(side: Side) -> None:
    side.feed(b"".join(encode(usual_send()) for _ in range(50)))
    assert (side.frames, side.wire.cold, len(side.wire.sent)) == (50, 0, 1)
    assert side.bench.store.queries.max_offset("plain", 0) == 51


def test_a_timer_message_takes_the_slow_path_and_a_batch_of_them_is_refused(side: Side) -> None:
    timer = "UNIQ_KEY\x017F000001\x02TIMER_DELAY_SEC\x015"
    body = batch.encode([(0, b"x" * 9, b"")] * 30 + [(0, b"x" * 9, timer.encode())])
    for elements in (body, batch.encode([(0, b"x" * 9, timer.encode())] * 40)):
        code, fields = RequestCode.SEND_BATCH_MESSAGE, {"batch": True, "properties": ""}
        side.feed(encode(send_command("plain", elements, code=code, **fields)))
    side.feed(encode(usual_send(properties=timer)) * 30)
    answers = side.left()["answers"]
    assert len(answers) == 32
    assert all(b"send such messages singly" in answer for answer in answers[:2])
    assert all(b"recallHandle" in answer for answer in answers[2:])
    assert side.bench.store.queries.max_offset("plain", 0) == 1
    assert side.bench.store.queries.max_offset("rmq_sys_wheel_timer", 0) == 30


@pytest.mark.parametrize("zeros", [511, 512])
def test_properties_that_look_lost_are_refused_of_single_messages_and_batches(
    side: Side, zeros: int
) -> None:
    text = "k\x01" + "\0" * zeros + "\x02l\x01v"
    batches = [
        (text, batch.encode([(0, b"x", b"")])),
        ("", batch.encode([(0, b"x", b""), (0, b"x", text.encode())])),
    ]
    code = RequestCode.SEND_BATCH_MESSAGE
    side.feed(encode(usual_send(properties=text)))
    for properties, body in batches:
        side.feed(encode(send_command("plain", body, code=code, batch=True, properties=properties)))
    refused = [b"zero byte" in answer for answer in side.left()["answers"]]
    assert refused == [zeros == 512] * 3


CPP_HEADERS = {
    "send": (
        r'{"code":10,"extFields":{"AccessKey":"","OnsChannel":"ALIYUN","Signature":"WVMhgn6j3+FJat=",'
        r'"batch":"0","bornTimestamp":"1795443031522","defaultTopic":"TBW102",'
        r'"defaultTopicQueueNums":4,"flag":0,"producerGroup":"cap","properties":"KEYS\u0001key-0'
        r"\u0002TAGS\u0001sync\u0002UNIQ_KEY\u00010100007F00002994000062E0B3790100\u0002WAIT\u0001true"
        r'\u0002color\u0001blå\u0002","queueId":0,"reconsumeTimes":"0","sysFlag":0,"topic":"plain",'
        r'"unitMode":"0"},"flag":0,"language":"CPP","opaque":2,"remark":"","version":63}'
    ),
    "pull": (
        '{"code":11,"extFields":{"AccessKey":"","OnsChannel":"ALIYUN","Signature":"9bLFdPorTl/V26RwRm=",'
        '"commitOffset":"0","consumerGroup":"cap","maxMsgNums":32,"queueId":0,"queueOffset":"0",'
        '"subVersion":"0","subscription":"*","suspendTimeoutMillis":"20000","sysFlag":4,'
        '"topic":"plain"},"flag":0,"language":"CPP","opaque":1,"remark":"","version":63}'
    ),
    "commit": (
        '{"code":15,"extFields":{"AccessKey":"","OnsChannel":"ALIYUN","Signature":"s+cP1tRvrV1WmIcbg=",'
        '"commitOffset":"1","consumerGroup":"cap","queueId":0,"topic":"plain"},"flag":0,'
        '"language":"CPP","opaque":19,"remark":"","version":63}'
    ),
}
"""Headers of the C++ client 2.0: numbers without quotes, and a trailing line feed."""

GO_HEADERS = {
    "send": (
        r'{"code":10,"language":"GO","version":317,"opaque":7,"flag":0,"remark":"","extFields":{'
        r'"batch":"false","bornTimestamp":"1795443031522","defaultTopic":"TBW102",'
        r'"defaultTopicQueueNums":"4","flag":"0","maxReconsumeTimes":"0","producerGroup":"cap",'
        r'"properties":"TAGS\u0001sync\u0002UNIQ_KEY\u00010100007F0000299400006\u0002","queueId":"0",'
        r'"reconsumeTimes":"0","sysFlag":"0","topic":"plain","unitMode":"false"}}'
    ),
    "pull": (
        '{"code":11,"language":"GO","version":317,"opaque":8,"flag":0,"remark":"","extFields":{'
        '"commitOffset":"0","consumerGroup":"cap","expressionType":"TAG","maxMsgNums":"32",'
        '"queueId":"0","queueOffset":"0","subVersion":"0","subscription":"*",'
        '"suspendTimeoutMillis":"20000","sysFlag":"4","topic":"plain"}}'
    ),
    "commit": (
        '{"code":15,"language":"GO","version":317,"opaque":9,"flag":0,"remark":"","extFields":{'
        '"commitOffset":"1","consumerGroup":"cap","queueId":"0","topic":"plain"}}'
    ),
}
"""Headers of the Go client 2.1: ext fields last, sorted by name."""


@pytest.mark.parametrize("client", ["C++", "Go"])
@pytest.mark.parametrize("what", ["send", "pull", "commit"])
def test_requests_of_other_clients_take_the_fast_path(side: Side, client: str, what: str) -> None:
    header = CPP_HEADERS[what] + "\n" if client == "C++" else GO_HEADERS[what]
    side.feed(frame(header.encode(), b"x" * 50 if what == "send" else b"") * 20)
    assert (side.frames, side.wire.cold) == (20, 0)
    assert len(side.left()["answers"]) == 20
    assert side.bench.store.queries.max_offset("plain", 0) == (21 if what == "send" else 1)
    assert side.bench.state.offsets.table == ({"plain@cap": {0: 1}} if what == "commit" else {})


def test_answers_to_a_series_of_sends_have_offsets_and_opaques_of_any_length(
    tmp_path: Path,
) -> None:
    answers = []
    for name, hot in (("hot", True), ("general", False)):
        side = Side(tmp_path / name, fast=hot)
        side.bench.topic("plain", 4)
        side.bench.send("plain")
        for first in range(0, 1200, 30):
            sends = [usual_send() for _ in range(30)]
            for opaque, send in enumerate(sends, first):
                send.opaque = opaque
            side.feed(b"".join(map(encode, sends)))
        answers.append(side.left()["answers"])
        side.bench.close()
    assert answers[0] == answers[1]
    assert len(answers[0]) == 1200


@pytest.mark.parametrize("where", ["commitlog", "consumequeue"])
def test_a_disk_that_fills_in_the_middle_of_a_pass_loses_no_acknowledged_message(
    tmp_path: Path, where: str
) -> None:
    files = FailingFiles()
    side = Side(tmp_path, fast=True, files=files)
    side.bench.topic("plain", 4)
    side.bench.send("plain")

    def fill_the_disk() -> bool:
        files.full, files.full_for = True, where
        return True

    sends = [encode(usual_send(queue_id=n % 4)) for n in range(6000)]
    side.feed(b"".join(sends), fill_the_disk)

    answers = side.left()["answers"]
    assert len(answers) == len(sends)
    stored = sum(b'"code":0' in answer for answer in answers)
    assert 0 < stored < len(sends)
    found = [len(read_all(side.bench.store, "plain", queue)) for queue in range(4)]
    assert sum(found) == 1 + stored
    files.full = False
    side.bench.close()


def test_files_may_be_deleted_in_the_middle_of_a_pass(side: Side) -> None:
    store = side.bench.store
    sends = [encode(usual_send())] * 6000
    side.feed(b"".join(sends))
    store.flush()
    side.bench.clock.advance(100 * 3600)

    def delete_old_files() -> bool:
        store.retention.ask()
        store.retention.step()
        return True

    side.feed(b"".join(sends), delete_old_files)

    assert (side.frames, side.wire.cold) == (2 * len(sends), 0)
    assert store.log.start > 0
    assert store.queries.max_offset("plain", 0) == 1 + 2 * len(sends)
    left = store.queries.max_offset("plain", 0) - store.queries.min_offset("plain", 0)
    assert len(read_all(store, "plain")) == left > len(sends)


def test_a_send_to_a_new_queue_creates_it_on_the_slow_path(side: Side) -> None:
    side.feed(b"".join(encode(usual_send(queue_id=1)) for _ in range(3)))
    assert (side.frames, side.wire.cold) == (2, 1)


def test_sends_take_the_slow_path_while_their_topic_is_being_saved(side: Side) -> None:
    side.bench.changes.pending["plain"] = Saved()
    side.feed(encode(usual_send()))
    assert (side.frames, side.wire.cold) == (0, 1)
    del side.bench.changes.pending["plain"]
    side.feed(encode(usual_send()))
    assert (side.frames, side.wire.cold) == (1, 1)


def test_a_topic_that_is_being_saved_delays_no_send_to_another(side: Side) -> None:
    side.bench.changes.pending["another"] = Saved()
    side.feed(encode(usual_send()))
    assert (side.frames, side.wire.cold) == (1, 0)


def test_a_changed_topic_is_seen_by_the_next_message(side: Side) -> None:
    side.feed(encode(usual_send(queue_id=0)))
    side.bench.topic("plain", 4, topic_filter_type="MULTI_TAG")
    side.feed(encode(usual_send(queue_id=0)))
    assert (side.frames, side.wire.cold) == (1, 1)


def test_a_recreated_topic_gets_a_new_queue(side: Side) -> None:
    side.feed(encode(usual_send()))
    side.bench.store.delete_topic("plain")
    side.feed(encode(usual_send()) + encode(usual_send()))
    assert (side.frames, side.wire.cold) == (2, 1)
    assert side.bench.store.queries.max_offset("plain", 0) == 2


def test_a_pull_sees_what_was_sent_right_before_it_and_is_answered_behind_it(side: Side) -> None:
    pull = pull_command("plain", consumer_group="g", queue_offset=1)
    side.feed(encode(usual_send()) + encode(pull) + encode(usual_send()))
    assert (side.frames, side.wire.cold) == (3, 0)
    assert b'"nextBeginOffset":"2"' in b"".join(side.wire.sent)


def test_an_empty_pull_is_parked_and_woken_by_a_send_on_the_fast_path(side: Side) -> None:
    pull = pull_command("plain", queue_offset=1, sys_flag=6, suspend_timeout_millis=15_000)
    side.feed(encode(pull))
    assert (side.frames, side.wire.sent, len(side.bench.state.long_polls)) == (1, [], 1)
    side.feed(encode(usual_send()))
    assert len(side.bench.state.long_polls) == 0
    assert b'"nextBeginOffset":"2"' in b"".join(side.wire.sent)


def test_a_parked_pull_keeps_its_own_offset(side: Side) -> None:
    fields = {"sys_flag": 6, "suspend_timeout_millis": 15_000}
    waiting, other = (pull_command("plain", queue_offset=n, **fields) for n in (1, 0))
    side.feed(encode(waiting) + encode(other) + encode(usual_send()))
    assert b'"nextBeginOffset":"2"' in side.wire.sent[-1]
    assert side.wire.sent[-1].count(b"x" * 100) == 1


def test_more_request_shapes_than_are_cached_still_take_the_fast_path(tmp_path: Path) -> None:
    side = Side(tmp_path, fast=True, max_plans=3)
    side.bench.topic("plain", 4)
    side.bench.send("plain")
    kinds = [
        pull_command("plain", consumer_group=group, max_msg_nums=n)
        for group in ("g", "h")
        for n in range(1, 6)
    ]
    kinds += [usual_send(flag=n) for n in range(10)]
    for _ in range(2):
        side.feed(b"".join(map(encode, kinds)))
    assert (side.frames, side.wire.cold) == (2 * len(kinds), 0)
    side.bench.close()


def test_a_commit_takes_the_fast_path(side: Side) -> None:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group="g", topic="plain", queue_id=0, commit_offset=1
    )
    side.feed(encode(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)))
    side.feed(encode(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header, oneway=True)))
    assert (side.frames, side.wire.cold, len(side.wire.sent)) == (2, 0, 1)
    assert side.bench.state.offsets.query("g", "plain", 0) == 1


def test_a_slaves_commit_takes_the_slow_path(side: Side) -> None:
    for offset, forward in ((5, None), (1, True)):
        header = UpdateConsumerOffsetRequestHeader(
            consumer_group="g", topic="plain", queue_id=0, commit_offset=offset, forward=forward
        )
        side.feed(encode(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)))
    assert (side.frames, side.wire.cold) == (1, 1)
    assert side.bench.state.offsets.query("g", "plain", 0) == 5


def test_a_commit_in_a_queue_that_is_none_takes_the_slow_path(side: Side) -> None:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group="g", topic="plain", queue_id=99, commit_offset=1
    )
    side.feed(encode(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header)))
    assert (side.frames, side.wire.cold, len(side.bench.state.offsets)) == (0, 1, 0)


@pytest.mark.parametrize("odd", [b"", b"y"], ids=["equal sizes", "one longer"])
def test_a_batch_takes_the_fast_path(side: Side, odd: bytes) -> None:
    elements = [(0, b"x" * 50 + odd * (n == 7), b"K\x01%03d" % n) for n in range(40)]
    send = usual_send(batch=True, properties="")
    send.code, send.body = RequestCode.SEND_BATCH_MESSAGE, batch.encode(elements)
    side.feed(encode(send))
    assert (side.frames, side.wire.cold) == (1, 0)
    (records,) = side.bench.store.get("plain", 0, 1, 100).records
    found = [record.properties["K"] for record in iter_records(records)]
    assert found == [f"{n:03}" for n in range(40)]


def test_each_pass_is_counted_in_the_metrics(side: Side) -> None:
    served: list[tuple[int, int]] = []
    side.read_pass.on_served = lambda code, count, seconds: served.append((code, count))
    pull = pull_command("plain", queue_offset=0)
    side.feed(encode(usual_send()) * 3 + encode(pull) + encode(usual_send(topic="unknown")))
    assert served == [(RequestCode.SEND_MESSAGE_V2, 3), (RequestCode.PULL_MESSAGE, 1)]


@pytest.mark.parametrize("ack", [ack for ack in Ack if ack])
async def test_answers_that_wait_for_the_disk_are_one_write(tmp_path: Path, ack: Ack) -> None:
    side = Side(tmp_path / "sync", fast=True, flush_disk_type="SYNC_FLUSH")
    side.bench.topic("plain", 4)
    side.feed(encode(usual_send()))
    callbacks: list[tuple[int, Callable[[Ack], None]]] = []
    side.bench.store.when_durable = lambda *waiter: callbacks.append(waiter)  # type: ignore[method-assign] # a disk that never answers
    before = len(side.wire.sent)
    hasty = usual_send(properties="WAIT\x01false")
    side.feed(encode(usual_send()) * 3 + encode(hasty))
    assert (len(side.wire.sent) - before, side.wire.held) == (1, 3)
    ((end, callback),) = callbacks
    assert end == side.bench.store.log.end
    callback(ack)
    assert side.wire.sent[-1].count(b'{"code":%d,' % ack) == 3
    assert side.wire.held == 0
    del side.bench.store.when_durable
    side.bench.close()
