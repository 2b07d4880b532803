"""A broker with aclEnable: who may do what, over sockets."""

from __future__ import annotations

import asyncio
import gc
import json
import re
import struct
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.app import Broker
from broker.errors import StartError
from remoting.counters import CloseReason
from remoting.protocol.bodies import encode as encode_body
from remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.protocol.codes import RequestCode, ResponseCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode, encode
from remoting.protocol.headers.send import ConsumerSendMsgBackRequestHeader
from remoting.protocol.signing import Credentials, signed
from remoting.runtime.settings import ConfigError
from tests.harness.cluster import Cluster
from tests.integration.bad_input.peer import OFFER
from tests.support.waiting import until
from tests.unit.broker.harness import pull_command

FRAMES = Path(__file__).parents[2] / "golden" / "frames"
RULES = (FRAMES / "acl_enabled_broker.plain_acl.yml").read_text()
USER = Credentials("RocketMQ", "12345678")
ADMIN = Credentials("rocketmq2", "12345678")
EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "plain_acl.yml"
    path.write_text(RULES)
    return path


@pytest.fixture
async def broker(tmp_path: Path, rules: Path) -> AsyncIterator[Broker]:
    async with Cluster(tmp_path, aclEnable="true", pocketmqAclFile=str(rules)) as cluster:
        yield await cluster.start()


