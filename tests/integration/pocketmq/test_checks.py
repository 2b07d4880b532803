"""health, doctor, metrics and demo against real servers, healthy and broken."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path

import pytest

from pocketmq import testing
from pocketmq.server.process import PERIOD
from pocketmq.testing import ServerProcess, StandaloneServer
from tests.integration.pocketmq.conftest import CommandLine


def test_healthy_servers_are_reported_in_one_line(
    cli: CommandLine, server: StandaloneServer
) -> None:
    assert cli("health").startswith(f"ok: name server {server.nameserver} with 1 broker in ")
    assert cli("health", "--broker", server.broker).startswith(f"ok: broker {server.broker} in ")
    assert cli.json("health", "--broker", server.broker)["healthy"] is True


def test_an_unreachable_server_is_not_healthy(cli: CommandLine) -> None:
    address = "127.0.0.1:1"
    result = cli.result("health", "--broker", address)
    assert result.exit_code == 1
    assert result.stdout.startswith(f"failed: can't connect to {address}")
    assert result.stdout.count("\n") == 1
    output = json.loads(cli.result("health", "--nameserver", address, "--json").stdout)
    assert output["healthy"] is False


def test_a_name_server_is_no_broker(cli: CommandLine, server: StandaloneServer) -> None:
    result = cli.result("health", "--broker", server.nameserver)
    assert result.exit_code == 1
    assert "answers with code 3" in result.stdout


def test_an_invalid_address_is_reported(cli: CommandLine) -> None:
    assert cli.result("health", "--nameserver", "nowhere").exit_code == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("health", "--broker", ""),
        ("health", "--nameserver", ";"),
        ("health", "--nameserver", "127.0.0.1:1", "--broker", " "),
        ("doctor", "--nameserver", ""),
    ],
    ids=" ".join,
)
def test_an_option_without_a_server_is_refused(
    cli: CommandLine, arguments: tuple[str, ...]
) -> None:
    assert "names no server: give HOST:PORT" in cli.fails(*arguments, code=2)


def test_the_doctor_finds_a_healthy_broker_healthy(cli: CommandLine, topic: str) -> None:
    cli("send", topic, "tea")
    cli("read", topic, "--group", f"g-{topic}", "--commit")
    output = cli.json("doctor", "--topic", topic, "--group", f"g-{topic}")
    assert output["healthy"] is True
    verdicts = {finding["check"]: finding["verdict"] for finding in output["findings"]}
    # That of the disk is about this machine's.
    assert verdicts.pop("disk") in {"ok", "warning"}
    assert {"broker", "clock", "route", "permission", "offsets"} <= {
        check for check, verdict in verdicts.items() if verdict == "ok"
    }


def test_the_doctor_prints_what_is_wrong_and_what_to_do(cli: CommandLine) -> None:
    address = "127.0.0.1:1"
    result = cli.result("doctor", "--nameserver", f"{cli.nameserver};{address}", "--topic", "none")
    assert result.exit_code == 1
    failed = [line.split("\t") for line in result.stdout.splitlines() if line.startswith("failed")]
    assert [row[1] for row in failed] == ["name server", "topic"]
    assert failed[1][3] == "pocketmq topic create none"
    assert "2 failed" in result.stderr


def test_the_doctor_finds_an_advertised_address_that_nobody_can_reach(tmp_path: Path) -> None:
    with_address = ["--advertise", "127.0.0.2", "--store", str(tmp_path)]
    nameserver = ServerProcess(["nameserver", "--port", "0", *_kv(tmp_path)])
    try:
        nameserver.start()
        address = nameserver.addresses["nameserver"]
        broker = ServerProcess(["broker", "--nameserver", address, "--port", "0", *with_address])
        try:
            broker.start()
            output = json.loads(CommandLine(address).result("doctor", "--json").stdout)
        finally:
            broker.kill()
    finally:
        nameserver.kill()
    (failed,) = [f for f in output["findings"] if f["verdict"] == "failed"]
    assert "is advertised, but can't connect to 127.0.0.2" in failed["found"]
    assert "--advertise" in failed["remedy"]


def _kv(path: Path) -> list[str]:
    return ["--set", f"kvConfigPath={path / 'kv.json'}"]


def scrape(address: str) -> dict[str, float]:
    with urllib.request.urlopen(f"http://{address}/metrics") as page:
        lines = page.read().decode().splitlines()
    pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
    return {name: float(value) for name, _, value in pairs}


def test_metrics_count_what_happened(tmp_path: Path) -> None:
    server = StandaloneServer(tmp_path, {})
    server.command += ["--metrics-port", "0"]
    try:
        server.start()
        cli = CommandLine(server.nameserver)
        cli("send", "orders", stdin="one\ntwo\n")
        cli("read", "orders")
        while not (found := scrape(server.addresses["metrics"]))[
            "pocketmq_loop_stall_seconds_count"
        ]:
            time.sleep(PERIOD)
        server.stop()
    finally:
        server.kill()
    assert found["pocketmq_messages_in_total"] == 2
    assert found["pocketmq_messages_out_total"] >= 2
    assert found['pocketmq_request_seconds_count{family="send"}'] >= 1
    assert found['pocketmq_request_seconds_count{family="route"}'] >= 1
    assert found["pocketmq_loop_stall_seconds_count"] >= 1
    assert found[f'pocketmq_registered{{nameserver="{server.nameserver}"}}'] == 1
    assert found['pocketmq_commit_log_offset_bytes{place="end"}'] > 0
    assert found["pocketmq_store_writable"] == 1
    assert found["pocketmq_recovery_seconds"] > 0
    assert found["pocketmq_recovery_stepped_over"] == found["pocketmq_index_broken"] == 0
    assert found["pocketmq_offsets_lost"] == 0
    assert found["pocketmq_index_backlog_bytes"] >= 0
    assert found["pocketmq_topics"] > 1
    assert found['pocketmq_peers_dropped_total{reason="bad_frame",server="broker"}'] == 0
    assert found['pocketmq_open_to_network{server="broker"}'] == 0


def test_servers_that_everybody_may_use_say_so_and_keep_their_metrics_local(
    tmp_path: Path,
) -> None:
    server = StandaloneServer(tmp_path, {"brokerIP1": "127.0.0.1"})
    server.command += ["--host", "0.0.0.0", "--metrics-port", "0"]
    try:
        server.start()
        found = scrape(server.addresses["metrics"])
        cli = CommandLine(f"127.0.0.1:{server.nameserver.rpartition(':')[2]}")
        findings = json.loads(cli.result("doctor", "--json").stdout)["findings"]
        server.stop()
    finally:
        server.kill()
    assert server.addresses["metrics"].startswith("127.0.0.1:")
    for kind in ("nameserver", "broker"):
        assert found[f'pocketmq_open_to_network{{server="{kind}"}}'] == 1
    assert server.log.count("everybody who reaches this address") == 2
    (access,) = [f for f in findings if f["check"] == "access"]
    assert access["verdict"] == "warning"
    assert "aclEnable=true" in access["remedy"]


def test_every_metric_is_explained(tmp_path: Path) -> None:
    server = StandaloneServer(tmp_path, {})
    server.command += ["--metrics-port", "0"]
    try:
        server.start()
        with urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics") as page:
            lines = page.read().decode().splitlines()
        server.stop()
    finally:
        server.kill()
    names = {line.split()[2] for line in lines if line.startswith("# TYPE")}
    helps = dict(line[7:].split(" ", 1) for line in lines if line.startswith("# HELP"))
    assert names == helps.keys()
    assert all(text.endswith(".") for text in helps.values())


def test_a_metrics_port_in_use_is_a_one_line_error(
    tmp_path: Path, server: StandaloneServer
) -> None:
    port = server.broker.rpartition(":")[2]
    other = StandaloneServer(tmp_path, {})
    other.command += ["--metrics-port", port]
    with pytest.raises(testing.ServerError, match="choose another --metrics-port"):
        other.start()
    assert "Traceback" not in other.log


def test_the_demo_checks_what_it_shows(cli: CommandLine) -> None:
    output = cli.json("demo", "--limit", "2000")
    assert output["checked"] is True
    assert output["messages"] == 2002
    assert output["delay_seconds"] >= 1
    assert output["send_seconds"] > 0
    assert output["group_seconds"] > 0


def test_the_demo_prints_a_table(cli: CommandLine) -> None:
    lines = dict(line.split("\t") for line in cli("demo", "--limit", "10").splitlines())
    assert lines["messages"] == "12"
    assert lines["in_order"] == "the orders of each of 10 customers"
    assert lines["transactions"] == "1 committed and handled, 1 rolled back"
    assert lines["checked"] == "yes"
