"""The servers of the comparison, each in a separate process on loopback.

Kafka is installed from Maven Central (``pom.xml``), nats-server from the Go module proxy, both into
``.tools``. Each stores its messages in a directory that is deleted at the end. Acknowledgements
mean the same in all of them: the message is in the log, which the operating system writes to the
disk asynchronously (Kafka with ``acks=1``, JetStream with file storage, RocketMQ with
``ASYNC_FLUSH``).

Settings not given here are the servers' defaults; the Java options are those of Kafka's start
script.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pocketmq import testing
from tests.support.ports import free_port

HERE = Path(__file__).parent
TOOLS = HERE.parent.parent / ".tools"

KAFKA_VERSION = "3.9.2"
NATS_VERSION = "2.14.9"
START_TIMEOUT = 60.0
FETCH_TIMEOUT = 900.0
RELEASE_FILE_BYTES = str(1024 * 1024 * 1024)
"""The default file size of the commit log, which ``testing.broker`` reduces otherwise."""

_KAFKA_JAVA = (
    *("-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
    *("-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"),
)
_KAFKA_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={directory}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
"""


class Unavailable(Exception):
    """A server can't be installed or started on this machine; the text is the reason."""


def needs(*programs: str) -> None:
    """Raise Unavailable if a program is not on the PATH."""
    for program in programs:
        if shutil.which(program) is None:
            msg = f"{program} is not on the PATH"
            raise Unavailable(msg)


def fetch(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
    """Run a command that fetches or prepares something.

    Raises:
        Unavailable: it failed; with the end of its output.
    """
    done = subprocess.run(
        command,
        env={**os.environ, **(environment or {})},
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT,
        check=False,
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        msg = f"{Path(command[0]).name} failed: {lines[-1] if lines else done.returncode}"
        raise Unavailable(msg)


def fetch_once(target: Path, source: Path, *commands: Sequence[str]) -> None:
    """Run commands that fill a directory, unless they have for the same source file and Python."""
    stamp = hashlib.sha256(sys.version.encode() + source.read_bytes()).hexdigest()
    ready = target / ".ready"
    if not ready.exists() or ready.read_text() != stamp:
        shutil.rmtree(target, ignore_errors=True)
        for command in commands:
            fetch(command)
        ready.write_text(stamp)


@contextmanager
def _running(command: Sequence[str], port: int, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + START_TIMEOUT
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                msg = f"{command[0]} does not listen: {log.read_text(errors='replace')[-2000:]}"
                raise Unavailable(msg)
            time.sleep(0.1)
        yield
    finally:
        # No need for a clean stop: the data is deleted.
        process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def maven(pom: Path, target: Path, **versions: str) -> list[str]:
    """Return the command that copies the dependencies of a project to a directory."""
    return [
        *("mvn", "--batch-mode", "--quiet", "-f", str(pom), f"-DoutputDirectory={target}"),
        *(f"-D{name}.version={version}" for name, version in versions.items()),
        "dependency:copy-dependencies",
    ]


@contextmanager
def kafka(home: Path) -> Iterator[str]:
    """Run one Kafka node, broker and controller in one process; yield its address.

    Raises:
        Unavailable: Java or Maven is missing, or the server did not start.
    """
    needs("java", "mvn")
    library, pom = TOOLS / f"kafka-{KAFKA_VERSION}" / "lib", HERE / "pom.xml"
    fetch_once(library, pom, maven(pom, library, kafka=KAFKA_VERSION))
    java = ["java", *_KAFKA_JAVA, "-cp", f"{library}/*"]
    port, controller = free_port(), free_port()
    properties = home / "server.properties"
    properties.write_text(
        _KAFKA_PROPERTIES.format(port=port, controller=controller, directory=home / "log")
    )
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    fetch([*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)])
    with _running([*java, "kafka.Kafka", str(properties)], port, home / "kafka.out"):
        yield f"127.0.0.1:{port}"


def _nats_program() -> Path:
    folder = TOOLS / f"nats-server-{NATS_VERSION}"
    program = folder / "nats-server"
    if not program.exists():
        needs("go")
        module = f"github.com/nats-io/nats-server/v2@v{NATS_VERSION}"
        fetch(["go", "install", module], {"GOBIN": str(folder)})
    return program


@contextmanager
def nats(home: Path) -> Iterator[str]:
    """Run one nats-server with JetStream; yield its address.

    Raises:
        Unavailable: Go is missing, or the server did not start.
    """
    program = _nats_program()
    port = free_port()
    command = [str(program), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(home / "store")]
    with _running(command, port, home / "nats.out"):
        yield f"nats://127.0.0.1:{port}"


@contextmanager
def pocketmq(home: Path) -> Iterator[str]:
    """Run a name server and a broker with default settings; yield the name server's address."""
    settings = {"mappedFileSizeCommitLog": RELEASE_FILE_BYTES}
    with testing.broker(store=home / "store", settings=settings) as server:
        yield server.nameserver