async def answers(broker: Broker, *frames: bytes) -> list[Command]:
    """Send frames over one connection; return as many answers, without requests of the broker."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
    found = []
    try:
        for frame in frames:
            writer.write(frame)
            while True:
                head = await asyncio.wait_for(reader.readexactly(4), 10)
                rest = await reader.readexactly(struct.unpack(">i", head)[0])
                whole = cut(head + rest)
                assert whole is not None
                answer = decode(whole)
                if answer.is_response:
                    found.append(answer)
                    break
    finally:
        writer.close()
    return found


async def ask(broker: Broker, command: Command, who: Credentials | None) -> Command:
    if who is not None:
        command = signed(command, who)
    return (await answers(broker, encode(command)))[0]


def send(topic: str, code: int = RequestCode.SEND_MESSAGE_V2, **more: str) -> Command:
    fields = {
        "a": "groupB",
        "b": topic,
        "c": "TBW102",
        "d": "4",
        "e": "0",
        "f": "0",
        "g": "1700000000123",
        "h": "0",
        "i": "TAGS\x01T",
        "j": "0",
        "k": "false",
        "m": "false",
    }
    return Command.request(code, extra={**fields, **more}, body=b"Hello")


def captured() -> Iterator[tuple[int, bytes, dict[str, Any]]]:
    """Return the connection, the frame and the answer of each captured request."""
    waiting: dict[tuple[int, int], bytes] = {}
    for line in (FRAMES / "acl_enabled_broker.jsonl").read_text().splitlines():
        frame = json.loads(line)
        if frame["role"] != "client-broker":
            continue
        key = frame["conn"], frame["opaque"]
        if frame["dir"] == "c2s" and frame["type"] == "request":
            waiting[key] = bytes.fromhex(frame["frame_hex"])
        elif frame["dir"] == "s2c" and key in waiting:
            yield frame["conn"], waiting.pop(key), frame


async def test_the_captured_requests_are_answered_as_by_the_original(broker: Broker) -> None:
    for _, request, expected in captured():
        (answer,) = await answers(broker, request)
        if expected["reply_to"] == RequestCode.PULL_MESSAGE and expected["code"] == 19:
            # Without the heartbeat of this connection, the group has no subscription here.
            assert answer.code != ResponseCode.SYSTEM_ERROR
            continue
        assert answer.code == expected["code"], (answer.remark, expected)
        if expected["code"] == ResponseCode.SYSTEM_ERROR:
            text = re.sub(r", org\.apache\.rocketmq\.acl\.plain\..*", "", expected["remark"])
            # Ours doesn't tell strangers which accounts exist.
            text = text.replace("No acl config for ", "Check signature failed for accessKey=")
            assert answer.remark is not None
            assert answer.remark.startswith(text)


@pytest.mark.parametrize("codec", [SerializeType.JSON, SerializeType.ROCKETMQ])
async def test_signatures_hold_in_both_headers(broker: Broker, codec: SerializeType) -> None:
    made = await ask(
        broker, Command.request(17, extra={**TOPIC, "topic": "topicB"}, body=b""), ADMIN
    )
    assert made.code == 0
    command = send("topicB", i="KEYS\x01\u57ce\U0001f680")
    command.serialize = codec
    good = signed(command, USER)

    assert (await answers(broker, encode(good)))[0].code == ResponseCode.SUCCESS
    good.pairs = tuple(reversed(good.pairs or ()))
    assert (await answers(broker, encode(good)))[0].code == ResponseCode.SUCCESS, "any order"
    # Of repeated fields the last one counts, for the signature and for the handler.
    good.pairs = (("b", "topicA"), *good.pairs)
    assert (await answers(broker, encode(good)))[0].code == ResponseCode.SUCCESS
    good.pairs = (*good.pairs, ("b", "topicC"))
    (bad,) = await answers(broker, encode(good))
    assert bad.remark == f"{EXCEPTION}Check signature failed for accessKey=RocketMQ"


TOPIC = {
    "readQueueNums": "2",
    "writeQueueNums": "2",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "defaultTopic": "TBW102",
    "topicSysFlag": "0",
    "order": "false",
}


@pytest.mark.parametrize(
    "change",
    [
        {"Signature": ""},
        {"Signature": "\u0000\ufffd"},
        {"Signature": "x" * 60_000},
        {"extra": "field"},
        {"i": ""},
    ],
)
async def test_a_changed_request_is_denied(broker: Broker, change: dict[str, str]) -> None:
    command = signed(send("topicB"), USER)
    command.pairs = (*(command.pairs or ()), *change.items())

    (answer,) = await answers(broker, encode(command))

    assert answer.remark == f"{EXCEPTION}Check signature failed for accessKey=RocketMQ"


async def test_a_changed_body_is_denied(broker: Broker) -> None:
    command = signed(send("topicB"), USER)
    command.body = b"Hellp"

    assert "Check signature failed" in str((await answers(broker, encode(command)))[0].remark)


async def test_a_key_of_many_characters_is_denied_with_a_short_text(broker: Broker) -> None:
    answer = await ask(broker, send("topicB"), Credentials("k" * 60_000, "12345678"))

    assert str(answer.remark).startswith(f"{EXCEPTION}Check signature failed for accessKey=kkk")
    assert len(str(answer.remark)) < 300


async def test_a_stranger_does_not_learn_which_accounts_exist(broker: Broker) -> None:
    known, unknown = Credentials(USER.access_key, "wrong-key"), Credentials("Nobody12", "wrong-key")
    texts = {
        str((await ask(broker, send("topicB"), who)).remark).replace(who.access_key, "X")
        for who in (known, unknown)
    }
    assert texts == {f"{EXCEPTION}Check signature failed for accessKey=X"}


async def test_a_frame_that_is_sent_again_is_accepted_again(broker: Broker) -> None:
    await ask(broker, Command.request(17, extra={**TOPIC, "topic": "topicB"}), ADMIN)
    frame = encode(signed(send("topicB"), USER))

    first, second = await answers(broker, frame, frame)

    assert (first.code, second.code) == (0, 0)
    assert int(second.fields["queueOffset"]) == int(first.fields["queueOffset"]) + 1


async def test_a_header_in_msgpack_is_denied_and_is_not_offered(broker: Broker) -> None:
    offer = Command.request(RequestCode.GET_BROKER_CONFIG, extra=(OFFER,))
    assert OFFER not in ((await ask(broker, offer, USER)).pairs or ())
    command = send("topicB")
    command.serialize = SerializeType.MSGPACK

    with pytest.raises(asyncio.IncompleteReadError):
        await ask(broker, command, USER)

    assert broker.counters.dropped[CloseReason.BAD_FRAME] == 1


async def test_names_of_1_mb_are_not_kept(broker: Broker) -> None:
    await ask(broker, Command.request(17, extra={**TOPIC, "topic": "topicB"}), ADMIN)
    frames = [
        encode(signed(send("topicB", **{f"{number:02}" * 400_000: "1"}), USER))
        for number in range(16)
    ]
    tracemalloc.start()
    try:
        for frame in frames:
            assert (await answers(broker, frame))[0].code == 0
        gc.collect()
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 4_000_000


async def test_batches_and_replies_need_what_a_send_needs(broker: Broker) -> None:
    for code in (RequestCode.SEND_BATCH_MESSAGE, RequestCode.SEND_REPLY_MESSAGE_V2):
        answer = await ask(broker, send("topicA", code), USER)
        assert "No default permission for topic:topicA" in str(answer.remark)
    other = await ask(broker, send("other_REPLY_TOPIC", RequestCode.SEND_REPLY_MESSAGE_V2), USER)
    assert "No default permission for topic:other_REPLY_TOPIC" in str(other.remark)
    retry = await ask(broker, send("%RETRY%groupA"), USER)
    assert "No default permission for group:groupA" in str(retry.remark)


async def test_sends_create_topics_only_with_the_right_to_publish(broker: Broker) -> None:
    codes = {topic: (await ask(broker, send(topic), USER)).code for topic in TOPICS}

    assert codes == {"topicA": 1, "topicB": 0, "topicC": 1, "topicNew": 1}
    assert broker.state.topics.table.keys() & TOPICS == {"topicB"}


TOPICS = {"topicA", "topicB", "topicC", "topicNew"}


def heartbeat(group: str) -> Command:
    subscription = SubscriptionData(topic="topicB", sub_string="*")
    consumer = ConsumerData(group_name=group, subscription_data_set=[subscription])
    body = HeartbeatData(client_id="c", consumer_data_set=[consumer])
    return Command.request(RequestCode.HEART_BEAT, body=encode_body(body))


def pull(group: str) -> Command:
    return pull_command("topicB", consumer_group=group)


def send_back(group: str) -> Command:
    header = ConsumerSendMsgBackRequestHeader(offset=0, group=group, delay_level=1)
    return Command.request(RequestCode.CONSUMER_SEND_MSG_BACK, header)


@pytest.mark.parametrize(
    "request_of", [heartbeat, pull, send_back, lambda group: send(f"%RETRY%{group}", a=group)]
)
async def test_groups_are_created_only_with_the_right_to_subscribe(
    broker: Broker, request_of: Callable[[str], Command]
) -> None:
    assert (await ask(broker, send("topicB"), USER)).code == 0
    before = set(broker.state.groups.table)

    denied = await ask(broker, request_of("groupA"), USER)
    assert "No default permission for group:groupA" in str(denied.remark)
    assert set(broker.state.groups.table) == before
    assert "%RETRY%groupA" not in broker.state.topics

    assert (await ask(broker, request_of("groupB"), USER)).code == 0
    assert set(broker.state.groups.table) == before | {"groupB"}


async def test_reading_by_position_needs_the_topic_of_the_message(broker: Broker) -> None:
    stored = await ask(broker, send("topicA"), ADMIN)
    assert stored.code == 0, stored.remark
    offset = str(int(stored.fields["msgId"][16:], 16))

    view = Command.request(RequestCode.VIEW_MESSAGE_BY_ID, extra={"offset": offset})
    back = Command.request(
        RequestCode.CONSUMER_SEND_MSG_BACK,
        extra={"offset": offset, "group": "groupB", "delayLevel": "1", "originTopic": "topicB"},
    )

    for command in (view, back):
        denied = await ask(broker, command, USER)
        assert "No default permission for topic:topicA" in str(denied.remark)
    assert (await ask(broker, view, ADMIN)).code == 0


async def test_what_changes_something_needs_an_administrator(broker: Broker) -> None:
    for code in (17, 25, 50, 51, 53, 54, 200, 207, 215, 222, 314, 316, 353, 99_999):
        denied = await ask(broker, Command.request(code), USER)
        assert denied.remark == (
            f"{EXCEPTION}Need admin permission for request code={code}, but accessKey=RocketMQ is "
            "not"
        )
        stranger = await ask(broker, Command.request(code), None)
        assert stranger.remark == f"{EXCEPTION}No accessKey is configured"


async def test_every_served_code_has_a_rule_or_needs_an_administrator(broker: Broker) -> None:
    for code in broker.processors.table():
        answer = await ask(broker, Command.request(code), None)
        assert answer.remark == f"{EXCEPTION}No accessKey is configured", code


async def test_denials_are_counted(broker: Broker) -> None:
    assert broker.guard is not None
    before = broker.guard.denied

    await ask(broker, send("topicA"), USER)

    assert broker.guard.denied == before + 1


async def test_accounts_are_changed_over_the_network(broker: Broker, rules: Path) -> None:
    fields = {"accessKey": "new-account", "secretKey": "new-secret", "admin": "false"}
    fields["topicPerms"] = "topicA=PUB,topicN=PUB|SUB"
    put = Command.request(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, extra=fields)
    new = Credentials("new-account", "new-secret")

    made = await ask(broker, put, ADMIN)
    assert made.code == 0, made.remark
    assert (await ask(broker, send("topicA"), new)).code == 0

    shown = await ask(broker, Command.request(54), ADMIN)
    accounts = {
        one["accessKey"]: one for one in json.loads(bytes(shown.body))["plainAccessConfigs"]
    }
    assert accounts["new-account"]["topicPerms"] == ["topicA=PUB", "topicN=PUB|SUB"]
    version = json.loads((await ask(broker, Command.request(52), USER)).fields["version"])
    assert version["counter"] == 1

    short = {"accessKey": "new-account", "secretKey": "short"}
    bad = Command.request(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, extra=short)
    refused = await ask(broker, bad, ADMIN)
    assert refused.code == ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
    assert "more than 6 characters" in str(refused.remark)

    gone = Command.request(RequestCode.DELETE_ACL_CONFIG, extra={"accessKey": "new-account"})
    assert (await ask(broker, gone, ADMIN)).code == 0
    assert "Check signature failed" in str((await ask(broker, send("topicA"), new)).remark)
    again = await ask(broker, gone, ADMIN)
    assert again.code == ResponseCode.DELETE_ACL_CONFIG_FAILED

    white = Command.request(53, extra={"globalWhiteAddrs": "127.0.0.1,10.1.2.3"})
    assert (await ask(broker, white, ADMIN)).code == 0
    assert (await ask(broker, send("topicA"), None)).code == 0
    assert "globalWhiteRemoteAddresses:\n- 127.0.0.1" in read(rules)


async def test_a_changed_file_has_effect_on_open_connections(broker: Broker, rules: Path) -> None:
    assert broker.guard is not None
    write(rules, RULES + "globalWhiteRemoteAddresses: ['127.0.0.*']\n")
    await until(lambda: bool(broker.guard and broker.guard.file.rules.white))
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)

    async def sent() -> Command:
        writer.write(encode(send("topicW")))
        head = await asyncio.wait_for(reader.readexactly(4), 10)
        whole = cut(head + await reader.readexactly(struct.unpack(">i", head)[0]))
        assert whole is not None
        return decode(whole)

    assert [(await sent()).code for _ in range(5)] == [0] * 5
    write(rules, "accounts: [")
    await until(lambda: bool(broker.guard and broker.guard.file.problem))
    assert (await sent()).code == 0, "a broken file keeps the rules"
    write(rules, RULES)
    await until(lambda: bool(broker.guard and not broker.guard.file.rules.white))
    answer = await sent()
    assert answer.remark == f"{EXCEPTION}No accessKey is configured"
    writer.close()


async def test_a_pull_that_waits_is_denied_when_the_file_takes_its_right(
    broker: Broker, rules: Path
) -> None:
    assert (await ask(broker, send("topicB"), USER)).code == 0
    waits = {"queue_offset": 1, "sys_flag": 6, "suspend_timeout_millis": 60_000}
    command = pull_command("topicB", consumer_group="groupB", **waits)
    waiting = asyncio.create_task(ask(broker, command, USER))
    await until(lambda: len(broker.state.long_polls) == 1)

    write(rules, RULES.replace("topicB=PUB|SUB", "topicB=PUB"))

    assert "No default permission for topic:topicB" in str((await waiting).remark)


def read(path: Path) -> str:
    return path.read_text()


def write(path: Path, text: str) -> None:
    path.write_text(text)


async def test_a_broker_without_usable_accounts_does_not_start(tmp_path: Path) -> None:
    async with Cluster(tmp_path, aclEnable="true") as cluster:
        with pytest.raises(StartError, match=r"plain_acl\.yml: No such file"):
            await cluster.start()


async def test_changes_and_denials_are_in_the_audit_log(tmp_path: Path, rules: Path) -> None:
    topic = Command.request(RequestCode.UPDATE_AND_CREATE_TOPIC, extra={**TOPIC, "topic": "topicB"})
    account = Command.request(
        RequestCode.UPDATE_AND_CREATE_ACL_CONFIG,
        extra={"accessKey": "planted", "secretKey": "planted-secret-5d10", "admin": "false"},
    )
    wipe = Command.request(RequestCode.CLEAN_UNUSED_TOPIC)
    shaky = Command.request(
        RequestCode.UPDATE_BROKER_CONFIG, body=b"listenPort=1\ntls.server.keyPassword=planted\n"
    )
    async with Cluster(tmp_path, aclEnable="true", pocketmqAclFile=str(rules)) as cluster:
        broker = await cluster.start()
        for command, who in (
            (topic, ADMIN),
            (send("topicB"), USER),
            (account, ADMIN),
            (wipe, USER),
            (shaky, ADMIN),
            (wipe, Credentials("nobody-here", "wrong-key")),
        ):
            await ask(broker, command, who)
    text = (tmp_path / "broker-a" / "logs" / "audit.log").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert [(one["event"], one["who"], one["action"], one["result"]) for one in lines] == [
        ("change", "rocketmq2", "UPDATE_AND_CREATE_TOPIC", "ok"),
        ("change", "rocketmq2", "UPDATE_AND_CREATE_ACL_CONFIG", "ok"),
        ("denial", "RocketMQ", "CLEAN_UNUSED_TOPIC", "denied"),
        ("change", "rocketmq2", "UPDATE_BROKER_CONFIG", "SYSTEM_ERROR"),
        ("denial", "nobody-here", "CLEAN_UNUSED_TOPIC", "denied"),
    ]
    assert lines[4]["text"] == "No acl config for nobody-here"
    assert lines[0]["fields"]["topic"] == "topicB"
    assert lines[1]["fields"]["accessKey"] == "planted"
    assert lines[0]["from"].startswith("127.0.0.1:")
    assert "Need admin permission" in lines[2]["text"]
    assert "planted-secret" not in text
    assert "keyPassword=***" in lines[3]["body"]


async def test_an_audit_log_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    async with Cluster(tmp_path, pocketmqAuditLog=str(tmp_path / "file" / "audit.log")) as cluster:
        with pytest.raises(ConfigError, match="set pocketmqAuditLog to another path"):
            await cluster.start()
