"""A task reads what the store contains; damage is an error or a row."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.storetools.view import StoreView
from remoting.protocol.disk.files import FILLER
from spark_connector.errors import ConnectorError, DataLossError, DecodeError
from spark_connector.store.planning import LogPiece
from tests.support.sizes import size
from tests.unit.spark_connector.store.directories import (
    LOG_FILE,
    golden_store,
    made_store,
    manifest_of,
    number_of,
    overwrite,
    places,
    planned,
    rows,
    table,
)

COUNT = 300
GOLDEN = ("clean", "crash", "torn-properties", "torn-body", "clean-5.3.3")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_store(tmp_path_factory.mktemp("reading") / "store", COUNT)


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    """A copy of the store that a test may damage."""
    copy = tmp_path / "store"
    shutil.copytree(whole, copy)
    return copy


def described(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row in the form of a manifest."""
    return {
        "commitLogOffset": row["physicalOffset"],
        "size": row["storeSize"],
        "topic": row["topic"],
        "queueId": row["queueId"],
        "queueOffset": row["queueOffset"],
        "tags": row["tags"],
        "keys": row["keys"],
        "bornHost": row["bornHost"],
        "storeTimestamp": round(row["storeTimestamp"].timestamp() * 1000),
        "sysFlag": row["sysFlag"],
        "flag": row["flag"],
        "reconsumeTimes": row["reconsumeTimes"],
        "crc_ok": row["crcOk"],
        "body_sha256": hashlib.sha256(row["body"]).hexdigest(),
        "properties": dict(row["properties"]) or None,
    }


@pytest.mark.parametrize("scan", ["queue", "log"])
@pytest.mark.parametrize("name", GOLDEN)
def test_a_captured_store_is_read_as_its_manifest_says(
    name: str, scan: str, golden: Path, tmp_path: Path
) -> None:
    root = golden_store(golden, name, tmp_path)
    wanted = [
        message
        for message in manifest_of(golden, name)["messages"]
        if message["crc_ok"] and (scan == "log" or message["consume_queue_entry"])
    ]
    found = rows(root, scan=scan)
    assert [row["file"] for row in found] == [
        f"{root}/commitlog/{row['physicalOffset'] // 65536 * 65536:020d}" for row in found
    ]
    assert {row["brokerName"] for row in found} == {str(root)}
    assert [described(row) for row in found] == [
        {key: message[key] for key in described(found[0])} for message in wanted
    ]


@settings(max_examples=size(test=8, ci=25, soak=300), deadline=None)
@given(
    most=st.integers(1, 2 * COUNT),
    size=st.integers(100, 70_000),
    parts=st.integers(1, 40),
    scan=st.sampled_from(["queue", "log"]),
)
def test_however_it_is_split_every_message_is_read_once(
    whole: Path, most: int, size: int, parts: int, scan: str
) -> None:
    found = rows(
        whole,
        scan=scan,
        maxRecordsPerPartition=str(most),
        maxBytesPerPartition=str(size),
        minPartitions=str(parts),
    )
    assert [number_of(row) for row in found] == list(range(COUNT))


@pytest.mark.parametrize("scan", ["queue", "log"])
def test_topics_and_tags_select_messages(whole: Path, scan: str) -> None:
    found = rows(whole, scan=scan, topic="Bills", filterTags="even")
    assert [number_of(row) for row in found] == list(range(0, COUNT, 10))
    found = rows(whole, scan=scan, topic="Orders,Bills", filterTags="odd || none")
    assert [number_of(row) for row in found] == list(range(1, COUNT, 2))


def test_delayed_messages_are_selected_by_their_tags_too(golden: Path, tmp_path: Path) -> None:
    """Their queue has times of delivery where others have hashes of tags."""
    root = golden_store(golden, "clean", tmp_path)
    found = rows(root, topic="SCHEDULE_TOPIC_XXXX")
    for tag in {row["tags"] for row in found} - {None}:
        chosen = rows(root, topic="SCHEDULE_TOPIC_XXXX", filterTags=tag)
        assert chosen == [row for row in found if row["tags"] == tag]


# --- damage


def damaged(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in found if not row["crcOk"]]


@pytest.mark.parametrize("scan", ["queue", "log"])
def test_a_flipped_bit_is_seen_in_crc_ok(root: Path, scan: str) -> None:
    at = places(root)[7]
    overwrite(root, at + 88, b"\xff")
    found = rows(root, scan=scan)
    assert len(found) == COUNT
    assert [row["physicalOffset"] for row in damaged(found)] == [at]
    with pytest.raises(DecodeError, match="CRC"):
        rows(root, scan=scan, verifyCrc="true")
    (row,) = damaged(rows(root, scan=scan, verifyCrc="true", onDecodeError="null"))
    assert (row["body"], row["queueOffset"] is None) == (None, False)


