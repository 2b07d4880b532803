"""Pulls with SQL92 filters: of the group, and of the pull itself; parked ones."""

from __future__ import annotations

import pytest

from broker.store.limits import StoreLimits
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.heartbeat import CheckClientRequestBody, SubscriptionData
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.message.view import iter_records
from tests.unit.broker.harness import Bench, pull_command
from tests.unit.broker.processors.pulls import NO_SUBSCRIPTION, bounds, pull
from tests.unit.broker.processors.test_pull_held import wake

SQL = {"expression_type": "SQL92"}


def send(bench: Bench, *amounts: object) -> None:
    for amount in amounts:
        bench.send("T", str(amount).encode(), properties=f"amount\x01{amount}")


def bodies(reply: Command) -> list[str]:
    return [bytes(record.body).decode() for record in iter_records(reply.body)]


@pytest.fixture
def filled(bench: Bench) -> Bench:
    bench.topic("T")
    send(bench, *range(10))
    return bench


@pytest.mark.parametrize("code", [RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE])
def test_a_pull_that_brings_its_expression(filled, code):
    command = pull_command("T", subscription="amount >= 7", **SQL)
    command.code = code
    reply = filled.ask(command)
    assert reply.code == 0
    assert bodies(reply) == ["7", "8", "9"]
    assert bounds(reply) == (10, 0, 10)


def test_a_pull_by_the_expression_of_its_group(filled):
    filled.subscribe("g", "T", "amount IN ('1', '3')", **SQL)
    reply = pull(filled, **NO_SUBSCRIPTION)
    assert bodies(reply) == ["1", "3"]
    assert bounds(reply) == (10, 0, 10)


def test_as_many_as_are_asked_for_and_the_next_pull_goes_on_behind(filled):
    reply = pull(filled, subscription="amount > 2", max_msg_nums=3, **SQL)
    assert bodies(reply) == ["3", "4", "5"]
    assert bounds(reply) == (6, 0, 10)
    reply = pull(filled, subscription="amount > 2", max_msg_nums=3, queue_offset=6, **SQL)
    assert bodies(reply) == ["6", "7", "8"]


def test_no_match_says_where_to_go_on(filled):
    reply = pull(filled, subscription="amount > 100", **SQL)
    assert (reply.code, reply.remark) == (20, "NO_MATCHED_MESSAGE")
    assert bounds(reply) == (10, 0, 10)


def test_no_more_is_looked_at_than_a_pull_may(make_bench):
    bench = make_bench()
    bench.topic("T")
    send(bench, *range(900))
    reply = pull(bench, subscription="amount = 850", **SQL)
    assert reply.code == 20
    assert bounds(reply) == (800, 0, 900)
    assert bodies(pull(bench, subscription="amount = 850", queue_offset=800, **SQL)) == ["850"]


@pytest.mark.parametrize(
    ("condition", "count", "looks"), [("amount = {}", 1_000, 15), ("amount CONTAINS '{}'", 20, 6)]
)
def test_a_pull_by_thousands_of_conditions_or_many_searches_looks_at_fewer_messages(
    bench, condition, count, looks
):
    bench.topic("T")
    send(bench, *range(100))
    expression = " OR ".join(condition.format(1_000 + number) for number in range(count))
    reply = pull(bench, subscription=expression, **SQL)
    assert reply.code == 20
    assert bounds(reply) == (looks, 0, 100)


def test_a_pull_passes_a_bounded_number_of_bytes(make_bench):
    bench = make_bench(store_limits=StoreLimits(max_filtered_bytes=100_000))
    bench.topic("T")
    for _ in range(10):
        bench.send("T", b"x" * 40_000, properties="amount\x015")
    reply = pull(bench, subscription="amount = 6", max_msg_bytes=50_000, **SQL)
    assert reply.code == 20
    assert bounds(reply) == (3, 0, 10)


def test_the_bytes_of_an_answer_are_bounded_too(bench):
    bench.topic("T")
    for _ in range(10):
        bench.send("T", b"x" * 40_000, properties="amount\x015")
    reply = pull(bench, subscription="amount = 5", **SQL)
    assert len(bodies(reply)) == 6
    assert bounds(reply) == (6, 0, 10)
    reply = pull(bench, subscription="amount = 5", max_msg_bytes=1, **SQL)
    assert len(bodies(reply)) == 1


def test_a_message_without_properties_or_with_another_kind_of_value(bench):
    bench.topic("T")
    bench.send("T", b"none")
    send(bench, "many", 3)
    assert bodies(pull(bench, subscription="amount <> 1", **SQL)) == ["3"]
    assert bodies(pull(bench, subscription="amount IS NULL", **SQL)) == ["none"]


# --- refusals


@pytest.mark.parametrize("expression", ["amount >", "amount BETWEEN 3 AND 1", "x" * 40_000])
def test_a_pull_with_a_wrong_expression_is_refused(filled, expression):
    reply = pull(filled, subscription=expression, **SQL)
    assert reply.code == 23
    assert reply.remark.startswith("parse the consumer's subscription failed: ")
    assert len(reply.remark) < 5_000


