"""Typed bodies decoded from what real peers send."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remoting.protocol.bodies import Body, decode, encode
from remoting.protocol.bodies.clients import ConsumerRunningInfo, ConsumeStatus
from remoting.protocol.bodies.group import (
    ConsumerOffsetSerializeWrapper,
    LockBatchRequestBody,
    OffsetMovedEvent,
    ResetOffsetBody,
)
from remoting.protocol.bodies.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
)
from remoting.protocol.bodies.registration import RegisterBrokerBody
from remoting.protocol.bodies.relaxed_json import dumps
from remoting.protocol.bodies.route import BrokerData, TopicRouteData
from remoting.protocol.bodies.stats import ConsumeStatsList, KVTable, TopicList
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.errors import BodyError
from remoting.protocol.limits import MAX_JSON_DEPTH
from remoting.protocol.queue import MessageQueue


def test_unknown_members_are_ignored() -> None:
    text = b'{"topicName":"T","new":{"a":[1,{"b":null}]},"perm":4}'
    assert decode(TopicConfig, text) == TopicConfig("T", perm=4)


def test_a_byte_order_mark_is_skipped_as_by_fastjson() -> None:
    assert decode(TopicConfig, b'\xef\xbb\xbf{"topicName":"T"}') == TopicConfig("T")


def test_a_null_member_counts_as_absent() -> None:
    text = b'{"topicName":"T","perm":null,"order":null,"topicFilterType":null,"attributes":null}'
    assert decode(TopicConfig, text) == TopicConfig("T")


def test_nulls_in_collections_are_dropped() -> None:
    assert decode(TopicList, b'{"topicList":["a",null,"b"]}').topic_list == ["a", "b"]
    assert decode(KVTable, b'{"table":{"a":null,"b":"c"}}').table == {"b": "c"}
    assert decode(LockBatchRequestBody, b'{"mqSet":[null]}').mq_set == []


def test_numbers_are_taken_from_text_and_text_from_numbers() -> None:
    text = b'{"topicName":5,"perm":"4","readQueueNums":8.0,"writeQueueNums":8.9,"order":"true"}'
    expected = TopicConfig("5", 8, 8, 4, order=True)
    assert decode(TopicConfig, text) == expected


@pytest.mark.parametrize(
    ("member", "value"),
    [("1", True), ("0", False), ("2", False), ("1.0", True), ('"false"', False), ('""', False)],
)
def test_booleans_are_taken_as_java_takes_them(member: str, value: bool) -> None:
    assert decode(TopicConfig, b'{"order":%b}' % member.encode()).order is value


def test_blank_text_where_a_number_belongs_counts_as_absent() -> None:
    text = b'{"perm":"","readQueueNums":"null","topicSysFlag":true}'
    assert decode(TopicConfig, text) == TopicConfig(topic_sys_flag=1)


def test_anything_is_text_where_text_belongs() -> None:
    text = b'{"table":{"a":1,"b":true,"c":1.5,"d":[1,{"e":2}],7:"f",{"g":1}:"h"}}'
    assert decode(KVTable, text).table == {
        "a": "1",
        "b": "true",
        "c": "1.5",
        "d": '[1,{"e":2}]',
        "7": "f",
        '{"g":1}': "h",
    }


def test_integers_become_doubles_where_doubles_belong() -> None:
    assert decode(ConsumeStatus, b'{"pullRT":1,"pullTPS":"2.5"}') == ConsumeStatus(1.0, 2.5)


@pytest.mark.parametrize("text", ['{0:"a:1"}', '{"0":"a:1"}', "{'0':'a:1'}", '{ 0 : "a:1" }'])
def test_integer_keys_may_be_quoted_or_not(text: str) -> None:
    body = decode(BrokerData, b'{"brokerAddrs":%b}' % text.encode())
    assert body.broker_addrs == {0: "a:1"}


@pytest.mark.parametrize(
    "text",
    [
        b'{"offsetTable":{{"brokerName":"b","queueId":1,"topic":"T"}:5}}',
        b'{"offsetTable":{{topic:"T",queueId:"1",brokerName:"b",more:null}:"5"}}',
        b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":1,\\"topic\\":\\"T\\"}":5}}',
    ],
)
def test_queues_as_keys_are_read_raw_or_as_text(text: bytes) -> None:
    assert decode(ResetOffsetBody, text).offset_table == {MessageQueue("T", "b", 1): 5}


@pytest.mark.parametrize("key", ['"x"', '"{}"', '"[]"', '"{\\"topic\\":[]}"', "1", "{a:1}", '"{"'])
def test_a_key_that_is_no_queue_is_refused(key: str) -> None:
    with pytest.raises(BodyError, match=r"ResetOffsetBody: Expected a message queue.*offsetTable"):
        decode(ResetOffsetBody, b'{"offsetTable":{%b:5}}' % key.encode())


def test_queues_within_maps_within_lists_are_read() -> None:
    text = (
        b'{"consumeStatsList":[{"g":[{"offsetTable":'
        b'{{"brokerName":"b","queueId":1,"topic":"T"}:{"brokerOffset":"9"}}}]}]}'
    )
    stats = decode(ConsumeStatsList, text).consume_stats_list[0]["g"][0]
    assert stats.offset_table[MessageQueue("T", "b", 1)].broker_offset == 9


def test_a_queue_may_be_a_value() -> None:
    text = b'{"messageQueue":{"topic":"T","brokerName":"b","queueId":2},"offsetNew":1}'
    event = decode(OffsetMovedEvent, text)
    assert event.message_queue == MessageQueue("T", "b", 2)
    assert decode(OffsetMovedEvent, encode(event)) == event


WRONG = [
    (HeartbeatData, b"", "HeartbeatData: the body is empty"),
    (HeartbeatData, b"[]", "HeartbeatData: Expected `object`"),
    (HeartbeatData, b"null", "HeartbeatData: Expected `object`"),
    (HeartbeatData, b"{", r"HeartbeatData: .*character 1"),
    (HeartbeatData, b"\xff", "HeartbeatData: the JSON is not UTF-8"),
    (TopicConfig, b'{"perm":"six"}', r"TopicConfig: Expected `int`, got `str` - at `\$\.perm`"),
    (TopicConfig, b'{"perm":2147483648}', r"TopicConfig: .*\$\.perm"),
    (TopicConfig, b'{"perm":1e30}', r"TopicConfig: .*\$\.perm"),
    (TopicConfig, b'{"perm":[]}', r"TopicConfig: .*\$\.perm"),
    (TopicConfig, b'{"perm":"%b"}' % (b"9" * 5000), r"TopicConfig: .*\$\.perm"),
    (TopicList, b'{"topicList":{}}', r"TopicList: Expected `array`.*\$\.topicList"),
    (KVTable, b'{"table":[]}', r"KVTable: Expected `object`.*\$\.table"),
    (LockBatchRequestBody, b'{"mqSet":["T"]}', r"message queue.*\$\.mqSet\[0\]"),
    (LockBatchRequestBody, b'{"mqSet":[{"topic":"T"}]}', r"brokerName.*\$\.mqSet\[0\]"),
    (
        ConsumerOffsetSerializeWrapper,
        b'{"offsetTable":{"t@g":{x:1}}}',
        r"ConsumerOffsetSerializeWrapper: .*\$\.offsetTable",
    ),
    (
        HeartbeatData,
        b'{"consumerDataSet":[{"subscriptionDataSet":[{"codeSet":["x"]}]}]}',
        r"\$\.consumerDataSet\[0\]\.subscriptionDataSet\[0\]\.codeSet\[0\]",
    ),
]


@pytest.mark.parametrize(("kind", "text", "sentence"), WRONG)
def test_a_wrong_body_is_refused_with_its_class_what_and_where(
    kind: type[Body], text: bytes, sentence: str
) -> None:
    with pytest.raises(BodyError, match=sentence):
        decode(kind, text)


def test_members_that_are_ignored_are_bounded_as_well() -> None:
    deep = b"[" * MAX_JSON_DEPTH + b"]" * MAX_JSON_DEPTH
    with pytest.raises(BodyError, match="TopicConfig: the JSON nests deeper"):
        decode(TopicConfig, b'{"x":%b}' % deep)


def test_a_heartbeat_of_our_own_is_read_by_name() -> None:
    beat = HeartbeatData(
        "127.0.0.1@1",
        consumer_data_set=[
            ConsumerData(
                "g",
                ConsumeType.CONSUME_ACTIVELY,
                MessageModel.BROADCASTING,
                ConsumeFromWhere.CONSUME_FROM_TIMESTAMP,
                [SubscriptionData("T", "*")],
            )
        ],
    )
    text = encode(beat)
    assert b'"consumeType":"CONSUME_ACTIVELY"' in text
    assert b'"messageModel":"BROADCASTING"' in text
    assert decode(HeartbeatData, text) == beat


def decoded(kind: type[Body], text: bytes) -> Body | BodyError:
    try:
        return decode(kind, text)
    except BodyError as error:
        return error


KINDS = [HeartbeatData, RegisterBrokerBody, TopicRouteData, ConsumerRunningInfo, ResetOffsetBody]
EXAMPLES = [
    b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[{}]}]}',
    b'{"topicConfigSerializeWrapper":{"topicConfigTable":{"T":{"perm":6}}}}',
    b'{"brokerDatas":[{"brokerAddrs":{0:"a"}}],"queueDatas":[{"perm":1}]}',
    b'{"mqTable":{{"brokerName":"b","queueId":0,"topic":"T"}:{"locked":true}}}',
    b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:1}}',
]


@settings(deadline=None)
@given(
    st.sampled_from(KINDS),
    st.sampled_from(EXAMPLES),
    st.lists(
        st.tuples(st.integers(0, 80), st.sampled_from([b"", *b'{}[]:,"\\0-en']) | st.binary()),
        max_size=4,
    ),
)
def test_damaged_bodies_raise_nothing_but_a_body_error(
    kind: type[Body], text: bytes, damages: list[tuple[int, bytes | int]]
) -> None:
    for place, part in damages:
        replacement = bytes([part]) if isinstance(part, int) else part
        text = text[:place] + replacement + text[place + 1 :]
    outcome = decoded(kind, text)
    if isinstance(outcome, BodyError):
        assert str(outcome).startswith(kind.__name__)
    else:
        assert decode(kind, encode(outcome)) == outcome


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.sampled_from(["1", "null", "true", "9" * 400, 2**31, 2**63, 10**30]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["topic", "brokerName", "queueId", "offsetTable", "mqSet", "perm"])
            | st.integers()
            | st.text(max_size=3),
            inner,
            max_size=4,
        )
    ),
    max_leaves=10,
)


@settings(deadline=None)
@given(
    st.sampled_from([*KINDS, TopicConfig, LockBatchRequestBody, KVTable, OffsetMovedEvent]),
    st.data(),
)
def test_members_of_any_type_raise_nothing_but_a_body_error(
    kind: type[Body], data: st.DataObject
) -> None:
    members = {name: data.draw(values) for name in kind.__struct_encode_fields__}
    outcome = decoded(kind, dumps(members))
    if isinstance(outcome, BodyError):
        assert str(outcome).startswith(kind.__name__)
    else:
        assert decode(kind, encode(outcome)) == outcome
