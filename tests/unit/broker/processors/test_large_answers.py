"""Large answers are built in slices, counted in bytes and loop iterations."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from broker.limits import MAX_QUEUES_DESCRIBED
from broker.processors.offload import SLICE_ENTRIES
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.body import MapParts
from remoting.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from remoting.protocol.bodies.stats import ConsumeStats, GroupProgressPage, TopicStatsTable
from remoting.protocol.bodies.topic import TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import PageRequestHeader, TopicRequestHeader
from remoting.protocol.headers.pull import ResetOffsetRequestHeader
from remoting.protocol.headers.query import (
    GetConsumeStatsRequestHeader,
    QueryConsumeTimeSpanRequestHeader,
)
from remoting.protocol.own_codes import OwnRequestCode
from remoting.protocol.queue import MessageQueue
from tests.support.virtual_time import virtual
from tests.unit.broker.harness import Bench, FakeConnection

MANY = 10 * SLICE_ENTRIES + 1
MOST_BYTES = 300 * SLICE_ENTRIES

STATS = Command.request(RequestCode.GET_TOPIC_STATS_INFO, TopicRequestHeader(topic="T"))
PROGRESS = Command.request(
    RequestCode.GET_CONSUME_STATS, GetConsumeStatsRequestHeader(consumer_group="g", topic="T")
)
TOPICS = Command.request(RequestCode.GET_ALL_TOPIC_CONFIG)
GROUPS = Command.request(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
SPANS = Command.request(
    RequestCode.QUERY_CONSUME_TIME_SPAN, QueryConsumeTimeSpanRequestHeader(topic="T", group="g")
)
QUEUES = [MessageQueue("T", "broker-a", queue_id) for queue_id in range(MANY)]
LOCKS = encode(LockBatchRequestBody(consumer_group="g", client_id="c", mq_set=QUEUES))
LOCK = Command.request(RequestCode.LOCK_BATCH_MQ, body=LOCKS)
UNLOCK = Command.request(RequestCode.UNLOCK_BATCH_MQ, body=LOCKS)
OFFSETS = Command.request(RequestCode.GET_ALL_CONSUMER_OFFSET)


@pytest.fixture
def many(bench: Bench) -> Bench:
    """A broker with many topics, groups and queues."""
    bench.topic("T", MANY)
    for n in range(MANY):
        bench.topic(f"T{n}")
        bench.state.groups.put(SubscriptionGroupConfig(group_name=f"g{n}"), n)
        bench.state.offsets.commit("g", "T", n, n)
        bench.state.offsets.commit(f"g{n}", "T", 0, n)
    bench.send("T", queue_id=MANY - 1)
    return bench


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the bytes of each slice, and 0 for each loop iteration."""
    sizes: list[int] = []
    part = MapParts.part

    def seen(self: MapParts, body) -> bytes:
        text = part(self, body)
        sizes.append(len(text))
        return text

    monkeypatch.setattr(MapParts, "part", seen)
    return sizes


async def turning(sizes: list[int]) -> None:
    while True:
        sizes.append(0)
        await asyncio.sleep(0)


async def asked(bench: Bench, command: Command, connection: FakeConnection | None = None):
    answer = bench.dispatch(command, connection or bench.connection)
    assert not isinstance(answer, Command), "made at once"
    return await answer


def check(kind, reply: Command, table: str, count: int):
    assert reply.code == 0
    found = getattr(decode(kind, reply.body), table)
    assert len(found) == count
    return found


@pytest.mark.parametrize(
    "command", [STATS, PROGRESS, TOPICS, GROUPS, SPANS, LOCK], ids=lambda c: c.code.name
)
@virtual
async def test_each_loop_iteration_makes_one_slice(many, slices, command):
    ticker = asyncio.ensure_future(turning(slices))
    answers = [
        asyncio.ensure_future(asked(many, command, FakeConnection(port))) for port in (1, 2, 3)
    ]
    replies = await asyncio.gather(*answers)
    ticker.cancel()
    assert len({bytes(reply.body) for reply in replies}) == 1
    assert 0 < max(slices) <= MOST_BYTES
    between = "".join("t" if size == 0 else "s" for size in slices)
    assert "ss" not in between


@virtual
async def test_a_page_of_the_progress_of_groups_ends_after_many_queues(many):
    seen: list[str] = []
    for _ in range(2):
        header = PageRequestHeader(after=seen[-1] if seen else "", limit=1000)
        reply = await asked(many, Command.request(OwnRequestCode.GET_GROUP_PROGRESS, header))
        page = decode(GroupProgressPage, reply.body)
        seen += [progress.group for progress in page.groups]
        queues = sum(len(topic.queues) for progress in page.groups for topic in progress.topics)
        assert MAX_QUEUES_DESCRIBED - MANY < queues < MAX_QUEUES_DESCRIBED + MANY
        assert page.next == seen[-1]
    assert seen == sorted(many.state.groups.table)[: len(seen)]


