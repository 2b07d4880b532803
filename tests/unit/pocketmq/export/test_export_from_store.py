"""An export of a store's directory contains what was stored."""

from __future__ import annotations

import base64
import json
import os
import resource
import sys
import tempfile
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.store.engine import MessageStore
from pocketmq.cli import root as commands
from pocketmq.export import writers
from pocketmq.export.from_store import StoreSource
from remoting.protocol.message import properties as texts
from remoting.protocol.message.record import COMPRESSED
from remoting.protocol.message.tags import TagExpression, tags_code
from remoting.protocol.names import SCHEDULE_TOPIC
from spark_connector.schema import STORE_COLUMNS, arrow_schema
from tests.support.sizes import size
from tests.unit.broker.store.stores import message, opened

COUNT = 300
TOPIC = "TopicTest"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """Three queues of a topic, some of whose messages have a tag or keys; another topic between."""
    store = opened(tmp_path / "store")
    for number in range(COUNT):
        tag = f"t{number % 4}"
        text = texts.encode({"TAGS": tag, "KEYS": f"k{number} all", "n": str(number)})
        code = tags_code(tag)
        store.put(message(b"%d" % number, queue_id=number % 3, properties=text, tags_code=code))
        if number % 5 == 0:
            store.put(message(bytes(200), topic="Other"))
    yield store
    store.close()


@pytest.fixture
def root(store: MessageStore) -> Path:
    return store.paths.root


def run(root: Path, *arguments: object, topic: str = TOPIC) -> Result:
    command = ["message", "export", topic, "--store", root, *arguments]
    result = CliRunner().invoke(commands, [str(one) for one in command])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def exported(root: Path, *arguments: object, topic: str = TOPIC) -> list[dict[str, Any]]:
    done = run(root, "--out", "-", *arguments, topic=topic)
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout_bytes.split(b"\n")[:-1]]


def numbers(rows: list[dict[str, Any]]) -> list[int]:
    return [int(row["body"]) for row in rows]


