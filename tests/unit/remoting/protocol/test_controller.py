"""What brokers, tools and a controller of 5.3.3 sent each other, from a start to a failover."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.controller import (
    BrokerReplicasInfo,
    ElectMasterResponseBody,
    EpochEntryCache,
    SyncStateSet,
)
from remoting.protocol.bodies.stats import HARuntimeInfo
from remoting.protocol.codes import RequestCode, ResponseCode
from tests.unit.remoting.protocol.header_tables import REQUEST_HEADERS, RESPONSE_HEADERS

BODIES: dict[int, type[msgspec.Struct]] = {
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: SyncStateSet,
    RequestCode.CONTROLLER_ELECT_MASTER: ElectMasterResponseBody,
    RequestCode.CONTROLLER_REGISTER_BROKER: SyncStateSet,
    RequestCode.CONTROLLER_GET_REPLICA_INFO: SyncStateSet,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA: BrokerReplicasInfo,
    RequestCode.GET_BROKER_EPOCH_CACHE: EpochEntryCache,
    RequestCode.NOTIFY_BROKER_ROLE_CHANGED: SyncStateSet,
}


@pytest.fixture
def captured(golden: Path) -> list[dict[str, Any]]:
    lines = (golden / "ha" / "controller.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, lines) if "code" in line]


def bodies(captured: list[dict[str, Any]]) -> Iterator[tuple[int, bytes]]:
    for line in captured:
        if line["body_len"]:
            body = bytes.fromhex(line["frame_hex"])[-line["body_len"] :]
            yield line.get("reply_to") or line["code"], body


def test_every_captured_code_has_its_name(captured: list[dict[str, Any]]) -> None:
    for line in captured:
        codes = ResponseCode if line["type"] == "response" else RequestCode
        assert codes(line["code"]).name == line["code_name"]


def test_every_captured_header_is_read_and_written_with_all_its_fields(
    captured: list[dict[str, Any]],
) -> None:
    seen = set()
    for line in captured:
        answers = line["type"] == "response"
        code = line["reply_to"] if answers else line["code"]
        header_type = (RESPONSE_HEADERS if answers else REQUEST_HEADERS).get(code)
        if header_type is None:
            assert not line["header"], line["code_name"]
            continue
        assert dict(header_type.from_fields(line["header"]).pairs()) == line["header"]
        seen.add((answers, code))
    assert len(seen) == 15


def test_every_captured_body_is_read_and_written_as_java_writes_it(
    captured: list[dict[str, Any]],
) -> None:
    seen = set()
    for code, body in bodies(captured):
        if code in BODIES and body != b'["broker-a"]':
            assert encode(decode(BODIES[code], body)) == body
            seen.add(code)
    assert seen == BODIES.keys()


def test_the_slaves_of_apaches_master_are_read(captured: list[dict[str, Any]]) -> None:
    [body] = [body for code, body in bodies(captured) if code == RequestCode.GET_BROKER_HA_STATUS]
    status = decode(HARuntimeInfo, body)
    assert status.master
    assert [slave.slave_ack_offset for slave in status.ha_connection_info] == [152244]