def test_a_record_without_a_head_is_an_error_or_a_row(root: Path) -> None:
    at, following = places(root)[7:9]
    lost = rows(root)[7]
    overwrite(root, at + 4, b"\0\0\0\0")
    with pytest.raises(DecodeError) as raised:
        rows(root)
    assert str(raised.value) == (
        f"message {lost['queueOffset']} of queue {lost['queueId']} of topic {lost['topic']} in the"
        f" store {root} can't be read: the record there is not the one its queue entry describes;"
        " set onDecodeError to null or raw to get such messages as rows with crcOk=false"
    )
    with pytest.raises(DecodeError, match=f"the part at {at} of the commit log in the store"):
        rows(root, scan="log")
    found = rows(root, onDecodeError="null")
    assert len(found) == COUNT
    (row,) = damaged(found)
    for name in ("topic", "queueId", "queueOffset", "physicalOffset", "storeSize", "file"):
        assert row[name] == lost[name]
    assert row["body"] is row["properties"] is row["storeTimestamp"] is None
    (row,) = damaged(rows(root, scan="log", onDecodeError="raw"))
    assert (row["topic"], row["physicalOffset"], row["storeSize"]) == (None, at, following - at)
    assert row["body"][4:8] == bytes(4)
    assert len(row["body"]) == following - at


@pytest.mark.parametrize("scan", ["queue", "log"])
def test_lengths_that_do_not_add_up_are_an_error_or_a_row(root: Path, scan: str) -> None:
    at = places(root)[7]
    overwrite(root, at + 84, b"\0\0\xff\xff")
    with pytest.raises(DecodeError, match="is damaged"):
        rows(root, scan=scan)
    with pytest.raises(DecodeError, match="is damaged"):
        rows(root, scan=scan, topic="Orders")
    found = rows(root, scan=scan, onDecodeError="raw")
    assert len(found) == COUNT
    (row,) = damaged(found)
    assert row["physicalOffset"] == at
    assert len(row["body"]) == row["storeSize"]


def test_messages_that_their_queue_lost_are_an_error_or_rows(root: Path) -> None:
    queue = root / "consumequeue" / "Orders" / "1" / f"{0:020d}"
    data = queue.read_bytes()
    queue.write_bytes(data[:60] + FILLER + bytes(20) + data[100:])
    with pytest.raises(DecodeError, match="message 3 of queue 1 of topic Orders"):
        rows(root)
    found = rows(root, onDecodeError="null")
    assert len(found) == COUNT
    lost = damaged(found)
    assert sorted(row["queueOffset"] for row in lost) == [3, 4]
    assert len(rows(root, scan="log")) == COUNT


def test_an_entry_that_points_anywhere_is_not_followed(root: Path) -> None:
    queue = root / "consumequeue" / "Orders" / "1" / f"{0:020d}"
    data = bytearray(queue.read_bytes())
    data[60:68] = (10**12).to_bytes(8, "big")
    data[88:92] = (2**31 - 5).to_bytes(4, "big")
    data[100:120] = data[120:140]
    queue.write_bytes(data)
    lost = damaged(rows(root, onDecodeError="null"))
    assert sorted(row["queueOffset"] for row in lost) == [3, 4, 5]


def test_a_missing_file_of_the_log_is_one_row(root: Path) -> None:
    (root / "commitlog" / f"{LOG_FILE:020d}").unlink()
    (row,) = damaged(rows(root, scan="log", onDecodeError="raw"))
    assert (row["physicalOffset"], row["storeSize"]) == (LOG_FILE, LOG_FILE)
    assert row["file"] is row["body"] is None


# --- files that go


def test_messages_deleted_after_planning_are_data_loss(root: Path) -> None:
    queues, log = planned(root), planned(root, scan="log")
    (root / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(DataLossError, match=r"message 0 of queue 0 of topic Bills .* was deleted"):
        table(root, pieces=queues)
    with pytest.raises(DataLossError, match=f"begins at {LOG_FILE} now"):
        table(root, pieces=log)
    assert len(rows(root)) == len(rows(root, scan="log")) < COUNT


def test_a_log_that_became_shorter_after_planning_is_an_error(root: Path) -> None:
    end = StoreView(root).log_end().position
    last = sorted((root / "commitlog").iterdir())[-1]
    os.truncate(last, 200)
    with pytest.raises((ConnectorError, DecodeError), match="log"):
        table(root, pieces=[LogPiece(0, end)])


def test_no_store_is_an_error_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(ConnectorError, match=f"there is no store at {tmp_path}/absent"):
        table(tmp_path / "absent", pieces=[LogPiece(0, 1)])


def test_files_and_numbers_of_a_store_are_counted_right(whole: Path) -> None:
    found = rows(whole)
    assert Counter(row["topic"] for row in found) == {"Orders": 240, "Bills": 60}
    assert [row["physicalOffset"] for row in found] == places(whole)
