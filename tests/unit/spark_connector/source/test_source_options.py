"""Options of the source: every name, value, alias and contradiction."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from remoting.protocol.signing import Credentials
from remoting.security.tls import Tls
from spark_connector.errors import OptionError
from spark_connector.options import OnDecodeError
from spark_connector.source.options import SOURCE_OPTIONS, OnDataLoss, SourceOptions
from spark_connector.source.positions import Edge, Instant
from tests.harness.certificates import self_signed

BASE = {"nameServer": "127.0.0.1:9876", "topic": "orders"}


def of(**given: Any) -> SourceOptions:
    return SourceOptions.of(BASE | {name: str(value) for name, value in given.items()})


def test_few_options_are_required():
    options = of()
    assert options.connection.name_servers == ("127.0.0.1:9876",)
    assert options.subscription.topics == ("orders",)
    assert (options.starting, options.ending) == (None, None)
    assert options.read.on_data_loss is OnDataLoss.FAIL
    assert options.read.filter_tags == "*"
    assert options.limits.max_offsets is None
    assert options.max_records_per_partition == 250_000
    assert (options.group, options.commit) == ("spark-rocketmq", False)


def test_names_are_case_insensitive():
    options = SourceOptions.of({"NAMESERVER": "a:1", "TOPIC": "t", "MaxOffsetsPerTrigger": "7"})
    assert options.limits.max_offsets == 7


def test_errors_spell_names_as_documentation_does():
    with pytest.raises(OptionError, match="maxOffsetsPerTrigger of format rocketmq can't be '0'"):
        SourceOptions.of(BASE | {"maxoffsetspertrigger": "0"})


def test_name_servers_are_a_list_or_come_from_the_environment(monkeypatch: pytest.MonkeyPatch):
    options = SourceOptions.of({"namesrvAddr": "a:1;b:2,a:1", "topic": "t"})
    assert options.connection.name_servers == ("a:1", "b:2")
    monkeypatch.setenv("NAMESRV_ADDR", "c:3")
    assert SourceOptions.of({"topic": "t"}).connection.name_servers == ("c:3",)
    monkeypatch.delenv("NAMESRV_ADDR")
    with pytest.raises(OptionError, match=r"nameServer .* missing.*NAMESRV_ADDR"):
        SourceOptions.of({"topic": "t"})


@pytest.mark.parametrize(
    ("alias", "name", "value"),
    [
        ("subscribe", "topic", "other"),
        ("includeHeaders", "includeProperties", "false"),
        ("group", "consumerGroup", "G"),
        ("kafka.group.id", "consumerGroup", "G"),
        ("pullTimeoutMs", "requestTimeoutMs", "5000"),
        ("kafkaConsumer.pollTimeoutMs", "readTimeoutMs", "5000"),
        ("subExpression", "filterTags", "A || B"),
        ("rocketmq.client.requestTimeoutMs", "requestTimeoutMs", "5000"),
    ],
)
def test_names_of_other_connectors_mean_the_same(alias: str, name: str, value: str):
    base = {"nameServer": "a:1"} | ({} if name == "topic" else {"topic": "t"})
    assert SourceOptions.of(base | {alias: value}) == SourceOptions.of(base | {name: value})


def test_an_unknown_option_is_an_error_with_the_nearest_name():
    with pytest.raises(OptionError, match=r"maxOffsetPerTrigger.*did you mean 'maxOffsetsPerTri"):
        of(maxOffsetPerTrigger=5)
    with pytest.raises(OptionError, match=r"rocketmq.client.requestTimeout'.*did you mean"):
        SourceOptions.of(BASE | {"rocketmq.client.requestTimeout": "5"})
    with pytest.raises(OptionError, match=r"docs/spark.md"):
        of(zzzzzz=1)


@pytest.mark.parametrize("name", ["kafka.security.protocol", "secretKeyFile"])
def test_unsupported_options_are_refused_without_showing_their_value(name: str):
    with pytest.raises(OptionError, match=r"give tls=true|give credentialsFile") as caught:
        of(**{name: "hush-hush"})
    assert "hush-hush" not in str(caught.value)


def test_tls_comes_from_options_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    ca = str(self_signed(tmp_path).cert)
    assert of().read.connection.tls is None
    assert of(tls="true").connection.tls == Tls()
    expected = Tls(ca=ca, check_hostname=False)
    assert of(tlsCa=ca, tlsCheckHostname="false").read.connection.tls == expected
    monkeypatch.setenv("POCKETMQ_CLIENT_TLS_CA", ca)
    assert of().connection.tls == Tls(ca=ca)
    assert of(tls="false").connection.tls is None
    with pytest.raises(OptionError, match=r"none.pem can't be used: No such file"):
        of(tlsCa=str(tmp_path / "none.pem"))


def test_credentials_come_from_options_or_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    keys = Credentials("billing", "hush-hush")
    monkeypatch.setenv("POCKETMQ_ACCESS_KEY", "billing")
    monkeypatch.setenv("POCKETMQ_SECRET_KEY", "hush-hush")
    assert of().read.connection.credentials == keys
    other = of(accessKey="a", secretKey="b", securityToken="c").connection.credentials
    assert other == Credentials("a", "b", "c")
    file = tmp_path / "keys.yml"
    file.write_text("accessKey: billing\nsecretKey: hush-hush\n")
    file.chmod(0o600)
    assert of(credentialsFile=file).read.connection.credentials == str(file)
    assert "hush" not in repr(of())


def test_unusable_credentials_are_refused_without_showing_them(tmp_path: Path):
    file = tmp_path / "keys.yml"
    with pytest.raises(OptionError, match="only a part of the keys is given") as caught:
        of(secretKey="hush-hush")
    assert "hush" not in str(caught.value)
    with pytest.raises(OptionError, match="credentialsFile and keys are both given"):
        of(accessKey="a", credentialsFile=file)
    with pytest.raises(OptionError, match=r"keys\.yml can't be read"):
        of(credentialsFile=file)


def test_kafkas_server_option_is_refused_with_ours():
    with pytest.raises(OptionError, match="nameServer=host:port"):
        SourceOptions.of(BASE | {"kafka.bootstrap.servers": "a:1"})


def test_sparks_own_options_are_ignored():
    assert of(checkpointLocation="/x", queryName="q") == of()


@pytest.mark.parametrize(
    "given",
    [{"filterSql": "a > 5"}, {"subExpressionType": "SQL92", "subExpression": "a > 5"}],
)
def test_an_sql_filter_under_its_name_or_the_old_connectors(given: dict[str, str]):
    tags = of(**given).read.tags
    assert (tags.text, tags.kind) == ("a > 5", "SQL92")
    assert tags.matches("any")


def test_filters_by_tag_and_by_properties_exclude_each_other():
    with pytest.raises(OptionError, match="filterTags and filterSql are both given"):
        of(filterTags="a", filterSql="b > 5")
    assert of(filterTags="a", subExpressionType="SQL92").read.filter_tags == "a"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("subscribePattern", "a.*"),
        ("assign", '{"t":{"b":[0]}}'),
    ],
)
def test_one_way_to_name_topics_is_enough(one: str, other: str):
    with pytest.raises(OptionError, match=f"topic and {one} contradict"):
        of(**{one: other})


def test_a_query_needs_a_topic():
    with pytest.raises(OptionError, match=r"needs topics to read.*topic="):
        SourceOptions.of({"nameServer": "a:1"})


def test_an_alias_and_its_name_may_not_differ():
    with pytest.raises(OptionError, match="topic and subscribe mean the same"):
        of(subscribe="other")
    assert of(subscribe="orders") == of()


@pytest.mark.parametrize(
    ("given", "position"),
    [
        ({"startingOffsets": "earliest"}, Edge.EARLIEST),
        ({"startingOffsets": "LATEST"}, Edge.LATEST),
        ({"startingTimestamp": "1700000000000"}, Instant(1_700_000_000_000)),
        ({"startingTimestamp": "2026-01-31T09:00:00+01:00"}, Instant(1_769_846_400_000)),
        ({"startingTimestamp": "2026-01-31T08:00:00"}, Instant(1_769_846_400_000)),
        ({"startingTimestamp": "-1h"}, Instant(-3_600_000, relative=True)),
        ({"startingTimestamp": "-1.5 min"}, Instant(-90_000, relative=True)),
        ({"startingTimestamp": "now"}, Instant(0, relative=True)),
    ],
)
def test_one_position_for_all_queues(given: dict[str, str], position: object):
    starting = of(**given).starting
    assert starting is not None
    assert starting.every == position


def test_positions_for_each_queue():
    text = json.dumps({"orders": {"broker-a": {"0": 23, "1": -2, "2": -1}}})
    starting = of(startingOffsets=text).starting
    assert starting is not None
    assert starting.each == {"orders": {"broker-a": {0: 23, 1: Edge.EARLIEST, 2: Edge.LATEST}}}
    short = of(startingOffsets='{"orders":{"0":23}}').starting
    assert short is not None
    assert short.each == {"orders": {None: {0: 23}}}
    times = of(startingOffsetsByTimestamp='{"orders":{"b":{"0":"-1h","1":5}}}').starting
    assert times is not None
    assert times.each == {"orders": {"b": {0: Instant(-3_600_000, relative=True), 1: Instant(5)}}}


@pytest.mark.parametrize(
    "text",
    [
        "somewhere",
        "{",
        "{}",
        "[]",
        '{"t":5}',
        '{"t":{}}',
        '{"t":{"b":{"x":1}}}',
        '{"t":{"b":{"0":-3}}}',
        '{"t":{"b":{"0":"5"}}}',
        '{"t":{"b":{"0":true}}}',
        '{"t":{"b":{"0":1.5}}}',
        '{"t":{"b":{"0":1,"0":2}}}',
        '{"t":' * 5000,
        '{"t":{"b":{"0":1},"1":2}}',
    ],
)
def test_unreadable_offsets_are_errors_that_name_the_option(text: str):
    with pytest.raises(OptionError, match="startingOffsets of format rocketmq can't be"):
        of(startingOffsets=text)


@pytest.mark.parametrize("instant", ["1.5", "true", "null", '"yesterday"'])
def test_an_unreadable_instant_is_an_error_that_names_the_option(instant: str):
    with pytest.raises(OptionError, match="startingOffsetsByTimestamp"):
        of(startingOffsetsByTimestamp=f'{{"t":{{"b":{{"0":{instant}}}}}}}')


def test_endings_do_not_accept_earliest():
    assert of(endingOffsets="latest").ending is not None
    with pytest.raises(OptionError, match="endingOffsets"):
        of(endingOffsets="earliest")
    with pytest.raises(OptionError, match="can't be an end"):
        of(endingOffsets='{"orders":{"0":-2}}')


def test_two_beginnings_contradict_each_other():
    with pytest.raises(OptionError, match="startingOffsets and startingTimestamp contradict"):
        of(startingOffsets="earliest", startingTimestamp="-1h")


def test_committed_offsets_need_a_group():
    with pytest.raises(OptionError, match=r"startingOffsets=committed needs a consumer group"):
        of(startingOffsets="committed")
    options = of(startingOffsets="committed", consumerGroup="G", onNoCommit="error")
    assert options.on_no_commit is None
    with pytest.raises(OptionError, match="commitOffsets=broker needs a consumer group"):
        of(commitOffsets="broker")


def test_a_given_group_id_prefix_is_a_group():
    options = of(startingOffsets="committed", groupIdPrefix="P")
    assert (options.group, options.commit) == ("P", False)
    assert of(commitOffsets="broker", groupIdPrefix="P").commit is True


def test_a_consumer_group_commits_by_default():
    assert of(consumerGroup="G").commit is True
    assert of(consumerGroup="G", commitOffsets="none").commit is False


@pytest.mark.parametrize(
    ("given", "policy"),
    [
        ({"failOnDataLoss": "false"}, OnDataLoss.SKIP),
        ({"failOnDataLoss": "true"}, OnDataLoss.FAIL),
        ({"onDataLoss": "earliest"}, OnDataLoss.EARLIEST),
        ({"onDataLoss": "skip", "failOnDataLoss": "false"}, OnDataLoss.SKIP),
    ],
)
def test_data_loss_is_an_error_or_not(given: dict[str, str], policy: OnDataLoss):
    assert of(**given).read.on_data_loss is policy


def test_contradictory_options_are_errors():
    with pytest.raises(OptionError, match="failOnDataLoss=true and onDataLoss=skip contradict"):
        of(failOnDataLoss="true", onDataLoss="skip")
    with pytest.raises(OptionError, match=r"minOffsetsPerTrigger=5 and max\w+=4 contradict"):
        of(minOffsetsPerTrigger=5, maxOffsetsPerTrigger=4)
    with pytest.raises(OptionError, match="filterTags and subExpression contradict"):
        of(filterTags="A", subExpression="A")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nameServer", "nowhere"),
        ("nameServer", "a:70000"),
        ("topic", ""),
        ("topic", "a b"),
        ("maxOffsetsPerTrigger", "0"),
        ("maxOffsetsPerTrigger", "many"),
        ("maxBytesPerTrigger", "-5"),
        ("maxTriggerDelay", "soon"),
        ("includeProperties", "perhaps"),
        ("onDataLoss", "cry"),
        ("onDecodeError", "cry"),
        ("filterTags", "||"),
        ("pullBatchSize", "5000"),
        ("requestTimeoutMs", "0"),
        ("readTimeoutMs", "2d"),
        ("startingTimestamp", "yesterday"),
        ("consumerGroup", "a b"),
        ("minPartitions", "0"),
        ("commitOffsets", "spark"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_option_and_value(name: str, value: str):
    with pytest.raises(
        OptionError, match=re.escape(f"{name} of format rocketmq can't be {value!r}")
    ):
        SourceOptions.of({**BASE, name: value})


def test_a_wrong_pattern_is_an_error():
    with pytest.raises(OptionError, match="not a Python regular expression"):
        SourceOptions.of({"nameServer": "a:1", "subscribePattern": "a("})


@pytest.mark.parametrize(
    "text", ['{"t":[0]}', '{"t":{"b":[]}}', '{"t":{"b":[-1]}}', "x", '{"t":5}']
)
def test_a_wrong_assignment_is_an_error(text: str):
    with pytest.raises(OptionError, match="assign of format rocketmq can't be"):
        SourceOptions.of({"nameServer": "a:1", "assign": text})


def test_values_have_their_units():
    options = of(
        maxBytesPerTrigger="64m", maxTriggerDelay="2m", requestTimeoutMs="1500", readTimeoutMs="20s"
    )
    assert options.limits.max_bytes == 64 << 20
    assert options.limits.max_delay == 120.0
    assert options.connection.request_timeout == options.read.connection.request_timeout == 1.5
    assert options.read.read_timeout == 20.0
    assert of(onDecodeError="raw").read.on_decode_error is OnDecodeError.RAW


def test_no_two_options_share_a_name():
    names = [name.lower() for option in SOURCE_OPTIONS for name in option.names]
    assert len(names) == len(set(names))
