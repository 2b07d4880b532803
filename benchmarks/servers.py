"""Both brokers on loopback, each with a name server of its own, default settings and a fresh store.

Apache's has a heap of 1 GiB. Both run at the same time; the one whose turn it isn't idles.
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
from pathlib import Path
from typing import Final

from benchmarks import environments
from benchmarks.tools import VERSION, BenchmarkError, Target
from pocketmq.probe import NoAnswer, ask
from remoting.protocol.bodies.route import ClusterInfo
from remoting.protocol.codes import RequestCode
from tests.interop import apache
from tests.ports import free_port, free_ports

READY_WITHIN: Final = 60.0
HEAP: Final = "1g"
HERE: Final = Path(sys.executable)


@dataclass(frozen=True, slots=True)
class Pair:
    """Both brokers; ``pure`` is ours on its Python path, if that is measured too."""

    ours: Target
    theirs: Target
    pure: Target | None = None


@contextmanager
def process(
    command: Sequence[str], home: Path, log: Path, *, pure: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process; killed at the end of the block, because its store goes too.

    Args:
        pure: ours takes its Python path.
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
    nameserver: str, running: subprocess.Popen[bytes], log: Path, *, brokers: int = 1
) -> None:
    """Wait until the name server knows so many brokers.

    Raises:
        BenchmarkError: the process ended, or it took too long; with the end of the log.
    """
    deadline = time.monotonic() + READY_WITHIN
    while time.monotonic() < deadline and running.poll() is None:
        try:
            code = RequestCode.GET_BROKER_CLUSTER_INFO
            known = ask(nameserver, code, ClusterInfo, timeout=1.0).broker_addr_table
        except NoAnswer:
            known = {}
        if len(known) >= brokers:
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
    options: Sequence[str] = (),
) -> Iterator[Target]:
    """PocketMQ's name server and broker.

    Args:
        python: the interpreter of the environment they run in.
        pure: they take their Python path.
        options: more words for the broker's command line.
    """
    home.mkdir(exist_ok=True)
    port, broker_port = free_port(), free_ports(3)
    nameserver = f"127.0.0.1:{port}"
    pocketmq = [str(python), "-P", "-m", "pocketmq"]
    flush = ["--set=flushDiskType=SYNC_FLUSH"] if sync_flush else []
    names = [*pocketmq, "nameserver", f"--port={port}", f"--set=kvConfigPath={home}/kv.json"]
    broker = [
        *(*pocketmq, "broker", f"--nameserver={nameserver}", f"--port={broker_port}"),
        *(f"--store={home / 'store'}", *flush, *options),
    ]
    yield from _serve(names, broker, home, nameserver, broker_port, pure=pure)


@contextmanager
def theirs(home: Path, *, sync_flush: bool) -> Iterator[Target]:
    """Apache's."""
    home.mkdir(exist_ok=True)
    port, broker_port = free_port(), free_ports(3)
    nameserver = f"127.0.0.1:{port}"
    settings = [f"namesrvAddr={nameserver}"]
    if sync_flush:
        settings.append("flushDiskType=SYNC_FLUSH")
    names = apache.nameserver_command(VERSION, home, port)
    broker = apache.broker_command(VERSION, home, broker_port, settings=settings, heap=HEAP)
    yield from _serve(names, broker, home, nameserver, broker_port)


def _serve(
    names: list[str],
    broker: list[str],
    home: Path,
    nameserver: str,
    broker_port: int,
    *,
    pure: bool = False,
) -> Iterator[Target]:
    log = home / "broker.log"
    with (
        process(names, home, home / "nameserver.log", pure=pure),
        process(broker, home, log, pure=pure) as running,
    ):
        wait_until_registered(nameserver, running, log)
        yield Target(nameserver, f"127.0.0.1:{broker_port}", running.pid)


@contextmanager
def directory(where: Path | None) -> Iterator[Path]:
    """A directory for stores that is deleted afterwards."""
    made = Path(tempfile.mkdtemp(prefix="pocketmq-bench-", dir=where))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


@contextmanager
def pair(
    where: Path | None, *, sync_flush: bool = False, python: Path = HERE, pure: bool = False
) -> Iterator[Pair]:
    """Both, ready to serve.

    Args:
        where: the directory in which their stores lie; None: the system's for temporary files.
        python: the interpreter of the environment that ours runs in.
        pure: a third one beside them is ours on its Python path.
    """
    with ExitStack() as stack:
        home = stack.enter_context(directory(where))
        yield Pair(
            stack.enter_context(ours(home / "pocketmq", sync_flush=sync_flush, python=python)),
            stack.enter_context(theirs(home / "apache", sync_flush=sync_flush)),
            stack.enter_context(
                ours(home / "pure", sync_flush=sync_flush, python=python, pure=True)
            )
            if pure
            else None,
        )
