"""``pocketmq store verify`` and ``info``: output and exit codes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pocketmq.cli import root as commands
from pocketmq.testing import StandaloneServer
from remoting.protocol.disk.files import Checkpoint
from tests.integration.pocketmq.conftest import CommandLine
from tests.support.archives import unpack
from tests.unit.broker.store.verify.damaged import flip

LOG = "commitlog/00000000000000000000"
QUEUE = "consumequeue/OneQueue/0/00000000000000000000"


@pytest.fixture
def root(golden: Path, tmp_path: Path) -> Path:
    unpack(golden / "store" / "clean.tar.gz", tmp_path)
    return tmp_path / "store"


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(commands, ["store", *map(str, arguments)], prog_name="pocketmq")


def test_an_intact_store_exits_with_0(root: Path) -> None:
    result = call("verify", root)
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "checked 362 records (0 MB), 362 entries of 25 queues and 729 of the index" in (
        result.stderr
    )
    assert result.stderr.endswith("the store is sound\n")


def test_damage_exits_with_1_and_prints_one_line_each(root: Path) -> None:
    flip(root / LOG, 95)
    flip(root / QUEUE, 407)
    result = call("verify", root)
    assert result.exit_code == 1
    rows = [line.split("\t") for line in result.stdout.splitlines()]
    assert [row[:4] for row in rows] == [
        ["damage", "record", str(root / LOG), "0"],
        ["derived", "entry-place", str(root / QUEUE), "400"],
    ]
    assert "1 places are damaged, 1 derived ones are wrong; --repair" in result.stderr


def test_json_output_is_one_object(root: Path) -> None:
    flip(root / QUEUE, 407)
    found = json.loads(call("verify", root, "--json").stdout)
    assert found["sound"] is False
    assert found["counts"] == {"damage": 0, "derived": 1, "note": 0}
    assert found["kinds"] == {"entry-place": 1}
    assert found["records"] == 362
    assert found["findings"][0]["place"] == 400


def test_an_unreadable_store_exits_with_2(tmp_path: Path) -> None:
    for command in ("verify", "info"):
        result = call(command, tmp_path / "nothing")
        assert result.exit_code == 2
        assert "there is no store at" in result.stderr


def test_a_repair_prints_what_it_did_and_where_the_old_files_are(root: Path) -> None:
    flip(root / QUEUE, 407)
    result = call("verify", root, "--repair")
    assert result.exit_code == 0
    assert "rebuilt queue 0 of topic OneQueue" in result.stderr
    (moved,) = root.glob("pocketmq-repair-*")
    assert f"the replaced files are in {moved}" in result.stderr
    assert (moved / QUEUE).is_file()
    again = json.loads(call("verify", root, "--repair", "--json").stdout)
    assert again["sound"] is True
    assert again["repaired"] == []
    assert again["moved_to"] is None


def test_other_delay_levels_are_reported(root: Path, tmp_path: Path) -> None:
    levels = "2s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    found = json.loads(call("verify", root, "--json", "--delay-levels", levels).stdout)
    assert found["kinds"] == {"entry-tags": 1}
    result = call("verify", root, "--delay-levels", "soon")
    assert result.exit_code == 2
    assert "must be 1 to" in result.stderr
    # Entries that a crash has lost are made with them.
    shutil.rmtree(root / "consumequeue" / "SCHEDULE_TOPIC_XXXX")
    (root / "checkpoint").write_bytes(Checkpoint().encode())
    (root / "abort").touch()
    copy = tmp_path / "copy"
    assert call("copy", root, copy, "--delay-levels", levels).exit_code == 0
    found = json.loads(call("verify", copy, "--json", "--delay-levels", levels).stdout)
    assert "entry-tags" not in found["kinds"]


def test_a_store_is_described(root: Path) -> None:
    found = json.loads(call("info", root, "--json").stdout)
    assert found["written_by"] == "Apache RocketMQ 4"
    assert (found["first_offset"], found["end_offset"], found["log_files"]) == (0, 250195, 4)
    topic = next(row for row in found["topics"] if row["topic"] == "OneQueue")
    assert (topic["queues"], topic["min_offset"], topic["max_offset"]) == (1, 0, 230)
    assert {"group": "cg_pull", "topic": "OneQueue", "queues": 1, "lag": 80} in found["groups"]
    assert [row["keys"] for row in found["index"]] == [399, 330]
    lines = call("info", root).stdout.splitlines()
    assert lines[0] == "written_by\tApache RocketMQ 4"
    assert any(line.startswith("OneQueue\t1\t0\t230\t230\t2026-") for line in lines)


def test_the_store_of_a_running_broker_is_intact(
    cli: CommandLine, server: StandaloneServer, topic: str
) -> None:
    store = server.store
    for number in range(3):
        cli("send", topic, f"message {number}", "--key", f"k{number}", "--tag", "red")
        found = json.loads(call("verify", store, "--json").stdout)
        assert found["sound"] is True, found
        assert found["running"] is True
    result = call("verify", store, "--repair")
    assert result.exit_code == 2
    assert "stop it first" in result.stderr
    assert json.loads(call("info", store, "--json").stdout)["written_by"] == "PocketMQ"