def test_each_message_comes_once_queue_by_queue_with_all_its_fields(root: Path) -> None:
    rows = exported(root)
    assert numbers(rows) == [n for queue in range(3) for n in range(queue, COUNT, 3)]
    assert [row["offset"] for row in rows if row["queue"] == 1] == list(range(COUNT // 3))
    row = rows[4]
    assert row["broker"] == str(root)
    assert (row["topic"], row["queue"], row["tag"], row["keys"]) == (TOPIC, 0, "t0", ["k12", "all"])
    assert row["properties"] == {"TAGS": "t0", "KEYS": "k12 all", "n": "12"}
    assert (row["body"], row["encoding"]) == ("12", "utf-8")
    assert (row["born_host"], row["store_host"]) == ("10.1.2.3:54321", "10.9.8.7:10911")
    assert row["born_at"] == "2020-09-13T12:26:40.000+00:00"
    assert datetime.fromisoformat(row["stored_at"]).tzinfo is not None
    assert (row["flag"], row["sys_flag"], row["retries"]) == (0, 0, 0)
    assert row["id"] == row["offset_id"]


def test_messages_are_selected_by_queue_position_tag_and_key(
    store: MessageStore, root: Path
) -> None:
    assert numbers(exported(root, "--queue", 2, "--from", 10, "--to", 12)) == [32, 35]
    assert numbers(exported(root, "--from", 999, "--to", "end")) == []
    assert numbers(exported(root, "--to", "begin")) == []
    assert len(exported(root, "--from", "-1h")) == COUNT
    assert exported(root, "--to", "-1h") == []
    assert exported(root, "--from", "2100-01-01T00:00") == []
    chosen = sorted(numbers(exported(root, "--tag", "t1 || t3")))
    assert chosen == [n for n in range(COUNT) if n % 4 in {1, 3}]
    assert numbers(exported(root, "--key", "k17")) == [17]
    assert len(exported(root, "--key", "all")) == COUNT
    (found,) = exported(root, "--key", exported(root)[7]["id"])
    assert found["body"] == "21"


def test_tags_of_delayed_messages_are_found_although_their_entries_have_times(
    store: MessageStore, root: Path
) -> None:
    for tag in ("a", "b"):
        text = f"TAGS\x01{tag}".encode()
        store.put(message(b"1", topic=SCHEDULE_TOPIC, properties=text, tags_code=10**12))
    assert len(exported(root, "--tag", "b", topic=SCHEDULE_TOPIC)) == 1


def test_messages_far_apart_are_read_in_portions_too(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    for number in range(30):
        store.put(message(b"%d" % number))
        store.put(message(bytes(6000 * (number % 2)), topic="Other"))
    store.close()
    assert numbers(exported(tmp_path / "store")) == list(range(30))
    assert run(tmp_path / "store", "--out", tmp_path / "a.parquet").exit_code == 0
    columns = pq.read_table(tmp_path / "a.parquet").to_pydict()
    assert columns["queueOffset"] == list(range(30))
    assert len(set(columns["file"])) > 3


bodies = st.one_of(st.binary(max_size=300), st.text(max_size=100).map(str.encode))
words = st.text(
    st.characters(exclude_characters="\x00\x01\x02", exclude_categories=["Cs"]), min_size=1
)
maps = st.dictionaries(words.filter(lambda name: name not in {"TAGS", "KEYS"}), words, max_size=5)


@settings(
    max_examples=size(ci=15, soak=300), deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
@given(sent=st.lists(st.tuples(bodies, maps, st.integers(0, 2)), max_size=30))
def test_both_forms_give_back_every_body_and_property(
    sent: list[tuple[bytes, dict[str, str], int]],
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "store"
        store = opened(root)
        for body, more, queue in [*sent, (b"last", {}, 0)]:
            store.put(message(body, queue_id=queue, properties=texts.encode(more), flag=7))
        store.close()
        by_queue = sorted([*sent, (b"last", {}, 0)], key=lambda one: one[2])

        rows = exported(root)
        path = Path(directory) / "all.parquet"
        assert run(root, "--out", path).exit_code == 0
        table = pq.read_table(path)

        assert [_decoded(row) for row in rows] == [body for body, _, _ in by_queue]
        assert [row["properties"] for row in rows] == [more for _, more, _ in by_queue]
        assert [row["queue"] for row in rows] == [queue for _, _, queue in by_queue]
        assert table.schema.equals(arrow_schema(STORE_COLUMNS.values()))
        columns = table.to_pydict()
        assert columns["body"] == [body for body, _, _ in by_queue]
        assert [dict(one) for one in columns["properties"]] == [more for _, more, _ in by_queue]
        assert columns["queueOffset"] == [row["offset"] for row in rows]
        assert columns["messageId"] == [row["id"] for row in rows]
        assert set(columns["flag"]) == {7}
        assert all(columns["crcOk"])


def _decoded(row: dict[str, Any]) -> bytes:
    if row["encoding"] == "base64":
        return base64.b64decode(row["body"])
    assert row["encoding"] == "utf-8"
    return str(row["body"]).encode()


def test_parquet_comes_in_groups_of_rows_of_bounded_size(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "all.parquet"
    selection = writers.ExportSelection(topic=TOPIC, tags=TagExpression.parse("*"))
    with writers.output_file(path) as stream:
        writer = writers.Parquet(stream, of_store=True, row_group_bytes=4096)
        for portion in StoreSource(root, None, selection).portions():
            writer.write(portion)
        writer.close()
    assert pq.ParquetFile(path).num_row_groups > 3
    columns = pq.read_table(path).to_pydict()
    assert [int(body) for body in columns["body"]] == numbers(exported(root))
    assert {Path(file).parent for file in columns["file"]} == {root / "commitlog"}
    assert set(columns["brokerName"]) == {str(root)}
    stored = datetime.fromisoformat(exported(root)[0]["stored_at"])
    assert columns["storeTimestamp"][0] == stored


def test_bodies_are_written_in_the_requested_form(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    for body in (b'{"a": [1, 2.5]}', b"plain", b"\xff\x00"):
        store.put(message(body))
    store.close()

    def forms(*arguments: str) -> list[tuple[Any, str]]:
        return [(row["body"], row["encoding"]) for row in exported(tmp_path / "store", *arguments)]

    text = ('{"a": [1, 2.5]}', "utf-8")
    assert forms() == forms("--body", "auto") == [text, ("plain", "utf-8"), ("/wA=", "base64")]
    assert forms("--body", "base64")[1] == ("cGxhaW4=", "base64")
    assert forms("--body", "json") == [
        ({"a": [1, 2.5]}, "json"),
        ("plain", "utf-8"),
        ("/wA=", "base64"),
    ]
    done = run(tmp_path / "store", "--body", "text", "--out", "-")
    assert done.exit_code == 1
    assert "message 2 of" in done.stderr
    assert "is not UTF-8: use --body auto" in done.stderr


def test_invalid_times_are_null(tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    store.put(message(born_timestamp_ms=2**62))
    store.close()
    (row,) = exported(tmp_path / "store")
    assert row["born_at"] is None
    assert run(tmp_path / "store", "--out", tmp_path / "a.parquet").exit_code == 0


# --- damage, and what fails


def damage_body(root: Path, text: bytes) -> None:
    for path in (root / "commitlog").iterdir():
        data = path.read_bytes()
        if text in data:
            path.write_bytes(data.replace(text, text[::-1]))


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_damaged_messages_are_named_and_omitted(name: str, tmp_path: Path) -> None:
    store = opened(tmp_path / "store")
    for body in (b"first", b"damaged", b"last"):
        store.put(message(body))
    store.put(message(b"no zlib", sys_flag=COMPRESSED))
    store.close()
    damage_body(tmp_path / "store", b"damaged")
    path = tmp_path / name

    done = run(tmp_path / "store", "--out", path)

    assert done.exit_code == 1
    assert "message 1 of" in done.stderr
    assert "the CRC of its body is not the one stored with it" in done.stderr
    assert "message 3 of" in done.stderr
    assert "exported 2 messages" in done.stderr
    if name.endswith("jsonl"):
        assert [json.loads(line)["body"] for line in path.read_text().splitlines()] == [
            "first",
            "last",
        ]
    else:
        assert pq.read_table(path).column("body").to_pylist() == [b"first", b"last"]


def test_entries_that_point_to_no_record_are_reported(root: Path) -> None:
    path = root / "consumequeue" / TOPIC / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[20:40], data[100:108] = data[0:20], b"\x00" + b"\x7f" * 7
    path.write_bytes(data)
    done = run(root, "--out", "-")
    assert done.exit_code == 1
    assert len(done.stdout.splitlines()) == COUNT - 2
    assert "message 1 of" in done.stderr
    assert "points to a different record" in done.stderr
    assert "message 5 of" in done.stderr
    assert "the log has no record of it" in done.stderr


def test_a_refusal_leaves_no_file(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "out"
    cases: list[tuple[tuple[object, ...], str, str]] = [
        ((), "Absent", "has no queue of topic 'Absent': it has Other, TopicTest"),
        (("--queue", 7), TOPIC, "has no queue '7': it has 0, 1, 2"),
        (("--tag", "||"), TOPIC, "Invalid value"),
        (("--format", "parquet", "--body", "text"), TOPIC, "--body is for --format jsonl"),
        (("--from", "yesterday"), TOPIC, "is not begin, end, an offset"),
    ]
    for arguments, topic, text in cases:
        done = run(root, "--out", path, *arguments, topic=topic)
        assert done.exit_code != 0
        assert text in done.stderr
    assert "can't be written to stdout" in run(root, "--out", "-", "--format", "parquet").stderr
    assert "No such file" in run(root, "--out", tmp_path / "a" / "b").stderr
    assert "it is a directory" in run(root, "--out", tmp_path).stderr
    assert "there is no store" in run(tmp_path / "none", "--out", path).stderr
    assert sorted(one.name for one in tmp_path.iterdir()) == ["store"]


def test_a_link_is_followed_and_a_pipe_stays_one(root: Path, tmp_path: Path) -> None:
    file, link, pipe = tmp_path / "out.jsonl", tmp_path / "link.jsonl", tmp_path / "pipe"
    link.symlink_to(file.name)
    assert run(root, "--out", link).exit_code == 0
    assert link.is_symlink()
    assert numbers([json.loads(line) for line in file.read_text().splitlines()])[:2] == [0, 3]
    os.mkfifo(pipe)
    # Open for both, so that neither end waits for the other.
    reader = os.open(pipe, os.O_RDWR)
    try:
        assert run(root, "--out", pipe, "--key", "k12").exit_code == 0
        assert pipe.is_fifo()
        assert numbers([json.loads(os.read(reader, 1 << 16))]) == [12]
        assert run(root, "--out", pipe, "--key", "k12", "--format", "parquet").exit_code == 0
        table = pq.read_table(pa.BufferReader(os.read(reader, 1 << 16)))
        assert table.to_pydict()["body"] == [b"12"]
    finally:
        os.close(reader)


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_an_export_that_is_stopped_or_fails_leaves_what_was_there_before(
    name: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / name
    path.write_text("before")
    writer = writers.Parquet if name.endswith("parquet") else writers.JsonLines
    write, calls = writer.write, iter(range(100))

    def is_as_before(done: Result, text: str) -> bool:
        assert done.exit_code == 1
        assert text in done.stderr
        assert not path.with_name(name + ".part").exists()
        return path.read_text() == "before"

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        done = run(root, "--out", path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert is_as_before(done, "File too large")

    def stops(self: Any, portion: Any) -> None:
        write(self, portion)
        if next(calls) == 2:
            os.kill(os.getpid(), 2)

    monkeypatch.setattr(writer, "write", stops)
    assert is_as_before(run(root, "--out", path), "Aborted!")
    monkeypatch.undo()
    assert run(root, "--out", path).exit_code == 0
    assert path.read_bytes()[:6] != b"before"


def test_parquet_without_pyarrow_says_how_to_get_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = run(root, "--out", tmp_path / "a.parquet")
    assert done.exit_code == 1
    assert "pip install 'pocketmq[parquet]'" in done.stderr
    assert not list(tmp_path.glob("a.parquet*"))
