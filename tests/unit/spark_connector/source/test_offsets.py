"""Offsets in a checkpoint."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.queue import MessageQueue
from spark_connector.errors import ConnectorError
from spark_connector.source.offsets import begins_of, check_topics, from_json, marks_of, to_json
from spark_connector.source.options import Subscription

QUEUES = st.builds(
    MessageQueue, st.text(min_size=1), st.text(min_size=1), st.integers(0, 2**31 - 1)
)


def test_the_format_is_what_checkpoints_have():
    known = {MessageQueue("t", "broker-a", 1): 5, MessageQueue("t", "broker-a", 0): 123}
    assert json.dumps(to_json(known)) == (
        '{"v": 1, "topics": {"t": {"broker-a": {"0": 123, "1": 5}}}}'
    )


def test_marks_and_beginnings_are_in_the_checkpoint_beside_the_offsets():
    queue = MessageQueue("t", "broker-a", 0)
    value = json.loads(json.dumps(to_json({queue: 5}, {queue: (7, 99)}, {queue: 0})))
    assert value["marks"] == {"t": {"broker-a": {"0": [7, 99]}}}
    assert (from_json(value), marks_of(value), begins_of(value)) == (
        {queue: 5},
        {queue: (7, 99)},
        {queue: 0},
    )
    assert marks_of(to_json({queue: 5})) == begins_of(to_json({queue: 5})) == {}
    for damaged in (5, {"t": 5}, {"t": {"b": {"0": [7]}}}, {"t": {"b": {"0": [7, -1]}}}):
        with pytest.raises(ConnectorError, match="they are damaged"):
            marks_of(value | {"marks": damaged})


@given(st.dictionaries(QUEUES, st.integers(0, 2**63 - 1)))
def test_offsets_come_back_from_json(offsets: dict[MessageQueue, int]):
    assert from_json(json.loads(json.dumps(to_json(offsets)))) == offsets


@pytest.mark.parametrize(
    "value",
    [
        None,
        5,
        {},
        {"t": {"0": 5}},
        {"v": 1},
        {"v": 1, "topics": []},
        {"v": 1, "topics": {"t": {"b": {"x": 1}}}},
        {"v": 1, "topics": {"t": {"b": {"0": -1}}}},
        {"v": 1, "topics": {"t": {"b": {"0": "1"}}}},
    ],
)
def test_another_sources_checkpoint_is_an_error(value: Any):
    with pytest.raises(ConnectorError, match=r"checkpoint's offsets .* can't be used"):
        from_json(value)


def test_a_later_version_is_an_error_that_says_so():
    with pytest.raises(ConnectorError, match="of version 2; this connector reads 1"):
        from_json({"v": 2, "topics": {}})


def test_a_checkpoint_of_another_topic_is_an_error():
    known = {MessageQueue("t", "broker-a", 0): 5}
    with pytest.raises(ConnectorError, match="queue t/broker-a/0, but the query reads topic u"):
        check_topics(known, Subscription(("u",)))
    check_topics(known, Subscription(("u", "t")))
