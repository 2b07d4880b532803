"""Server processes: the ready line, the clean stop, and every reason not to start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client import AccessDenied, blocking
from pocketmq import testing
from pocketmq.server.process import private_megabytes
from pocketmq.testing import ServerError, ServerProcess, StandaloneServer
from tests.integration.pocketmq.conftest import CommandLine
from tests.support.waiting import wait_until

POCKETMQ = [sys.executable, "-P", "-m", "pocketmq"]
SMALL = ["--set", "mappedFileSizeCommitLog=1048576"]


@contextmanager
def running(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*POCKETMQ, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


def ports() -> list[str]:
    return ["--nameserver-port", "0", "--broker-port", "0"]


def refused(*arguments: str, code: int = 1) -> str:
    """Return the one-line error on stderr of a server that doesn't start."""
    done = subprocess.run([*POCKETMQ, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_line_on_stdout_and_exit_code_0_after_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running("standalone", *ports(), "--store", str(tmp_path), *SMALL, "--json") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert list(ready) == ["event", "nameserver", "broker", "core", "pid"]
        assert ready["event"] == "ready"
        assert ready["pid"] == process.pid
        process.send_signal(number)
        rest, log = process.communicate(timeout=20)
    assert process.returncode == 0
    assert rest == ""
    assert all(json.loads(line)["event"] for line in log.splitlines())


def test_the_ready_line_for_people(tmp_path: Path) -> None:
    with running("standalone", *ports(), "--store", str(tmp_path), *SMALL) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.terminate()
        process.communicate(timeout=20)
    assert line.startswith("ready: nameserver 127.0.0.1:")
    assert ", broker 127.0.0.1:" in line


def test_the_log_for_people_escapes_what_could_control_a_terminal(tmp_path: Path) -> None:
    store = str(tmp_path / "a\x1b[31mb")
    with running("standalone", *ports(), "--store", store, *SMALL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.terminate()
        _, log = process.communicate(timeout=20)
    assert "\x1b" not in log
    assert "a\\x1b[31mb" in log


def test_a_name_server_and_a_broker_as_separate_processes(tmp_path: Path) -> None:
    kv = f"kvConfigPath={tmp_path / 'kv.json'}"
    nameserver = ServerProcess(["nameserver", "--port", "0", "--set", kv])
    nameserver.start()
    try:
        address = nameserver.addresses["nameserver"]
        broker = ServerProcess(
            [
                *("broker", "--nameserver", address, "--name", "b-1", "--port", "0"),
                *("--store", str(tmp_path / "store"), *SMALL),
            ]
        )
        broker.start()
        (row,) = CommandLine(address).json("cluster", "list")
        assert (row["broker"], row["address"]) == ("b-1", broker.addresses["broker"])
        broker.stop()
        assert CommandLine(address).json("cluster", "list") == []
        nameserver.stop()
    finally:
        broker.kill()
        nameserver.kill()


def test_settings_come_from_flags_over_environment_over_file(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("brokerName=from-file\nbrokerClusterName=from-file\ndefaultTopicQueueNums=3\n")
    environment = {"POCKETMQ_BROKER_NAME": "from-env", "POCKETMQ_BROKER_CLUSTER_NAME": "from-env"}
    server = ServerProcess(
        [
            *("standalone", *ports(), "--store", str(tmp_path / "store"), *SMALL),
            *("--config", str(file), "--set", "brokerName=from-flag"),
        ],
        environment=environment,
    )
    server.start()
    try:
        cli = CommandLine(server.addresses["nameserver"])
        (row,) = cli.json("cluster", "list")
        assert (row["broker"], row["cluster"]) == ("from-flag", "from-env")
        (route,) = cli.json("topic", "route", "TBW102")
        assert route["write_queues"] == 3
    finally:
        server.kill()


def test_a_key_without_effect_is_accepted_and_logged(tmp_path: Path) -> None:
    with testing.broker(store=tmp_path, settings={"sendMessageThreadPoolNums": "4"}) as server:
        pass
    assert "sendMessageThreadPoolNums" in server.log


def test_a_port_in_use_is_refused_with_what_to_do(tmp_path: Path, server: StandaloneServer) -> None:
    port = server.broker.rpartition(":")[2]
    output = refused("broker", "--port", port, "--store", str(tmp_path), *SMALL)
    assert f"127.0.0.1:{port}" in output
    assert "another process listens there" in output


def test_a_second_broker_on_a_store_is_refused(server: StandaloneServer) -> None:
    output = refused("broker", "--port", "0", "--store", str(server.store), *SMALL)
    assert str(server.store) in output
    assert "another" in output


def test_an_unwritable_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    output = refused("broker", "--port", "0", "--store", str(tmp_path / "file" / "store"), *SMALL)
    assert str(tmp_path / "file") in output


def test_a_store_with_files_of_another_size_is_refused(tmp_path: Path) -> None:
    with (
        testing.broker(store=tmp_path) as server,
        blocking.Producer(server.nameserver, group="g") as producer,
    ):
        producer.send("orders", b"tea")
    output = refused("broker", "--port", "0", "--store", str(tmp_path), *SMALL)
    assert "mappedFileSizeCommitLog" in output


@pytest.mark.parametrize(
    ("arguments", "code", "complaint"),
    [
        (["--set", "brokrName=x"], 1, "brokerName"),
        (["--set", "brokerName"], 2, "is not KEY=VALUE"),
        (["--set", "brokerRole=SLAVE"], 1, "a slave a larger one"),
        (["--set", "listenPort=1", "--port", "2"], 2, "listenPort is given twice"),
        (["--id", "1"], 1, "brokerId=1"),
        (["--config", "/no/such/file"], 2, "does not exist"),
        (["--advertise", "no such host"], 1, "brokerIP1"),
        (["--advertise", "broker.example:x"], 2, "this is not host:port"),
        (["--advertise", "127.0.0.1:31911", "--port", "0"], 1, "needs listenPort"),
    ],
)
def test_bad_settings_are_refused(
    tmp_path: Path, arguments: list[str], code: int, complaint: str
) -> None:
    assert complaint in refused("broker", "--store", str(tmp_path), *arguments, code=code)


def test_a_bad_environment_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POCKETMQ_LISTEN_PORT", "many")
    assert "POCKETMQ_LISTEN_PORT" in refused("broker", "--store", str(tmp_path))


def test_a_restart_keeps_addresses_and_messages(tmp_path: Path) -> None:
    with (
        testing.broker(store=tmp_path) as server,
        blocking.Producer(server.nameserver, group="g") as producer,
    ):
        before = dict(server.addresses)
        for end in (server.stop, server.kill):
            producer.send("orders", b"tea")
            end()
            assert not server.alive
            server.restart()
            assert server.addresses == before
        assert CommandLine(server.nameserver)("read", "orders").split() == ["tea", "tea"]


def test_a_paused_broker_can_be_resumed(server: StandaloneServer) -> None:
    with blocking.Producer(server.nameserver, group="g") as producer:
        producer.send("paused", b"before")
        server.pause()
        server.resume()
        assert producer.send("paused", b"after").offset >= 0


def state_of(pid: int) -> str:
    """Return Linux's letter for a process's state; nothing for one that has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_a_server_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from pocketmq import testing;"
        f"server = testing.StandaloneServer(Path({str(tmp_path)!r}), {{}}); server.start();"
        "print(server.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    wait_until(lambda: state_of(pid) in {"", "Z"}, seconds=20)
    assert not (tmp_path / "abort").exists(), "it stopped cleanly"


def test_a_start_that_fails_shows_the_log(tmp_path: Path) -> None:
    server = StandaloneServer(tmp_path, {"nonsense": "1"})
    with pytest.raises(ServerError, match="did not get ready") as caught:
        server.start()
    assert "nonsense" in str(caught.value)
    assert not server.alive
    server.stop()
    with pytest.raises(ServerError, match="is not running"):
        server.pause()


def test_a_server_that_does_not_stop_cleanly_is_an_error(tmp_path: Path) -> None:
    server = StandaloneServer(tmp_path, {})
    server.start()
    os.kill(server.pid, signal.SIGKILL)
    with pytest.raises(ServerError, match="instead of a clean stop"):
        server.stop()


def test_a_temporary_store_is_deleted_afterwards() -> None:
    with testing.broker() as server:
        assert server.store.is_dir()
    assert not server.store.exists()


def test_a_broker_with_accounts_admits_who_signs(tmp_path: Path) -> None:
    accounts = {"billing": {"topicPerms": ["orders=PUB"]}, "operator": {"admin": True}}
    with testing.broker(store=tmp_path, accounts=accounts) as server:
        keys, name = server.credentials, server.nameserver
        with blocking.Producer(name, group="g", credentials=keys["billing"]) as producer:
            assert producer.send("orders", b"tea").offset == 0
            with pytest.raises(AccessDenied, match="accessKey=billing needs PUB"):
                producer.send("others", b"tea")
        with blocking.Admin(name, credentials=keys["operator"]) as admin:
            assert admin.topics() == ["orders"]
            admin.wipe_write_permission("broker-a")
        with blocking.Admin(name) as stranger, pytest.raises(AccessDenied):
            stranger.topics()


def test_a_standalone_broker_with_accounts_needs_keys_to_register(tmp_path: Path) -> None:
    server = StandaloneServer(tmp_path, {"aclEnable": "true"})
    with pytest.raises(ServerError, match="set pocketmqCredentials to a file"):
        server.start()


def test_the_fixture_needs_no_import(pocketmq_broker: StandaloneServer) -> None:
    with blocking.Producer(pocketmq_broker.nameserver, group="g") as producer:
        assert producer.send("fixture", b"tea").offset == 0


def test_an_idle_server_takes_little_memory(tmp_path: Path) -> None:
    with testing.broker(store=tmp_path) as server:
        assert 0 < private_megabytes(server.pid) <= 45
