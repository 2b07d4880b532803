"""How a message is stored again after a consumer sent it back."""

from __future__ import annotations

from typing import Any

import pytest

from broker.delivery.redelivery import retries_exhausted, retry_level, sent_back, without_delay
from broker.store.config import DEFAULT_DELAY_LEVELS_MS as LEVELS
from remoting.protocol.bodies.group import (
    CustomizedRetryPolicy,
    ExponentialRetryPolicy,
    GroupRetryPolicy,
    SubscriptionGroupConfig,
)
from remoting.protocol.message import properties
from remoting.protocol.message.record import encode_record, host_bytes
from remoting.protocol.message.tags import tags_code
from remoting.protocol.message.view import RecordView

GROUP = SubscriptionGroupConfig(group_name="g")


def record(text: bytes = b"TAGS\x01a\x02WAIT\x01true", **fields: Any) -> RecordView:
    values = {
        "topic": "T",
        "body": b"body",
        "properties": text,
        "born_host": host_bytes("10.0.0.1", 5),
        "store_host": host_bytes("127.0.0.1", 20911),
        "physical_offset": 0x1FD2,
        "born_timestamp_ms": 77,
        "flag": 3,
        "sys_flag": 0x301,
        **fields,
    }
    return RecordView(encode_record(**values))


def test_a_message_sent_back_keeps_everything_but_its_position_and_counts_one_retry_more() -> None:
    message = sent_back(record(reconsume_times=2), "%RETRY%g", 1, 5)
    assert (message.topic, message.queue_id, message.reconsume_times) == ("%RETRY%g", 1, 3)
    assert (bytes(message.body), message.flag, message.sys_flag) == (b"body", 3, 0x301)
    assert message.born_timestamp_ms == 77
    assert message.born_host == host_bytes("10.0.0.1", 5)
    assert message.store_host == host_bytes("127.0.0.1", 20911)
    assert message.tags_code == tags_code("a")


def test_the_first_retry_records_its_origin() -> None:
    message = sent_back(record(), "%RETRY%g", 0, 3)
    assert properties.decode(message.properties) == {
        "TAGS": "a",
        "RETRY_TOPIC": "T",
        "ORIGIN_MESSAGE_ID": "7F000001000051AF0000000000001FD2",
        "WAIT": "false",
        "DELAY": "3",
    }


def test_the_first_retry_ignores_an_origin_that_the_producer_has_set() -> None:
    message = sent_back(record(b"RETRY_TOPIC\x01payments"), "%RETRY%g", 0, 3)
    assert properties.decode(message.properties)["RETRY_TOPIC"] == "T"
    assert message.properties.count(b"RETRY_TOPIC") == 1


def test_later_retries_keep_the_origin() -> None:
    text = b"RETRY_TOPIC\x01First\x02ORIGIN_MESSAGE_ID\x01ABC\x02DELAY\x013"
    message = sent_back(record(text, topic="%RETRY%g"), "%DLQ%g", 0, 0)
    assert properties.decode(message.properties) == {
        "RETRY_TOPIC": "First",
        "ORIGIN_MESSAGE_ID": "ABC",
        "WAIT": "false",
        "DELAY": "0",
    }
    assert message.properties.count(b"DELAY") == 1


@pytest.mark.parametrize(
    ("times", "asked", "version", "spent"),
    [
        (15, None, 407, False),
        (16, None, 407, True),
        (2, 3, 407, False),
        (3, 3, 407, True),
        (0, 0, 407, True),
        (20, 30, 121, False),
        (3, 3, 120, False),
    ],
)
def test_retries_are_bounded(times: int, asked: int | None, version: int, spent: bool) -> None:
    assert retries_exhausted(GROUP, times, asked, version) is spent


def test_a_group_sets_its_own_number_of_retries() -> None:
    assert retries_exhausted(
        SubscriptionGroupConfig(group_name="g", retry_max_times=0), 0, None, 407
    )


def test_each_round_waits_longer_unless_the_consumer_says_how_long() -> None:
    assert [retry_level(0, times, None, LEVELS) for times in (0, 1, 15)] == [3, 4, 18]
    assert retry_level(7, 15, None, LEVELS) == 7


def exponential(initial: int, longest: int, multiplier: int) -> GroupRetryPolicy:
    waits = ExponentialRetryPolicy(initial=initial, max=longest, multiplier=multiplier)
    return GroupRetryPolicy(type="EXPONENTIAL", exponential_retry_policy=waits)


def customized(*waits: int) -> GroupRetryPolicy:
    policy = CustomizedRetryPolicy(next=list(waits))
    return GroupRetryPolicy(type="CUSTOMIZED", customized_retry_policy=policy)


TIMES = (-1, 0, 1, 2, 5, 9, 32, 1000)


@pytest.mark.parametrize(
    ("policy", "waits_ms"),
    [
        (
            exponential(5000, 7_200_000, 2),
            (5000, 5000, 10_000, 20_000, 160_000, 2_560_000, 7_200_000, 7_200_000),
        ),
        (
            exponential(1000, 600_000, 3),
            (1000, 1000, 3000, 9000, 243_000, 600_000, 600_000, 600_000),
        ),
        (exponential(1000, 500, 2), (500,) * 8),
        (customized(7000), (7000,) * 8),
        (
            customized(1, 2, 3000, 4000, 20_000),
            (3000, 3000, 4000, 20_000, 20_000, 20_000, 20_000, 20_000),
        ),
    ],
)
def test_a_groups_policy_waits_as_apaches_classes_compute_it(
    policy: GroupRetryPolicy, waits_ms: tuple[int, ...]
) -> None:
    exact = sorted(set(waits_ms))
    levels = [retry_level(0, times, policy, exact) for times in TIMES]
    assert tuple(exact[level - 1] for level in levels) == waits_ms


def test_a_policys_wait_is_rounded_up_to_a_delay_level() -> None:
    policy = exponential(5000, 7_200_000, 2)
    assert [retry_level(0, times, policy, LEVELS) for times in range(5)] == [2, 3, 4, 5, 6]


def test_a_policy_that_never_ends_is_the_longest_level() -> None:
    assert retry_level(0, 1000, exponential(2**62, 2**62, 2**62), LEVELS) == 18


@pytest.mark.parametrize(
    "policy",
    [
        GroupRetryPolicy(),
        GroupRetryPolicy(type="EXPONENTIAL"),
        GroupRetryPolicy(type="OF_LATER"),
        customized(),
    ],
)
def test_a_policy_without_delays_uses_the_default_delays(policy: GroupRetryPolicy) -> None:
    assert [retry_level(0, times, policy, LEVELS) for times in (0, 1, 15)] == [3, 4, 18]


def test_a_delay_chosen_by_the_consumer_overrides_the_policy() -> None:
    assert retry_level(7, 0, customized(1000), LEVELS) == 7


def test_a_dead_letter_does_not_wait() -> None:
    assert without_delay(b"DELAY\x015\x02TAGS\x01a") == b"TAGS\x01a\x02DELAY\x010"
