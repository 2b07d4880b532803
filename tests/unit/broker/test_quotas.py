"""Quotas on messages and bytes per second: the bucket, the settings, and what requests take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.config import BrokerConfig
from broker.errors import RequestRefused
from broker.traffic.quotas import (
    MAX_BUCKETS,
    SPREAD_SECONDS,
    Bucket,
    QuotaKind,
    QuotaRates,
    Quotas,
    parse_rates,
    take,
)
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from remoting.protocol.message import batch
from remoting.protocol.message.view import iter_records
from remoting.protocol.own_codes import RETRY_AFTER
from remoting.runtime.settings import ConfigError
from tests.support.clock import ManualClock
from tests.unit.broker.harness import (
    Bench,
    FakeConnection,
    fields_of,
    pull_command,
    send_command,
)

MakeBench = Callable[..., Bench]
BUSY = 2


def retry_after(reply: Command) -> float:
    """Return the seconds that a refusal names."""
    assert reply.code == BUSY
    return int(fields_of(reply)[RETRY_AFTER]) / 1000


def near(seconds: float) -> Any:
    """Return the time rounded up to a millisecond, with the error of a float."""
    return pytest.approx(seconds, abs=0.0015)


# --- the bucket


@given(
    rate=st.integers(1, 10_000),
    requests=st.lists(st.tuples(st.floats(0, 3), st.integers(0, 20_000))),
)
def test_no_request_passes_above_the_rate_times_the_time_and_the_burst(
    rate: int, requests: list[tuple[float, int]]
) -> None:
    now, taken = 0.0, 0
    bucket = Bucket(rate, now)
    for pause, amount in requests:
        now += pause
        if bucket.wait(now):
            continue
        # It passes with at least one token; only what it needs beyond that is a debt.
        assert taken + 1 <= rate * now + rate + 1e-3
        bucket.take(amount)
        taken += amount


@given(rate=st.integers(1, 10_000), debt=st.integers(1, 10**7))
def test_a_request_passes_after_the_time_it_was_told_to_wait(rate: int, debt: int) -> None:
    bucket = Bucket(rate, 0.0)
    bucket.take(rate + debt)
    wait = bucket.wait(0.0)
    assert wait == pytest.approx((debt + 1) / rate)
    assert bucket.wait(wait * 0.99) > 0
    assert bucket.wait(wait + 0.001) == 0


def test_refused_requests_return_one_after_the_other_at_the_rate() -> None:
    bucket = Bucket(100, 0.0)
    for _ in range(100):
        bucket.take(1)
    assert [bucket.turn(0.0) for _ in range(5)] == pytest.approx([0.01, 0.02, 0.03, 0.04, 0.05])
    latest = max(bucket.turn(0.0) for _ in range(10_000))
    assert latest == pytest.approx(0.01 + SPREAD_SECONDS)
    assert bucket.turn(2.0) == 0


# --- the settings


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("0", QuotaRates()),
        ("1000", QuotaRates(1000)),
        ("1000; orders=500;audit=0;", QuotaRates(1000, {"orders": 500, "audit": 0})),
        ("%RETRY%g=5", QuotaRates(0, {"%RETRY%g": 5})),
        ("0;a=b=7", QuotaRates(0, {"a=b": 7})),
    ],
)
def test_a_rate_has_exceptions_by_name(text: str, rates: QuotaRates) -> None:
    assert parse_rates(text) == rates
    assert parse_rates(str(rates)) == rates


@pytest.mark.parametrize(
    "text", ["", "x", "-1", "1.5", "1;2", "1;=2", "1;a=", "1;a=1;a=2", "1;;a=1", "9" * 17, "\u0663"]
)
def test_other_texts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r"pocketmqMaxTopicBytesPerSecond.*1000;orders=5000"):
        BrokerConfig.from_sources(overrides={"pocketmqMaxTopicBytesPerSecond": text})


def test_quotas_of_accounts_need_accounts() -> None:
    values = {"pocketmqMaxAccountBytesPerSecond": "app=100"}
    with pytest.raises(ConfigError, match="need aclEnable=true"):
        BrokerConfig.from_sources(overrides=values)
    BrokerConfig.from_sources(overrides={**values, "aclEnable": "true"})


# --- requests


def test_sends_above_the_rate_of_their_topic_are_refused_and_pass_later(make_bench: MakeBench):
    bench = make_bench(max_topic_messages_per_second=QuotaRates(5, {"Free": 0}))
    assert [bench.send("T").code for _ in range(7)] == [0] * 5 + [BUSY] * 2
    refused = bench.send("T")
    wait = retry_after(refused)
    assert wait == near(0.6), "the third that waits"
    assert refused.remark == (
        "topic T has used up its quota of 5 messages a second for sends "
        f"(pocketmqMaxTopicMessagesPerSecond); try again in {wait * 1000:.0f} ms"
    )
    assert fields_of(refused)["MSG_REGION"] == "DefaultRegion"
    assert {bench.send("Free").code for _ in range(20)} == {0}
    assert bench.send("Other").code == 0
    bench.clock.advance(wait)
    assert [bench.send("T").code for _ in range(4)] == [0] * 3 + [BUSY]
    assert bench.processors.quotas.refusals[QuotaKind("topic", "messages", "send")] == 4
    before = bench.store.log.end
    assert bench.ask(send_command("T", oneway=True)) is None
    assert bench.store.log.end == before


def test_a_batch_counts_its_messages(make_bench: MakeBench) -> None:
    bench = make_bench(max_topic_messages_per_second=QuotaRates(10))
    body = batch.encode([(0, b"x", b"")] * 25)
    many = send_command("T", body, code=RequestCode.SEND_BATCH_MESSAGE, batch=True)
    assert bench.must(many).code == 0
    assert retry_after(bench.send("T")) == near(1.6), "15 messages of debt, and one"
    bench.clock.advance(1.601)
    assert bench.send("T").code == 0


def test_a_message_larger_than_the_burst_passes_and_delays_the_next(make_bench: MakeBench) -> None:
    bench = make_bench(max_topic_bytes_per_second=QuotaRates(1000))
    assert bench.send("T", bytes(10_000)).code == 0
    size = bench.store.log.end
    assert size > 10_000, "properties and the record's head count"
    wait = retry_after(bench.send("T"))
    assert wait == near((size - 1000 + 1) / 1000)
    bench.clock.advance(wait + 0.001)
    assert bench.send("T", bytes(10_000)).code == 0


def test_each_group_pulls_from_a_topic_at_its_rate(make_bench: MakeBench) -> None:
    bench = make_bench(max_topic_messages_per_second=QuotaRates(10))
    for _ in range(3):
        for _ in range(10):
            assert bench.send("T").code == 0
        bench.clock.advance(1)

    def pull(offset: int, group: str, most: int = 32) -> Command:
        return bench.must(
            pull_command("T", queue_offset=offset, consumer_group=group, max_msg_nums=most)
        )

    assert len(list(iter_records(pull(0, "g", 8).body))) == 8
    assert len(list(iter_records(pull(8, "g").body))) == 10, "what the bucket holds"
    refused = pull(18, "g")
    assert retry_after(refused) == near(0.9), "8 messages of debt, and one"
    assert "for pulls" in (refused.remark or "")
    assert pull(0, "h").code == 0, "another group"
    assert bench.send("T").code == 0, "sends are counted apart"
    bench.clock.advance(0.901)
    assert pull(18, "g").code == 0
    assert bench.processors.quotas.refusals[QuotaKind("topic", "messages", "pull")] == 1


def test_parked_pulls_that_wake_together_are_within_the_quota(make_bench: MakeBench) -> None:
    bench = make_bench(max_topic_messages_per_second=QuotaRates(2))
    bench.topic("T")
    woken: list[Any] = []
    bench.state.store.dispatcher.on_arrival = lambda *event: woken.extend(
        bench.state.long_polls.arrived(*event)
    )
    for _ in range(5):
        held = pull_command("T", sys_flag=6, suspend_timeout_millis=3000)
        assert bench.ask(held) is None
    assert bench.send("T").code == 0
    bench.processors.pull.wake(woken)
    codes = [reply.code for reply in bench.connection.sent]
    assert codes == [0] * 2 + [BUSY] * 3
    assert retry_after(bench.connection.sent[2]) == near(0.5)


def test_a_message_sent_back_counts_as_sent_to_the_retry_topic(make_bench: MakeBench) -> None:
    bench = make_bench(max_topic_messages_per_second=QuotaRates(0, {"%RETRY%g": 1}))
    assert bench.send("T").code == 0
    header = ConsumerSendMsgBackRequestHeader(offset=0, group="g", delay_level=1)
    back = Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    assert bench.must(back).code == 0
    assert retry_after(bench.must(back)) == near(1)
    bench.clock.advance(1.001)
    assert bench.must(back).code == 0


def test_changed_rates_apply_at_once_and_unchanged_ones_go_on(make_bench: MakeBench) -> None:
    bench = make_bench(
        max_topic_messages_per_second=QuotaRates(1), max_topic_bytes_per_second=QuotaRates(9)
    )

    def configure(text: bytes) -> int:
        return bench.must(Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=text)).code

    assert bench.send("T").code == 0
    assert configure(b"pocketmqMaxTopicMessagesPerSecond=1000\n") == 0
    assert "bytes a second" in (bench.send("T").remark or ""), "the debt of bytes remains"
    assert configure(b"pocketmqMaxTopicBytesPerSecond=0\n") == 0
    assert bench.send("T").code == 0
    assert configure(b"pocketmqMaxTopicBytesPerSecond=many\n") == 1
    assert configure(b"pocketmqMaxAccountBytesPerSecond=5\n") == 1, "there are no accounts"


def test_the_buckets_are_bounded_and_the_longest_unused_is_dropped(make_bench: MakeBench) -> None:
    quotas = make_bench(max_topic_messages_per_second=QuotaRates(1)).processors.quotas
    command, connection = Command.request(RequestCode.SEND_MESSAGE_V2), FakeConnection()
    buckets = [
        quotas.admit_send(command, connection, f"T{n}")[0].bucket for n in range(MAX_BUCKETS)
    ]
    assert quotas.admit_send(command, connection, "T0")[0].bucket is buckets[0]
    quotas.admit_send(command, connection, "another")
    assert quotas.admit_send(command, connection, "T0")[0].bucket is buckets[0]
    assert quotas.admit_send(command, connection, "T1")[0].bucket is not buckets[1]


def test_the_runtime_information_counts_refusals_and_names_unknown_topics(make_bench: MakeBench):
    bench = make_bench(max_topic_messages_per_second=QuotaRates(0, {"T": 1, "Mispelt": 9}))
    assert [bench.send("T").code for _ in range(3)] == [0, BUSY, BUSY]
    answer = bench.must(Command.request(RequestCode.GET_BROKER_RUNTIME_INFO))
    table = decode(KVTable, answer.body).table
    assert table["pocketmqQuotaRefusals"] == "2"
    assert table["pocketmqQuotasWithoutTopic"] == "Mispelt"


def test_an_account_has_one_rate_for_all_its_topics_and_another_for_its_pulls() -> None:
    config = BrokerConfig(acl_enable=True, max_account_messages_per_second=QuotaRates(5, {"b": 0}))
    clock = ManualClock()
    quotas = Quotas(lambda: config.rates, clock, lambda command, _: command.fields.get("AccessKey"))
    connection: Any = FakeConnection()

    def by(account: str | None) -> Command:
        extra = {} if account is None else {"AccessKey": account}
        return Command.request(RequestCode.SEND_MESSAGE_V2, extra=extra)

    take(quotas.admit_send(by("a"), connection, "One"), 5, 1000)
    with pytest.raises(RequestRefused, match="account a has used up its quota of 5 messages"):
        quotas.admit_send(by("a"), connection, "Other")
    take(quotas.admit_pull(by("a"), connection, "One", "g"), 5, 1000)
    with pytest.raises(RequestRefused, match="for pulls"):
        quotas.admit_pull(by("a"), connection, "Other", "h")
    for account in ("b", None):
        assert quotas.admit_send(by(account), connection, "One") == ()
        assert quotas.admit_pull(by(account), connection, "One", "g") == ()
    assert quotas.admit_send(by("c"), connection, "One"), "it has a bucket of its own"
    clock.advance(1)
    quotas.admit_send(by("a"), connection, "Other")
