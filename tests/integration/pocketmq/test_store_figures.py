"""What a start found in its store is shown by log, metrics, doctor and store info."""

from __future__ import annotations

import json
from pathlib import Path

from pocketmq.testing import StandaloneServer
from tests.integration.pocketmq.conftest import CommandLine
from tests.integration.pocketmq.test_checks import scrape

SENT = 20


def test_lost_offsets_and_damage_are_reported_everywhere(tmp_path: Path) -> None:
    server = StandaloneServer(tmp_path, {})
    server.command += ["--metrics-port", "0"]
    try:
        server.start()
        commands = CommandLine(server.nameserver)
        commands("send", "orders", stdin="".join(f"number {n:03d}\n" for n in range(SENT)))
        server.stop()
        for path in (tmp_path / "config").glob("consumerOffset*"):
            path.unlink()
        # As after a crash, with a flipped bit in what had reached the disk; Apache's broker, which
        # leaves no word of where the queues end, has had it in between.
        log = tmp_path / "commitlog" / f"{0:020d}"
        data = log.read_bytes()
        log.write_bytes(data.replace(b"number 007", b"number 008"))
        (tmp_path / "pocketmq-checkpoint").unlink()
        (tmp_path / "abort").touch()
        server.start()
        figures = scrape(server.addresses["metrics"])
        doctor = CommandLine(server.nameserver).result("doctor", "--json")
        server.stop()
        text = server.log
    finally:
        server.kill()

    assert figures["pocketmq_offsets_lost"] == 1
    assert figures["pocketmq_recovery_records"] >= SENT - 1
    assert figures["pocketmq_recovery_stepped_over"] == 1
    assert figures["pocketmq_recovery_seconds"] > 0
    assert "config/consumerOffset.json is missing" in text
    bad = {
        finding["check"]: finding["found"]
        for finding in json.loads(doctor.stdout)["findings"]
        if finding["verdict"] != "ok"
    }
    assert doctor.exit_code == 1
    assert "no config/consumerOffset.json" in bad["offsets"]
    assert "skipped 1 damaged places" in bad["store"]


def test_a_broker_keeps_its_stores_name_and_another_one_is_reported_everywhere(
    tmp_path: Path,
) -> None:
    server = StandaloneServer(tmp_path / "store", {})
    usual = list(server.command)

    def started(*options: str) -> tuple[str, list[str]]:
        """Start a broker; return its name and the doctor's findings."""
        server.command = [*usual, *options]
        server.start()
        cli = CommandLine(server.nameserver)
        (row,) = cli.json("cluster", "list")
        findings = json.loads(cli.result("doctor", "--json").stdout)["findings"]
        server.stop()
        return row["broker"], [one["found"] for one in findings if one["check"] == "name"]

    cli = CommandLine("")
    try:
        assert started() == ("broker-a", [])
        assert started("--name", "shop") == (
            "shop",
            [
                "the store of shop was written by broker-a before this start: clients treat "
                "its queues as new"
            ],
        )
        assert "written under another broker name" in server.log
        assert started() == ("shop", [])
        assert cli.json("store", "info", str(tmp_path / "store"))["broker"] == "shop"
        cli("store", "verify", str(tmp_path / "store"))
        cli("store", "copy", str(tmp_path / "store"), str(tmp_path / "copy"))
        assert cli.json("store", "info", str(tmp_path / "copy"))["broker"] == "shop"
    finally:
        server.kill()
