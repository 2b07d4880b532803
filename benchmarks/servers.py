"""Starts both brokers on loopback, each with a name server, default settings and an empty store.

Apache's has a heap of 1 GiB. Both run at the same time; the one that is not measured is idle.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks import environments
from benchmarks.tools import VERSION, BenchmarkError, Target
from pocketmq import certificates
from pocketmq.server.probe import NoAnswer, ask
from remoting.protocol.bodies.route import ClusterInfo
from remoting.protocol.codes import RequestCode
from tests.interop import apache
from tests.support.ports import free_port, free_ports

READY_WITHIN: Final = 60.0
HEAP: Final = "1g"
HERE: Final = Path(sys.executable)


@dataclass(frozen=True, slots=True)
class Pair:
    """Both brokers; ``pure`` is PocketMQ on its Python path, if that is measured too."""

    ours: Target
    theirs: Target
    pure: Target | None = None


@contextmanager
def process(
    command: Sequence[str], home: Path, log: Path, *, pure: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a server process; it is killed at the end of the block, as its store is deleted.

    Args:
        command: the command.
        home: the working directory.
        log: the file for its output.
        pure: whether PocketMQ takes its Python path.
    """
    path = environments.PURE if pure else {}
    with log.open("ab") as output:
        running = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=home,
            env={**environments.plain(), **path, "ROCKETMQ_HOME": str(home)},
        )
    try:
        yield running
    finally:
        running.kill()
        running.wait()


def wait_until_registered(
    nameserver: str, running: subprocess.Popen[bytes], log: Path, *, brokers: int
) -> None:
    """Wait until this many brokers are registered at the name server.

    Raises:
        BenchmarkError: the process has ended, or it took too long; with the end of the log.
    """
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline and running.poll() is None:
        try:
            code = RequestCode.GET_BROKER_CLUSTER_INFO
            addresses = ask(nameserver, code, ClusterInfo, timeout=1.0).broker_addr_table
        except NoAnswer:
            addresses = {}
        if len(addresses) >= brokers:
            return
        time.sleep(0.02)
    tail = " ".join(log.read_text(errors="replace").splitlines()[-5:])
    raise BenchmarkError(f"the broker did not get ready: {tail}")


@contextmanager
def ours(
    home: Path,
    *,
    sync_flush: bool,
    python: Path = HERE,
    pure: bool = False,
    tls: certificates.CertificateFiles | None = None,
    options: Sequence[str] = (),
    brokers: int = 1,
) -> Iterator[Target]:
    """Run PocketMQ's name server and broker.

    Args:
        home: the directory for store and logs.
        sync_flush: whether the broker runs with SYNC_FLUSH.
        python: the interpreter of the environment in which PocketMQ is installed.
        pure: whether PocketMQ takes its Python path.
        tls: the certificate with which both accept TLS too.
        options: additional arguments for the broker.
        brokers: how many brokers register; their ports are ten apart.
    """
    home.mkdir(exist_ok=True)
    port, broker_port = free_port(), free_ports(10 * brokers - 7)
    nameserver = f"127.0.0.1:{port}"
    pocketmq = [str(python), "-P", "-m", "pocketmq"]
    flush = ["--set=flushDiskType=SYNC_FLUSH"] if sync_flush else []
    secure = [f"--set={key}={value}" for key, value in (tls.settings if tls else {}).items()]
    names = [
        *(*pocketmq, "nameserver", f"--port={port}", f"--set=kvConfigPath={home}/kv.json"),
        *secure,
    ]
    broker = [
        *(*pocketmq, "broker", f"--nameserver={nameserver}", f"--port={broker_port}"),
        *(f"--store={home / 'store'}", *flush, *secure, *options),
    ]
    yield from _serve(names, broker, home, nameserver, broker_port, pure=pure, brokers=brokers)


@contextmanager
def theirs(
    home: Path,
    *,
    sync_flush: bool,
    tls: certificates.CertificateFiles | None = None,
    accounts: str = "",
    settings: Sequence[str] = (),
) -> Iterator[Target]:
    """Run Apache's name server and broker; see ``ours``.

    Args:
        home: the directory for configuration, store and logs.
        sync_flush: whether the broker runs with SYNC_FLUSH.
        tls: the certificate with which both accept TLS too.
        accounts: the text of ``plain_acl.yml`` for a broker that checks accounts.
        settings: further lines of the broker's configuration.
    """
    home.mkdir(exist_ok=True)
    port, broker_port = free_port(), free_ports(3)
    nameserver = f"127.0.0.1:{port}"
    settings = [f"namesrvAddr={nameserver}", *settings]
    if sync_flush:
        settings.append("flushDiskType=SYNC_FLUSH")
    if accounts:
        settings.append("aclEnable=true")
        (home / "conf").mkdir()
        (home / "conf" / "plain_acl.yml").write_text(accounts)
    names = apache.nameserver_command(VERSION, home, port)
    broker = apache.broker_command(VERSION, home, broker_port, settings=settings, heap=HEAP)
    if tls is not None:
        file = home / "tls.properties"
        lines = {"tls.test.mode.enable": "false", **tls.settings}.items()
        file.write_text("".join(f"{key}={value}\n" for key, value in lines))
        names, broker = (
            [command[0], f"-Dtls.config.file={file}", *command[1:]] for command in (names, broker)
        )
    yield from _serve(names, broker, home, nameserver, broker_port)


def _serve(
    names: list[str],
    broker: list[str],
    home: Path,
    nameserver: str,
    broker_port: int,
    *,
    pure: bool = False,
    brokers: int = 1,
) -> Iterator[Target]:
    log = home / "broker.log"
    with (
        process(names, home, home / "nameserver.log", pure=pure),
        process(broker, home, log, pure=pure) as running,
    ):
        wait_until_registered(nameserver, running, log, brokers=brokers)
        yield Target(nameserver, f"127.0.0.1:{broker_port}", running.pid)


@contextmanager
def directory(where: Path | None) -> Iterator[Path]:
    """Create a directory for stores, deleted at the end of the block."""
    made = Path(tempfile.mkdtemp(prefix="pocketmq-bench-", dir=where))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def pair(
    where: Path | None,
    *,
    sync_flush: bool = False,
    tls: bool = False,
    python: Path = HERE,
    pure: bool = False,
) -> Iterator[Pair]:
    """Run both brokers and wait until they are ready.

    Args:
        where: the directory for the stores; None for the system's temporary directory.
        sync_flush: whether the brokers run with SYNC_FLUSH.
        tls: whether all servers accept TLS too, with one certificate.
        python: the interpreter of the environment in which PocketMQ is installed.
        pure: whether to run a third broker, PocketMQ on its Python path.
    """
    with ExitStack() as stack:
        home = stack.enter_context(directory(where))
        made = certificates.make(home / "tls") if tls else None
        mine = partial(ours, sync_flush=sync_flush, python=python, tls=made)
        yield Pair(
            stack.enter_context(mine(home / "pocketmq")),
            stack.enter_context(theirs(home / "apache", sync_flush=sync_flush, tls=made)),
            stack.enter_context(mine(home / "pure", pure=True)) if pure else None,
        )
