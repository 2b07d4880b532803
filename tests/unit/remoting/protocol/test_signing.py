"""Signatures of requests: RocketMQ's own vectors and captured frames, and what they leave open."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.codes import V4_9_3, VERSION, RequestCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode, encode
from remoting.protocol.headers.query import UNIQUE_KEY_QUERY, QueryMessageRequestHeader
from remoting.protocol.signing import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    Credentials,
    signature,
    signed,
    signed_content,
)
from tests.unit.remoting.protocol import captured_frames

VECTORS = json.loads((Path(__file__).parents[3] / "golden" / "acl.json").read_text("utf-8"))
CAPTURED = [
    line
    for file in ("send_acl_signed.jsonl", "acl_enabled_broker.jsonl")
    for line in captured_frames.lines(file)
    if SIGNATURE in (line["header"] or {})
]
OURS = Credentials("account", "secret-of-the-account")


def received(command: Command) -> Command:
    """Return a command as the peer decodes it."""
    frame = cut(encode(command))
    assert frame is not None
    return decode(frame)


def expected(command: Command, *left_out: str) -> str:
    """Return the signature that a server computes for a received command."""
    fields = {name: text for name, text in command.fields.items() if name not in left_out}
    return signature(OURS.secret_key, signed_content(fields, command.body))


@pytest.mark.parametrize("vector", VECTORS["raw"])
def test_a_raw_content_has_rocketmqs_signature(vector: dict[str, str]) -> None:
    assert signature(vector["secretKey"], [vector["data_utf8"].encode()]) == vector["signature"]


@pytest.mark.parametrize("vector", VECTORS["requests"], ids=lambda vector: vector["name"])
def test_a_request_is_signed_as_rocketmq_signs_it(vector: dict[str, Any]) -> None:
    keys = Credentials(vector["accessKey"], vector["secretKey"], vector["securityToken"])
    body = bytes.fromhex(vector["body_hex"] or "")
    request = Command.request(vector["code"], body=body, extra=vector["extFields_before"])

    made = signed(request, keys)

    assert made.fields == vector["extFields_after"]
    assert b"".join(signed_content(made.fields, body)).hex() == vector["signed_content_hex"]
    assert request.fields == vector["extFields_before"], "a retry signs the request again"


@pytest.mark.parametrize("line", CAPTURED, ids=lambda line: f"{line['code_name']}-{line['opaque']}")
def test_the_signature_of_a_captured_frame_is_found_again(line: dict[str, Any]) -> None:
    frame = cut(bytes.fromhex(line["frame_hex"]))
    assert frame is not None
    command = decode(frame)
    found = {
        signature(secret, signed_content(command.fields, command.body))
        for secret in ("12345678", "87654321")
    }
    assert command.fields[SIGNATURE] in found


@given(
    fields=st.dictionaries(st.text(min_size=1, max_size=6), st.text(max_size=8), max_size=12),
    body=st.binary(max_size=64),
    serialize=st.sampled_from(SerializeType),
    token=st.none() | st.just("token"),
)
def test_a_server_finds_the_signature_in_whatever_codec_it_came(
    fields: dict[str, str], body: bytes, serialize: SerializeType, token: str | None
) -> None:
    keys = Credentials(OURS.access_key, OURS.secret_key, token)
    request = Command.request(RequestCode.SEND_MESSAGE_V2, extra=fields, body=body)
    request.serialize = serialize

    arrived = received(signed(request, keys))

    assert arrived.fields[SIGNATURE] == expected(arrived)
    assert arrived.fields[ACCESS_KEY] == OURS.access_key
    assert arrived.fields.get(SECURITY_TOKEN) == token


def test_fields_are_in_the_order_of_utf_16_units() -> None:
    # U+1F600 begins with the unit D83D and comes before U+FF5E in Java, after it in Python.
    values, _ = signed_content({"\uff5e": "2", "\U0001f600": "1", "a": "0"}, b"")
    assert values == b"012"


def test_a_text_without_a_utf_8_form_is_replaced_as_in_java() -> None:
    assert signed_content({"a": "x\ud800y"}, b"")[0] == b"x?y"


def test_the_last_of_repeated_fields_is_signed() -> None:
    request = Command.request(RequestCode.SEND_MESSAGE, extra=[("a", "1"), ("b", "2"), ("a", "3")])
    made = signed(request, OURS)
    assert made.fields[SIGNATURE] == expected(made)
    assert signed_content(made.fields, b"")[0] == b"account32"


def test_empty_fields_are_left_out_of_a_binary_header() -> None:
    request = Command.request(RequestCode.SEND_MESSAGE, extra=[("a", ""), ("b", "2")])
    request.serialize = SerializeType.ROCKETMQ
    assert set(signed(request, OURS).fields) == {"b", ACCESS_KEY, SIGNATURE}
    request.serialize = SerializeType.JSON
    assert set(signed(request, OURS).fields) == {"a", "b", ACCESS_KEY, SIGNATURE}


def test_a_query_by_unique_key_passes_at_both_releases() -> None:
    header = QueryMessageRequestHeader(
        topic="T", key="k", max_num=32, begin_timestamp=0, end_timestamp=1
    )
    request = Command.request(
        RequestCode.QUERY_MESSAGE, header, extra=((UNIQUE_KEY_QUERY, "true"),)
    )

    made = received(signed(request, OURS))

    # 4.9.7 leaves the field out for all clients, 5.3.3 for those of this release and older ones.
    assert made.version == V4_9_3
    assert made.fields[UNIQUE_KEY_QUERY] == "true"
    assert made.fields[SIGNATURE] == expected(made, UNIQUE_KEY_QUERY)
    assert request.version == VERSION


def test_a_body_is_signed_where_it_is() -> None:
    body = memoryview(bytes(1 << 20))
    assert signed_content({"a": "1"}, body)[1] is body


@pytest.mark.parametrize("secret", ["k" * (1 << 20), "密钥", "\ud800"])
def test_a_secret_key_may_be_any_text(secret: str) -> None:
    assert len(signature(secret, [b"content"])) == 28


def test_secrets_are_not_in_the_repr() -> None:
    shown = repr(Credentials("account", "planted-secret", "planted-token"))
    assert "account" in shown
    assert "planted" not in shown


@pytest.mark.parametrize(
    "keys", [("", "planted"), ("a", ""), ("a", "planted", ""), ("a", None), (1, "planted")]
)
def test_unusable_keys_are_refused_without_showing_them(keys: tuple[Any, ...]) -> None:
    with pytest.raises(ValueError, match="must be a text that is not empty") as refused:
        Credentials(*keys)
    assert "planted" not in str(refused.value)
