"""Signed requests of accounts take the fast path, and only what an account may do."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.traffic.quotas import QuotaRates
from remoting.protocol.codes import RequestCode, ResponseCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode, encode
from remoting.protocol.headers.pull import UpdateConsumerOffsetRequestHeader
from remoting.protocol.message import batch
from remoting.protocol.signing import Credentials, signed
from tests.unit.broker.fast_path.paths import Side, frame
from tests.unit.broker.fast_path.requests import RULES, everything, publisher, sign
from tests.unit.broker.harness import fields_of, pull_command, send_command

COMMIT = Command.request(
    RequestCode.UPDATE_CONSUMER_OFFSET,
    UpdateConsumerOffsetRequestHeader(
        consumer_group="g", topic="plain", queue_id=0, commit_offset=1
    ),
)


@pytest.fixture
def side(tmp_path: Path) -> Iterator[Side]:
    side = Side(tmp_path, fast=True, rules=RULES)
    for topic in ("plain", "wide", "other"):
        side.bench.topic(topic, 4)
        side.bench.send(topic)
    yield side
    side.bench.close()


def a_send(topic: str = "plain", body: bytes = b"x" * 100) -> Command:
    text = "UNIQ_KEY\x017F00000100\x02WAIT\x01true\x02TAGS\x01A"
    return send_command(topic, body, properties=text)


def result(side: Side, request: bytes) -> tuple[int, bool]:
    """Return the code of a frame's answer, and whether the frame took the fast path."""
    before = side.frames
    side.feed(request)
    whole = cut(side.wire.sent.pop())
    assert whole is not None
    return decode(whole).code, side.frames > before


DENIED = (ResponseCode.SYSTEM_ERROR, False)
FAST = (ResponseCode.SUCCESS, True)


@pytest.mark.parametrize("codec", [SerializeType.JSON, SerializeType.ROCKETMQ])
@pytest.mark.parametrize("token", [None, "token"])
def test_signed_requests_of_all_kinds_take_the_fast_path(
    side: Side, codec: SerializeType, token: str | None
) -> None:
    elements = batch.encode([(0, b"x" * 9, b"")] * 3)
    common = [
        a_send(),
        send_command("plain", b"", properties="Ä\x01ß"),
        send_command("plain", elements, code=RequestCode.SEND_BATCH_MESSAGE, batch=True),
        pull_command("plain"),
        COMMIT,
    ]
    who = Credentials(everything.access_key, everything.secret_key, token)
    for command in common:
        command.serialize = codec
        assert result(side, encode(signed(command, who))) == FAST


def test_the_sends_of_the_java_client_take_the_fast_path(tmp_path: Path, golden: Path) -> None:
    side = Side(
        tmp_path, fast=True, rules=(golden / "frames/acl_enabled_broker.plain_acl.yml").read_text()
    )
    side.bench.topic("SendTopic", 4)
    lines = (golden / "frames/send_acl_signed.jsonl").read_text().splitlines()
    sends = [
        bytes.fromhex(line["frame_hex"])
        for line in map(json.loads, lines)
        if line["type"] == "request" and line["code"] == RequestCode.SEND_MESSAGE_V2
    ]
    assert len(sends) == 1
    side.bench.send("SendTopic", queue_id=1)
    assert result(side, sends[0]) == FAST
    side.bench.close()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_order_of_the_fields_does_not_matter(side: Side, data: st.DataObject) -> None:
    command = signed(a_send(), everything)
    pairs = data.draw(st.permutations([*fields_of(command).items()]))
    shuffled = Command.request(command.code, extra=dict(pairs), body=command.body)
    assert result(side, encode(shuffled)) == FAST


def test_the_plan_of_one_account_serves_no_other(side: Side) -> None:
    send = a_send("other")
    assert result(side, encode(signed(send, everything))) == FAST
    assert result(side, encode(signed(send, publisher))) == DENIED
    assert result(side, encode(send)) == DENIED
    assert result(side, encode(signed(send, Credentials("stranger", "secret-of-all")))) == DENIED
    assert result(side, encode(signed(a_send("plain"), publisher))) == FAST
    assert result(side, encode(signed(send, everything))) == FAST
    assert result(side, encode(signed(pull_command("plain"), publisher))) == DENIED


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"b":"plain"', b'"b":"wide"'),
        (b'"e":"0"', b'"e":"1"'),
        (b"TAGS\\u0001A", b"TAGS\\u0001B"),
        (b'"AccessKey":"everything"', b'"AccessKey":"publisher"'),
        (b'"AccessKey":"everything",', b""),
        (b'"h":"0"', b'"h":"0","zz":"1"'),
        (b"x" * 100, b"x" * 99 + b"y"),
        (b'"Signature":"', b'"Signature":"A'),
        (b'"Signature"', b'"signature"'),
    ],
)
def test_a_changed_request_is_denied(side: Side, old: bytes, new: bytes) -> None:
    original = encode(signed(a_send(), everything))
    assert result(side, original) == FAST
    whole = cut(original)
    assert whole is not None
    assert old in original
    header, body = (bytes(part).replace(old, new) for part in (whole.header, whole.body))
    assert result(side, frame(header, body)) == DENIED