@virtual
async def test_other_requests_are_served_while_many_queues_are_locked_and_unlocked(many):
    def owned() -> list[int]:
        return [n for n in range(MANY) if many.state.locks.owner("g", QUEUES[n], 0) == "c"]

    for command, left in ((LOCK, MANY), (UNLOCK, 0)):
        counts = [len(owned())]
        answer = asyncio.ensure_future(asked(many, command))
        while not answer.done():
            await asyncio.sleep(0)
            counts.append(len(owned()))
        assert counts[-1] == left
        steps = [abs(after - before) for before, after in itertools.pairwise(counts)]
        assert max(steps) <= SLICE_ENTRIES
        reply = await answer
        assert reply.code == 0
        if command is LOCK:
            assert decode(LockBatchResponseBody, reply.body).lock_ok_mq_set == QUEUES


async def test_a_large_lock_in_fastjsons_dialect_is_taken_too(many):
    text = LOCKS.decode().replace('"mqSet"', "mqSet")
    reply = many.must(Command.request(RequestCode.LOCK_BATCH_MQ, body=text.encode()))
    assert decode(LockBatchResponseBody, reply.body).lock_ok_mq_set == QUEUES


async def test_an_invalid_queue_in_a_large_lock_is_refused(many):
    text = LOCKS.replace(b'"queueId":2500', b'"queueId":"x"')
    reply = await asked(many, Command.request(RequestCode.LOCK_BATCH_MQ, body=text))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "Expected a message queue" in reply.remark


@virtual
async def test_other_requests_are_served_while_many_offsets_are_reset(many, slices):
    many.subscribe("g", "T")
    for n in range(MANY):
        many.state.offsets.commit("g", "T", n, n)
    header = ResetOffsetRequestHeader(topic="T", group="g", timestamp=-1, is_force=True)
    ticker = asyncio.ensure_future(turning(slices))
    reply = await asked(
        many, Command.request(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header), many.connection
    )
    ticker.cancel()
    assert "ss" not in "".join("t" if size == 0 else "s" for size in slices)
    assert slices.count(0) > 2 * (MANY / SLICE_ENTRIES - 1)
    found = check(ResetOffsetBody, reply, "offset_table", MANY)
    assert found[QUEUES[-1]] == 1
    assert many.connection.pushed[-1].body == reply.body


@virtual
async def test_the_figures_of_a_topic_with_many_queues_are_complete(many):
    reply = await asked(many, STATS)
    found = check(TopicStatsTable, reply, "offset_table", MANY)
    assert found[MessageQueue("T", "broker-a", MANY - 1)].max_offset == 1
    assert found[MessageQueue("T", "broker-a", 0)].max_offset == 0


@virtual
async def test_a_groups_progress_over_many_queues_is_complete(many):
    found = check(ConsumeStats, await asked(many, PROGRESS), "offset_table", MANY)
    queue = MessageQueue("T", "broker-a", MANY - 1)
    assert (found[queue].broker_offset, found[queue].consumer_offset) == (1, MANY - 1)


@virtual
async def test_large_tables_are_complete(many):
    topics = check(
        TopicConfigSerializeWrapper,
        await asked(many, TOPICS),
        "topic_config_table",
        len(many.state.topics.table),
    )
    assert topics == many.state.topics.table
    groups = check(
        SubscriptionGroupWrapper,
        await asked(many, GROUPS),
        "subscription_group_table",
        len(many.state.groups.table),
    )
    assert groups == many.state.groups.table
    found = check(
        ConsumerOffsetSerializeWrapper, await asked(many, OFFSETS), "offset_table", MANY + 1
    )
    assert found == many.state.offsets.table


@virtual
async def test_a_table_is_encoded_once_per_version(many, slices):
    first = await asyncio.gather(*(asked(many, TOPICS) for _ in range(5)))
    made = len(slices)
    assert made == -(-len(many.state.topics.table) // SLICE_ENTRIES)
    again = many.dispatch(TOPICS, many.connection)
    assert isinstance(again, Command)
    assert {bytes(reply.body) for reply in [*first, again]} == {bytes(again.body)}
    assert len(slices) == made
    many.topic("New")
    assert b'"New"' in bytes((await asked(many, TOPICS)).body)


@virtual
async def test_the_answers_of_several_connections_take_turns(many):
    order: list[int] = []

    async def ask(port: int, connection: FakeConnection) -> None:
        await asked(many, STATS, connection)
        order.append(port)

    greedy, modest = FakeConnection(1), FakeConnection(2)
    await asyncio.gather(*(ask(1, greedy) for _ in range(20)), ask(2, modest))
    assert order.index(2) <= 2


@virtual
async def test_nothing_is_encoded_for_a_peer_that_does_not_read_or_has_closed(many, slices):
    taken = asyncio.Event()
    slow = FakeConnection(1)
    slow.drain = taken.wait
    waiting = asyncio.ensure_future(asked(many, STATS, slow))
    await asked(many, STATS)
    made = len(slices)
    await asyncio.sleep(1)
    assert not waiting.done()
    assert len(slices) == made
    taken.set()
    assert (await waiting).code == 0
    gone = FakeConnection(2)
    gone.close()
    assert await asked(many, STATS, gone) is None


@virtual
async def test_offsets_removed_meanwhile_leave_valid_text(many):
    asking = asyncio.ensure_future(asked(many, OFFSETS))
    await asyncio.sleep(0)
    many.state.offsets.table.clear()
    found = decode(ConsumerOffsetSerializeWrapper, (await asking).body).offset_table
    assert list(found) == ["T@g"]