def test_a_group_whose_expression_is_wrong_is_told_so(filled):
    assert filled.subscribe("g", "T", "amount >", **SQL).code == 0
    reply = pull(filled, **NO_SUBSCRIPTION)
    assert (reply.code, reply.remark) == (
        27,
        "The broker's consumer filter data is not exist!Your expression may be wrong!",
    )


def test_a_pull_newer_than_the_groups_filter_waits_for_the_heartbeat(filled):
    filled.subscribe("g", "T", "amount = 1", version=5, **SQL)
    group = filled.state.consumers.groups["g"]
    group.subscriptions["T"].sub_version = 6
    reply = pull(filled, sub_version=6, **NO_SUBSCRIPTION)
    assert (reply.code, reply.remark) == (28, "the consumer's consumer filter data not latest")


def test_a_broker_without_property_filters_says_so(make_bench):
    bench = make_bench(enable_property_filter=False)
    bench.topic("T")
    refusal = 1, "The broker does not support consumer to filter message by SQL92"
    reply = pull(bench, subscription="amount = 1", **SQL)
    assert (reply.code, reply.remark) == refusal
    bench.subscribe("g", "T", "amount = 1", **SQL)
    reply = pull(bench, **NO_SUBSCRIPTION)
    assert (reply.code, reply.remark) == refusal
    reply = bench.must(check("amount = 1"))
    assert (reply.code, reply.remark) == refusal


def check(expression: str, kind: str = "SQL92") -> Command:
    body = CheckClientRequestBody(
        client_id="c",
        group="g",
        subscription_data=SubscriptionData(topic="T", sub_string=expression, expression_type=kind),
    )
    return Command.request(RequestCode.CHECK_CLIENT_CONFIG, body=encode(body))


def test_check_client_config_says_what_is_wrong_with_an_expression(bench):
    assert bench.must(check("amount > 1")).code == 0
    assert bench.must(check("anything", "TAG")).code == 0
    reply = bench.must(check("a BETWEEN 3 AND 1"))
    assert (reply.code, reply.remark) == (
        23,
        "java.lang.RuntimeException: Illegal values of between, left value(3) must less than or "
        "equal to right value(1)",
    )
    assert bench.must(check("a = 1", "JAVA")).code == 23
    assert bench.must(check("a = '" + "x" * 70_000)).code == 23
    assert bench.must(check("(" * 10_000)).code == 23


# --- parked pulls


def hold(bench: Bench, expression: str, **fields: object) -> None:
    fields = {"sys_flag": 4 | 2, "suspend_timeout_millis": 3000, **SQL, **fields}
    assert pull(bench, subscription=expression, **fields) is None


def arrive(bench: Bench, *amounts: object) -> list[Command]:
    woken: list = []
    bench.state.store.dispatcher.on_arrival = lambda *event: woken.extend(
        bench.state.long_polls.arrived(*event)
    )
    send(bench, *amounts)
    return wake(bench, woken)


def test_a_parked_pull_wakes_for_a_message_that_matches_only(bench):
    bench.topic("T")
    hold(bench, "amount > 5")
    assert arrive(bench, 1) == []
    assert arrive(bench, 2, 3) == []
    assert len(bench.state.long_polls) == 1
    (reply,) = arrive(bench, 9)
    assert bodies(reply) == ["9"]
    assert bounds(reply) == (4, 0, 4)
    assert len(bench.state.long_polls) == 0


def test_a_parked_pull_does_not_wait_for_what_has_come_already(bench):
    bench.topic("T")
    hold(bench, "amount = 850")
    # More than one pull looks at: the next one goes on there.
    (reply,) = arrive(bench, *range(900))
    assert (reply.code, bounds(reply)) == (20, (800, 0, 900))


def test_its_time_is_over_when_it_would_have_been(bench):
    bench.topic("T")
    hold(bench, "amount > 5")
    bench.clock.advance(2)
    assert arrive(bench, 1) == []
    bench.clock.advance(1.2)
    (reply,) = wake(bench, bench.state.long_polls.expired(bench.clock.monotonic()))
    # What it has looked at meanwhile is not looked at again.
    assert (reply.code, bounds(reply)) == (19, (1, 0, 1))


def test_a_parked_pull_of_a_group_takes_the_newest_expression(bench):
    bench.topic("T")
    bench.subscribe("g", "T", "amount > 5", version=1, **SQL)
    fields = {"sys_flag": 2, "suspend_timeout_millis": 3000, "subscription": None}
    assert pull(bench, **fields) is None
    assert arrive(bench, 1) == []
    bench.subscribe("g", "T", "amount < 5", version=2, **SQL)
    (reply,) = arrive(bench, 2)
    assert bodies(reply) == ["2"]


def test_a_stopping_broker_answers_it(bench):
    bench.topic("T")
    hold(bench, "amount > 5")
    bench.state.stopping = True
    (reply,) = arrive(bench, 1)
    assert reply.code == 20


def test_a_full_table_of_parked_pulls_answers_it(make_bench):
    bench = make_bench(max_parked_pulls=1)
    bench.topic("T")
    hold(bench, "amount > 5")
    woken = bench.state.long_polls.drain()
    hold(bench, "amount > 6")
    send(bench, 1)
    (reply,) = wake(bench, woken)
    assert (reply.code, bounds(reply)) == (20, (1, 0, 1))
