"""The load generator in C against a broker: its counts match the broker's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import client
from benchmarks import beside, groups, replication
from benchmarks import signed as signing
from benchmarks.scenarios import SCENARIOS, Scenario
from benchmarks.tools import BenchmarkError, Target, fill, load
from pocketmq import certificates, testing
from remoting.protocol.frame import encode
from tests.support.sizes import size
from tests.unit.broker.harness import send_command

pytestmark = pytest.mark.bench

PAIRS_AND_GROUPS = {**replication.PARTS, **groups.PARTS}

BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    tls = certificates.make(tmp_path_factory.mktemp("tls"))
    with testing.broker(settings=tls.settings) as server:
        yield Target(server.nameserver, server.broker, server.pid)


async def stored(target: Target, topic: str) -> int:
    async with client.Admin(target.nameserver) as admin:
        offsets = (await admin.topic_stats(topic)).values()
    return sum(offset.max_offset for offset in offsets)


@pytest.mark.parametrize(
    "name", ["send-mixed", "send-4x64", "send-1x1", "send-128b-4x64", "batch", "tls-mixed"]
)
async def test_messages_counted_as_acknowledged_are_stored(name: str, target: Target) -> None:
    figures = load(BY_NAME[name], target, seconds=1.0, warm=0.5)
    assert 0 < figures["n"] <= await stored(target, name)
    assert 0 < figures["p50_us"] <= figures["p99_us"] <= figures["p999_us"]


@pytest.mark.parametrize("name", ["pull-mixed", "pull-1", "pull-4", "long-poll"])
def test_filled_messages_are_pulled_or_delivered(name: str, target: Target) -> None:
    fill(target, name, 2000, vary=name == "pull-mixed")
    figures = load(BY_NAME[name], target, seconds=1.0, warm=0.5)
    assert figures["n"] > 0
    assert figures["errs"] == 0


async def test_sends_to_twenty_topics_reach_all_of_them(target: Target) -> None:
    figures = load(BY_NAME["send-topics"], target, seconds=0.5, warm=0.2)
    each = [await stored(target, f"send-topics_{number}") for number in range(20)]
    assert all(each)
    assert 0 < figures["n"] <= sum(each)


async def test_a_broker_reads_the_headers_of_four_clients_correctly(
    target: Target,
) -> None:
    load(BY_NAME["send-mixed"], target, seconds=0.2, warm=0.0)
    async with client.Admin(target.nameserver) as admin:
        found = await admin.topic_stats("send-mixed")
    async with client.PullConsumer(target.nameserver, group="reader") as consumer:
        consumer.assign(found)
        for queue in found:
            await consumer.seek(queue, client.BEGIN)
        for message in await consumer.get_many(10, timeout=5.0):
            assert 256 <= len(message.body) <= 1792
            assert message.tag in {"paid", "open", "cancelled", "refund", "in_transit"}
            assert {"KEYS", "UNIQ_KEY", "trace"} <= set(message.properties)


@pytest.mark.interop
def test_java_clients_send_pull_and_commit_at_once(target: Target) -> None:
    figures = load(BY_NAME["mixed-all"], target, seconds=1.0, warm=1.0)
    assert figures["n"] > 0
    assert figures["errs"] == 0


def test_many_queues_are_measured_beside_few() -> None:
    plan = beside.Plan(rounds=1, seconds=0.3, warm_up=0.0, queues=64)
    made = beside.queues(plan)
    assert all(run["n"] > 0 for runs in made.runs.values() for run in runs)
    assert list(made.runs) == ["64 queues", "4 queues"]


def test_two_workers_are_measured_beside_one() -> None:
    made = beside.workers(beside.Plan(rounds=1, seconds=0.3, warm_up=0.0))
    assert made.runs["2 workers"][0]["n"] > 0
    assert made.ratio("cpu_us_per").median > 0


@pytest.mark.interop
def test_signed_sends_are_measured_beside_unsigned_ones_and_those_at_apaches() -> None:
    found = signing.measure(1, 0.2)
    assert all(rows[0]["requests"] > 0 for rows in found.values())
    for kind, line in zip(found, signing.table(found).splitlines(), strict=True):
        assert line.startswith(kind)


def test_a_broker_that_refuses_the_signed_sends_yields_no_figures(target: Target) -> None:
    with pytest.raises(BenchmarkError, match="a send was refused"):
        signing.run(target, [encode(send_command("bad name"))], 0.1)


async def test_it_stops_after_the_count_it_was_given(target: Target) -> None:
    fill(target, "counted", 1000)
    assert 1000 <= await stored(target, "counted") < 1000 + 4 * 64 * 2


def test_an_unreachable_broker_is_reported_in_one_line() -> None:
    nobody = Target("127.0.0.1:1", "127.0.0.1:1", 1)
    with pytest.raises(BenchmarkError, match="Connection refused"):
        load(BY_NAME["send-1x1"], nobody, seconds=0.1, warm=0.0)


def test_failed_requests_yield_no_figures(target: Target) -> None:
    bad = Scenario(
        name="bad/name", text="", mode="send", options={"inflight": 1, "size": 1}, bars={}
    )
    with pytest.raises(BenchmarkError, match="requests failed"):
        load(bad, target, seconds=0.1, warm=0.0)


@pytest.mark.interop
@pytest.mark.parametrize("name", size(ci=["replica-async"], soak=[*PAIRS_AND_GROUPS]))
def test_pairs_and_groups_are_measured(name: str) -> None:
    plan = beside.Plan(rounds=1, seconds=0.3, warm_up=0.3, settle=0.0, catch_up_messages=2_000)
    made = PAIRS_AND_GROUPS[name](plan)
    for side in made.sides:
        assert made.runs[side][0][next(iter(made.shown))] > 0
