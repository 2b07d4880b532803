"""Rows of the records of messages.json match the Java decoder."""

from __future__ import annotations

import json
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from spark_connector.decode.decoder import Decoder
from spark_connector.decode.model import DecodeSettings
from spark_connector.schema import STORE_COLUMNS

GOLDEN = json.loads((Path(__file__).parents[3] / "golden/messages.json").read_text("utf-8"))
READABLE = [case for case in GOLDEN["messages"] if case["name"] != "bad_magic" and case["decode"]]
# Their times are those of no calendar.
TIMELESS = {"extreme_numbers"}
DECODER = Decoder(DecodeSettings(tuple(STORE_COLUMNS.values()), "broker-a"))


def decoded(buffer: bytes) -> Any:
    (batch,) = DECODER.batches(buffer)
    return batch.batch


def host(text: str) -> str:
    ip, _, port = text.rpartition(":")
    address = ip_address(ip.strip("[]"))
    return f"[{address}]:{port}" if address.version == 6 else f"{address}:{port}"


@pytest.mark.parametrize("case", READABLE, ids=lambda case: f"{case['name']}-{case['version']}")
def test_a_row_has_the_values_that_java_reads(case: dict[str, Any]) -> None:
    java = case["decode"]
    batch = decoded(bytes.fromhex(case["hex"]))
    row = {name: batch.column(name)[0] for name in STORE_COLUMNS}
    assert row["topic"].as_py() == java["topic"]
    assert row["queueId"].as_py() == java["queueId"]
    assert row["queueOffset"].as_py() == java["queueOffset"]
    assert row["physicalOffset"].as_py() == java["commitLogOffset"]
    assert row["storeSize"].as_py() == java["storeSize"]
    assert row["flag"].as_py() == java["flag"]
    assert row["reconsumeTimes"].as_py() == java["reconsumeTimes"]
    assert row["body"].as_py().hex() == (java["body_hex"] or "")
    assert dict(row["properties"].as_py()) == (java["properties"] or {})
    assert row["tags"].as_py() == java["tags"]
    assert row["keys"].as_py() == java["keys"]
    assert row["bornHost"].as_py() == host(java["bornHost"])
    assert row["messageId"].as_py() == case["client_msgId"]
    assert row["crcOk"].as_py() == (case["name"] != "wrong_crc")
    if case["name"] not in TIMELESS:
        assert row["bornTimestamp"].value == java["bornTimestamp"] * 1000
        assert row["storeTimestamp"].value == java["storeTimestamp"] * 1000


def test_records_decoded_together_give_the_same_rows_as_alone() -> None:
    buffers = [bytes.fromhex(case["hex"]) for case in READABLE if case["name"] not in TIMELESS]
    together = decoded(b"".join(buffers))
    assert together.to_pylist() == [decoded(each).to_pylist()[0] for each in buffers]
