"""Every JSON body of the captured frames, decoded with and without types, and encoded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from remoting.protocol.bodies import decode, encode, relaxed_json
from remoting.protocol.bodies.clients import (
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    ProducerConnection,
    ProducerTableInfo,
)
from remoting.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    DelayOffsetSerializeWrapper,
    GetConsumerStatusBody,
    LockBatchRequestBody,
    LockBatchResponseBody,
    ResetOffsetBody,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from remoting.protocol.bodies.heartbeat import CheckClientRequestBody, HeartbeatData
from remoting.protocol.bodies.registration import RegisterBrokerBody
from remoting.protocol.bodies.route import ClusterInfo, TopicRouteData
from remoting.protocol.bodies.stats import (
    BrokerStatsData,
    ConsumeStats,
    ConsumeStatsList,
    GetConsumerListByGroupResponseBody,
    GroupList,
    KVTable,
    QueryConsumeQueueResponseBody,
    QueryConsumeTimeSpanBody,
    TopicList,
    TopicStatsTable,
)
from remoting.protocol.bodies.topic import (
    DataVersion,
    TopicConfig,
    TopicConfigSerializeWrapper,
)
from tests.unit.remoting.protocol.captured_frames import FILES, lines

REQUESTS: dict[int, type[msgspec.Struct]] = {
    34: HeartbeatData,
    41: LockBatchRequestBody,
    42: LockBatchRequestBody,
    46: CheckClientRequestBody,
    103: RegisterBrokerBody,
    200: SubscriptionGroupConfig,
    220: ResetOffsetBody,
    322: DataVersion,
}
ANSWERS: dict[int, type[msgspec.Struct]] = {
    21: TopicConfigSerializeWrapper,
    28: KVTable,
    38: GetConsumerListByGroupResponseBody,
    41: LockBatchResponseBody,
    43: ConsumerOffsetSerializeWrapper,
    45: DelayOffsetSerializeWrapper,
    103: KVTable,
    105: TopicRouteData,
    106: ClusterInfo,
    201: SubscriptionGroupWrapper,
    202: TopicStatsTable,
    203: ConsumerConnection,
    204: ProducerConnection,
    206: TopicList,
    208: ConsumeStats,
    219: KVTable,
    221: GetConsumerStatusBody,
    222: ResetOffsetBody,
    223: GetConsumerStatusBody,
    224: TopicList,
    300: GroupList,
    303: QueryConsumeTimeSpanBody,
    304: TopicList,
    305: TopicList,
    307: ConsumerRunningInfo,
    309: ConsumeMessageDirectlyResult,
    315: BrokerStatsData,
    317: ConsumeStatsList,
    321: QueryConsumeQueueResponseBody,
    322: DataVersion,
    328: ProducerTableInfo,
    351: TopicConfig,
}


def bodies(file_name: str) -> Iterator[tuple[dict[str, Any], bytes]]:
    for line in lines(file_name):
        if "body_json" in line:
            yield line, bytes.fromhex(line["frame_hex"])[-line["body_len"] :]


def as_captured(value: object) -> object:
    """A tree in the captures' own convention: keys are text, maps by object are ``$pairs``."""
    if isinstance(value, list):
        return [as_captured(item) for item in value]
    if not isinstance(value, dict):
        return value
    if any(isinstance(key, relaxed_json.ObjectKey) for key in value):
        return {"$pairs": [[dict(key), as_captured(member)] for key, member in value.items()]}
    return {str(key): as_captured(member) for key, member in value.items()}


@pytest.mark.parametrize("file_name", FILES)
def test_each_body_has_the_captured_value(file_name: str) -> None:
    for line, body in bodies(file_name):
        assert as_captured(relaxed_json.loads(body)) == line["body_json"]


@pytest.mark.parametrize("file_name", FILES)
def test_each_body_is_strict_json_exactly_when_the_capture_says_so(file_name: str) -> None:
    for line, body in bodies(file_name):
        try:
            json.loads(body)
            strict = True
        except ValueError:
            strict = False
        assert strict == line["body_is_strict_json"]
        # Whatever path it is read by, it's the same value.
        assert relaxed_json.loads(body) == relaxed_json.RelaxedReader(body.decode()).read()


@pytest.mark.parametrize("file_name", FILES)
def test_each_body_survives_its_class_whole(file_name: str) -> None:
    for line, body in bodies(file_name):
        is_answer = line["type"] == "response"
        kind = ANSWERS[line["reply_to"]] if is_answer else REQUESTS[line["code"]]
        typed = decode(kind, body)
        # Integer keys come as text only in an answer that was standard JSON already.
        assert as_captured(relaxed_json.loads(encode(typed))) == line["body_json"]
        assert decode(kind, encode(typed)) == typed
        assert decode(kind, encode(typed, standard=True)) == typed


def test_every_listed_class_is_in_the_captures() -> None:
    requests: set[int] = set()
    answers: set[int] = set()
    for file_name in FILES:
        for line, _ in bodies(file_name):
            if line["type"] == "response":
                answers.add(line["reply_to"])
            else:
                requests.add(line["code"])
    assert requests == REQUESTS.keys()
    assert answers == ANSWERS.keys()
