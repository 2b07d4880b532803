"""Servers that can't start, or start with damaged files: one error that says what to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import client
from pocketmq.testing import ServerProcess
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.admin import KVKeyRequestHeader, PutKVConfigRequestHeader
from tests.integration.bad_input.conftest import Servers
from tests.integration.bad_input.disks import may_mount, mount, unmount
from tests.integration.bad_input.peer import PATIENCE, Peer
from tests.unit.broker.harness import send_command

SMALL = ["--set=mappedFileSizeCommitLog=1048576", "--set=mappedFileSizeConsumeQueue=20000"]


def refused(*arguments: str) -> str:
    """Return the error of a server that doesn't start."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pocketmq", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    return done.stderr.splitlines()[-1]


def broker_on(store: Path, *more: str) -> list[str]:
    return ["broker", "--name=broker-a", "--port=0", f"--store={store}", *(more or SMALL)]


def nameserver_with(kv_file: Path, port: int = 0) -> list[str]:
    return ["nameserver", f"--port={port}", f"--set=kvConfigPath={kv_file}"]


@pytest.fixture
def run() -> Iterator[Callable[[list[str]], ServerProcess]]:
    """Starts servers that are killed at the end."""
    started: list[ServerProcess] = []

    def start(command: list[str]) -> ServerProcess:
        started.append(ServerProcess(command))
        started[-1].start()
        return started[-1]

    yield start
    for server in started:
        server.kill()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a message to ``kept`` in it, stopped cleanly."""
    directory = tmp_path_factory.mktemp("template") / "store"
    server = ServerProcess(broker_on(directory))
    server.start()
    try:
        with Peer(server.addresses["broker"]) as peer:
            assert peer.ask(send_command("kept", b"message")).code == 0
        server.stop()
    finally:
        server.kill()
    return directory


@pytest.fixture
def store(tmp_path: Path, template: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(template, tmp_path / "store")


# --- places that are taken or can't be used


def test_a_second_broker_on_a_store_is_refused_and_the_first_continues(
    servers: Servers, unharmed: None
) -> None:
    command = servers.broker.process.command
    directory = Path(command[command.index("--store") + 1])
    error = refused(*broker_on(directory))
    assert f"another broker has the store {directory} open" in error
    assert "give this one another storePathRootDir" in error


def test_a_port_in_use_is_refused_and_its_owner_continues(
    servers: Servers, unharmed: None, tmp_path: Path
) -> None:
    taken = [target.address.rpartition(":")[2] for target in (servers.nameserver, servers.broker)]
    for error in (
        refused(*nameserver_with(tmp_path / "kv.json", int(taken[0]))),
        refused("broker", f"--port={taken[1]}", f"--store={tmp_path / 'other'}", *SMALL),
        refused(*broker_on(tmp_path / "third"), f"--metrics-port={taken[0]}"),
    ):
        assert any(port in error for port in taken)
        assert "choose another" in error


@pytest.mark.parametrize("setting", ["storePathRootDir", "storePathCommitLog"])
def test_a_directory_that_cannot_be_created_is_refused(tmp_path: Path, setting: str) -> None:
    (tmp_path / "file").write_text("in the way")
    below = tmp_path / "file" / "store"
    if setting == "storePathRootDir":
        error = refused(*broker_on(below))
    else:
        error = refused(*broker_on(tmp_path / "store", f"--set={setting}={below}", *SMALL))
    assert str(tmp_path / "file") in error
    assert "a file stands where a directory should be" in error


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[Path]:
    """A directory in which this user, even root, can create nothing."""
    directory = tmp_path / "read-only"
    directory.mkdir(mode=0o500)
    if may_mount():
        assert mount(directory, "-t", "tmpfs", "-o", "ro,size=1m", "none")
        yield directory
        unmount(directory)
    else:
        yield Path("/proc") if os.access(directory, os.W_OK) else directory


def test_a_directory_that_cannot_be_written_is_refused(read_only: Path) -> None:
    error = refused(*broker_on(read_only / "store"))
    assert "check the owner and the free space" in error
    assert str(read_only) in error


def test_an_address_of_another_machine_is_refused(tmp_path: Path) -> None:
    error = refused(*broker_on(tmp_path / "store"), "--host=192.0.2.1")
    assert "192.0.2.1" in error
    assert "this machine has no such address" in error


# --- files that are not what they should be


@pytest.fixture
def full(tmp_path: Path, store: Path) -> Iterator[Path]:
    """The store on a full disk: one in memory where this user may mount it."""
    directory = tmp_path / "memory"
    directory.mkdir()
    mounted = may_mount() and mount(directory, "-t", "tmpfs", "-o", "size=8m", "none")
    copied = shutil.copytree(store, directory / "store")
    with (copied / "commitlog" / f"{1 << 20:020}").open("wb") as made_ahead:
        made_ahead.truncate(1 << 20)
    (copied / "abort").touch()
    if mounted:
        with suppress(OSError), (directory / "ballast").open("wb", buffering=0) as ballast:
            while ballast.write(bytes(4096)):
                pass
    yield copied
    if mounted:
        unmount(directory)


def test_a_log_file_without_blocks_after_a_crash_is_not_read(
    full: Path, run: Callable[[list[str]], ServerProcess]
) -> None:
    # On a full tmpfs, reading a hole raises SIGBUS.
    server = run(broker_on(full))
    assert server.addresses["broker"]
    server.kill()


def test_a_commit_log_of_another_file_size_is_refused_and_kept(
    store: Path, run: Callable[[list[str]], ServerProcess]
) -> None:
    other = ["--set=mappedFileSizeCommitLog=2097152", SMALL[1]]
    before = {path: path.stat().st_size for path in (store / "commitlog").iterdir()}
    error = refused(*broker_on(store, *other))
    assert "mappedFileSizeCommitLog" in error
    assert "1048576" in error
    assert {path: path.stat().st_size for path in (store / "commitlog").iterdir()} == before
    server = run(broker_on(store))
    assert max_offset(server, "kept") == 1


def test_a_commit_log_file_that_was_cut_is_refused(store: Path) -> None:
    (file, *_) = sorted((store / "commitlog").iterdir())
    with file.open("r+b") as stream:
        stream.truncate(1000)
    error = refused(*broker_on(store))
    assert str(file) in error


def max_offset(server: ServerProcess, topic: str) -> int:
    header = {"topic": topic, "queueId": "0"}
    with Peer(server.addresses["broker"]) as peer:
        answer = peer.ask(Command(RequestCode.GET_MAX_OFFSET, pairs=tuple(header.items())))
        assert answer.code == 0, answer.remark
        return int(answer.fields["offset"])


DAMAGES = {
    "cut off": lambda text: text[: len(text) // 2],
    "binary": lambda _: bytes(range(256)),
    "zeros": lambda text: bytes(len(text)),
    "deep": lambda _: b"[" * 100_000,
    "another program's": lambda _: b"<xml/>",
}
FILES = ["topics.json", "subscriptionGroup.json", "consumerOffset.json"]


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_damaged_config_files_are_replaced_by_their_backups(
    store: Path,
    run: Callable[[list[str]], ServerProcess],
    damage: Callable[[bytes], bytes],
) -> None:
    for name in FILES:
        file = store / "config" / name
        text = file.read_bytes()
        file.with_name(f"{name}.bak").write_bytes(text)
        file.write_bytes(damage(text))
    server = run(broker_on(store))
    assert max_offset(server, "kept") == 1
    server.stop()
    for name in FILES:
        assert f"its backup {name}.bak was taken" in server.log


@pytest.mark.parametrize("name", FILES)
def test_config_files_damaged_with_their_backups_are_refused_and_kept(
    store: Path, name: str
) -> None:
    file = store / "config" / name
    backup = file.with_name(f"{name}.bak")
    file.write_bytes(b'{"cut off')
    backup.write_bytes(b"\x00\x01")
    error = refused(*broker_on(store))
    assert str(file) in error
    assert "its backup is damaged too" in error
    assert "put" in error
    assert (file.read_bytes(), backup.read_bytes()) == (b'{"cut off', b"\x00\x01")


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize(
    "text",
    [
        b"[1,2,3]",
        b'"text"',
        b'{"topicConfigTable":5,"subscriptionGroupTable":"x","offsetTable":[]}',
        b'{"topicConfigTable":{"T":{"readQueueNums":"many"}},'
        b'"subscriptionGroupTable":{"g":{"retryMaxTimes":[]}},"offsetTable":{"T@g":{"x":"y"}}}',
    ],
    ids=range(4),
)
def test_config_files_with_other_contents_are_refused(store: Path, name: str, text: bytes) -> None:
    file = store / "config" / name
    file.write_bytes(text)
    error = refused(*broker_on(store))
    assert str(file) in error
    assert "put" in error


def test_a_damaged_checkpoint_and_lock_file_do_not_matter(
    store: Path, run: Callable[[list[str]], ServerProcess]
) -> None:
    (store / "checkpoint").write_bytes(b"\xff" * 5000)
    (store / "lock").write_bytes(b"what is this")
    server = run(broker_on(store))
    assert max_offset(server, "kept") == 1


def test_garbage_behind_the_last_message_is_cut_off_after_an_unclean_stop(
    store: Path, run: Callable[[list[str]], ServerProcess]
) -> None:
    (file, *_) = sorted((store / "commitlog").iterdir())
    with file.open("r+b") as stream:
        end = stream.read().rstrip(b"\0")
        stream.seek(len(end) + 1)
        stream.write(b"\x00\x00\x01\x00\xda\xa3\x20\xa7" + b"\x7f" * 500)
    (store / "abort").write_bytes(b"")
    server = run(broker_on(store))
    assert max_offset(server, "kept") == 1
    with Peer(server.addresses["broker"]) as peer:
        assert peer.ask(send_command("kept", b"another")).code == 0
    assert max_offset(server, "kept") == 2


# --- the name server's file


KV = PutKVConfigRequestHeader(namespace="ns", key="k", value="v")


def put_kv(server: ServerProcess) -> Command:
    with Peer(server.addresses["nameserver"]) as peer:
        return peer.ask(Command.request(RequestCode.PUT_KV_CONFIG, KV))


def get_kv(server: ServerProcess) -> Command:
    header = KVKeyRequestHeader(namespace="ns", key="k")
    with Peer(server.addresses["nameserver"]) as peer:
        return peer.ask(Command.request(RequestCode.GET_KV_CONFIG, header))


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_key_value_file_is_replaced_by_its_backup_or_refused(
    tmp_path: Path,
    run: Callable[[list[str]], ServerProcess],
    damage: Callable[[bytes], bytes],
) -> None:
    file = tmp_path / "kvConfig.json"
    text = json.dumps({"configTable": {"ns": {"k": "v"}}}).encode()
    file.write_bytes(damage(text))
    error = refused(*nameserver_with(file))
    assert str(file) in error
    assert "Restore the file from a copy" in error
    file.with_name("kvConfig.json.bak").write_bytes(text)
    server = run(nameserver_with(file))
    assert get_kv(server).fields["value"] == "v"
    server.stop()
    assert "took the backup" in server.log


def test_a_key_value_file_that_cannot_be_written_changes_nothing(
    tmp_path: Path, run: Callable[[list[str]], ServerProcess]
) -> None:
    in_the_way = tmp_path / "namesrv"
    server = run(nameserver_with(in_the_way / "kvConfig.json"))
    in_the_way.write_text("a file where a directory should be")
    answer = put_kv(server)
    assert answer.code == 1
    assert str(in_the_way) in (answer.remark or "")
    assert get_kv(server).code == 22
    in_the_way.unlink()
    assert put_kv(server).code == 0
    assert get_kv(server).fields["value"] == "v"


def test_a_key_value_table_too_large_for_a_frame_is_answered_with_an_error(
    tmp_path: Path, run: Callable[[list[str]], ServerProcess]
) -> None:
    file = tmp_path / "kvConfig.json"
    entries = {str(number): "x" * 65_000 for number in range(300)}
    file.write_text(json.dumps({"configTable": {"ns": {**entries, "k": "v"}}}))
    server = run(nameserver_with(file))
    with Peer(server.addresses["nameserver"]) as peer:
        pairs = (("namespace", "ns"),)
        answer = peer.ask(Command(RequestCode.GET_KVLIST_BY_NAMESPACE, pairs=pairs))
    assert answer.code == 1
    assert (answer.remark or "").startswith("a command of 195")
    assert "ask for less at once" in (answer.remark or "")
    assert get_kv(server).fields["value"] == "v"
    server.stop()
    assert '"exception"' not in server.log


def test_a_name_server_with_a_file_in_its_path_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    error = refused(*nameserver_with(tmp_path / "file" / "kvConfig.json"))
    assert str(tmp_path / "file") in error


# --- what a user writes


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"brokerNmae=x\n", "brokerName"),
        (b"listenPort=99999\n", "listenPort"),
        (b"listenPort=ten\n", "listenPort"),
        (b"\xff\xfe\x00", "broker.conf"),
        (b"flushDiskType=NEVER\n", "flushDiskType"),
        (b"brokerId=1\n", "brokerId"),
        (b"maxMessageSize=99999999999\n", "maxMessageSize"),
    ],
    ids=range(7),
)
def test_a_bad_configuration_file_is_refused_with_the_key(
    tmp_path: Path, text: bytes, error: str
) -> None:
    file = tmp_path / "broker.conf"
    file.write_bytes(text)
    words = refused("broker", f"--config={file}", f"--store={tmp_path / 'store'}")
    assert error in words


async def test_a_broker_that_is_refused_does_not_disturb_the_routes(
    servers: Servers, unharmed: None
) -> None:
    store = Path(
        servers.broker.process.command[servers.broker.process.command.index("--store") + 1]
    )
    refused(*broker_on(store, f"--nameserver={servers.nameserver.address}", *SMALL))
    async with client.Admin(servers.nameserver.address) as admin:
        cluster = await admin.cluster()
    (only,) = cluster.broker_addr_table.values()
    assert only.broker_addrs == {0: servers.broker.address}
