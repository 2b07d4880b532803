"""message export from a cluster, against a real broker."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import client
from client import blocking
from pocketmq.testing import StandaloneServer
from spark_connector.schema import COLUMNS, arrow_schema
from tests.integration.pocketmq.conftest import CommandLine

COUNT = 3000
QUEUES = 3


@pytest.fixture(scope="module")
def sent(server: StandaloneServer) -> dict[bytes, client.Receipt]:
    """Messages of the topic ``exported``, one of them large enough to be compressed."""
    with blocking.Admin(server.nameserver) as admin:
        admin.create_topic("exported", queues=QUEUES)
    bodies = [b"%d" % n for n in range(COUNT)]
    bodies.append(b"large " * 10_000)
    with blocking.Producer(server.nameserver, group="p") as producer:
        results = producer.send_many(
            [
                client.Message("exported", body, tag=f"t{n % 2}", keys=[f"k{n}"])
                for n, body in enumerate(bodies)
            ]
        )
    assert all(isinstance(result, client.Receipt) for result in results)
    return dict(zip(bodies, results, strict=True))  # type: ignore[arg-type] # checked above


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_each_message_is_exported_once_in_the_order_of_its_queue(
    cli: CommandLine, sent: dict[bytes, client.Receipt], tmp_path: Path
) -> None:
    path = tmp_path / "all.jsonl"
    result = cli.result("message", "export", "exported", "--out", str(path))
    assert result.exit_code == 0, result.output
    assert f"exported {COUNT + 1} messages to {path}" in result.stderr
    rows = lines(path.read_text())
    assert [(row["queue"], row["offset"]) for row in rows] == sorted(
        (receipt.queue.queue_id, receipt.offset) for receipt in sent.values()
    )
    for row in rows:
        receipt = sent[row["body"].encode()]
        assert (row["queue"], row["offset"], row["id"]) == (
            receipt.queue.queue_id,
            receipt.offset,
            receipt.id,
        )
        assert row["broker"] == receipt.queue.broker_name
    assert not path.with_name("all.jsonl.part").exists()


def test_parquet_has_the_columns_of_the_spark_source(
    cli: CommandLine, sent: dict[bytes, client.Receipt], tmp_path: Path
) -> None:
    path = tmp_path / "all.parquet"
    cli("message", "export", "exported", "--out", str(path))
    table = pq.read_table(path)
    assert table.schema.equals(arrow_schema(COLUMNS.values()))
    columns = table.to_pydict()
    found = zip(columns["body"], columns["queueId"], columns["queueOffset"], strict=True)
    assert {body: place for body, *place in found} == {
        body: [receipt.queue.queue_id, receipt.offset] for body, receipt in sent.items()
    }
    assert table.num_rows == len(sent)
    assert set(columns["tags"]) == {"t0", "t1"}


def test_messages_are_selected_by_queue_position_tag_and_key(
    cli: CommandLine, sent: dict[bytes, client.Receipt]
) -> None:
    def rows(*arguments: str) -> list[dict[str, Any]]:
        return lines(cli("message", "export", "exported", "--out", "-", *arguments))

    assert [row["offset"] for row in rows("--queue", "1", "--from", "10", "--to", "13")] == [
        10,
        11,
        12,
    ]
    assert {row["tag"] for row in rows("--tag", "t1")} == {"t1"}
    assert [row["body"] for row in rows("--key", "k17")] == ["17"]
    assert len(rows("--from", "-1h")) == len(sent)
    assert rows("--from", "2100-01-01T00:00") == rows("--to", "-1h") == []
    middle = sorted(rows(), key=lambda row: str(row["stored_at"]))[COUNT // 2]["stored_at"]
    before, after = rows("--to", middle), rows("--from", middle)
    assert len(before) + len(after) == len(sent)
    assert all(row["stored_at"] < middle for row in before)
    assert all(row["stored_at"] >= middle for row in after)


def test_refusals_are_one_line_errors(cli: CommandLine, sent: object, tmp_path: Path) -> None:
    out = ("--out", str(tmp_path / "out"))
    assert "no queue '9'" in cli.fails("message", "export", "exported", *out, "--queue", "9")
    assert "topic" in cli.fails("message", "export", "not-there", *out)
    assert "--commit-log is for --store" in cli.fails(
        "message", "export", "exported", *out, "--commit-log", "x", code=2
    )
    assert not list(tmp_path.iterdir())


def test_an_interrupt_leaves_no_file(
    server: StandaloneServer, sent: object, tmp_path: Path
) -> None:
    path = tmp_path / "out.jsonl"
    code = (
        "import signal, time\n"
        # Ignored in what a shell starts in the background, and inherited from there.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from pocketmq.cli import message_export\n"
        "from pocketmq.export import writers\n"
        "stop_signal, stops = message_export.stop_signal, []\n"
        "message_export.stop_signal = lambda: stops.append(stop_signal()) or stops[0]\n"
        "write = writers.JsonLines.write\n"
        "def slow(self, portion):\n"
        "    write(self, portion)\n"
        "    print('written', flush=True)\n"
        "    while not stops[0].is_set(): time.sleep(0.01)\n"
        "writers.JsonLines.write = slow\n"
        "from pocketmq.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "message", "export", "exported"]
    command += ["--out", str(path), "--nameserver", server.nameserver]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as exporting:
        assert exporting.stdout is not None
        assert exporting.stdout.readline() == "written\n"
        assert path.with_name("out.jsonl.part").exists()
        exporting.send_signal(signal.SIGINT)
        _, complaint = exporting.communicate(timeout=30)
    assert exporting.returncode == 1
    assert "Aborted!" in complaint
    assert not list(tmp_path.iterdir())