@pytest.mark.parametrize(
    ("name", "served"),
    [("b", True), ("Signature", False), ("ü", True), ("_UNIQUE_KEY_QUERY", True)],
)
def test_fields_with_rules_of_their_own_are_checked_on_the_slow_path(
    side: Side, name: str, served: bool
) -> None:
    whole = cut(encode(a_send()))
    assert whole is not None
    begin = b'"extFields":{'
    header = bytes(whole.header).replace(begin, begin + f'"{name}":"plain",'.encode())
    code, fast = result(side, sign(frame(header, bytes(whole.body)), everything))
    assert (code == ResponseCode.SUCCESS, fast) == (served, False)


@pytest.mark.parametrize(
    ("request_", "old", "new"),
    [
        (a_send(), "defaultTopicPerm: PUB|SUB", "defaultTopicPerm: SUB"),
        (pull_command("plain"), "defaultTopicPerm: PUB|SUB", "defaultTopicPerm: PUB"),
        (COMMIT, "defaultTopicPerm: PUB|SUB", "defaultTopicPerm: PUB"),
        (COMMIT, "defaultGroupPerm: SUB", "defaultGroupPerm: DENY"),
    ],
    ids=["send", "pull", "commit", "commit of the group"],
)
def test_a_right_that_is_taken_away_is_missing_from_the_next_read_on(
    side: Side, request_: Command, old: str, new: str
) -> None:
    request = encode(signed(request_, everything))
    assert result(side, request) == FAST
    change(side, RULES.replace(old, new))
    assert result(side, request) == DENIED
    change(side, RULES)
    assert result(side, request) == FAST


def change(side: Side, rules: str) -> None:
    assert side.bench.guard is not None
    file = side.bench.guard.file
    file.path.write_text(rules)
    assert file.refresh()


def test_changed_keys_and_addresses_hold_from_the_next_read_on(side: Side) -> None:
    request = encode(signed(a_send(), publisher))
    assert result(side, request) == FAST
    change(side, RULES.replace("secret-of-it", "another-secret"))
    assert result(side, request) == DENIED
    changed = signed(a_send(), Credentials("publisher", "another-secret"))
    assert result(side, encode(changed)) == FAST
    change(side, RULES + "globalWhiteRemoteAddresses: [10.0.0.*]\n")
    assert result(side, request) == FAST, "from here no signature is checked"
    assert result(side, encode(a_send("other"))) == FAST
    change(side, RULES)
    assert result(side, encode(a_send("other"))) == DENIED


@pytest.mark.parametrize("fields", [{}, {"AccessKey": "", "Signature": ""}])
def test_a_request_without_an_account_is_denied(side: Side, fields: dict[str, str]) -> None:
    request = Command.request(RequestCode.SEND_MESSAGE_V2, extra=fields)
    assert result(side, encode(request)) == DENIED


def test_a_header_in_msgpack_is_denied(side: Side) -> None:
    command = signed(a_send(), everything)
    command.serialize = SerializeType.MSGPACK
    assert result(side, encode(command)) == DENIED


def test_an_account_that_has_used_up_its_quota_waits_on_the_fast_path_too(tmp_path: Path) -> None:
    rates = QuotaRates(0, {"publisher": 5})
    side = Side(tmp_path, fast=True, rules=RULES, max_account_messages_per_second=rates)
    side.bench.topic("plain", 4)
    side.bench.topic("wide", 4)
    for topic in ("plain", "wide"):
        side.bench.send(topic)
    ours = [encode(signed(a_send(topic), publisher)) for topic in ("plain", "wide")]
    assert [result(side, ours[n % 2]) for n in range(5)] == [FAST] * 5
    busy = (ResponseCode.SYSTEM_BUSY, False)
    assert [result(side, request) for request in ours] == [busy, busy]
    assert result(side, encode(signed(a_send(), everything))) == FAST
    side.bench.clock.advance(1)
    assert result(side, ours[0]) == FAST
    side.bench.close()
