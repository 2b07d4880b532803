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
import os
import shutil
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from pocketmq import testing

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


def _needs(*programs: str) -> None:
    for program in programs:
        if shutil.which(program) is None:
            msg = f"{program} is not on the PATH"
            raise Unavailable(msg)


def _fetch(command: Sequence[str], environment: dict[str, str] | None = None) -> None:
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
        msg = f"{command[0]} failed: {lines[-1] if lines else done.returncode}"
        raise Unavailable(msg)


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listening.getsockname()[1]) for listening in sockets]
    for listening in sockets:
        listening.close()
    return ports


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


def _kafka_class_path() -> str:
    library = TOOLS / f"kafka-{KAFKA_VERSION}" / "lib"
    ready = library / ".ready"
    if not ready.exists():
        _needs("mvn")
        _fetch(
            [
                *("mvn", "--batch-mode", "--quiet", "-f", str(HERE / "pom.xml")),
                f"-Dkafka.version={KAFKA_VERSION}",
                f"-DoutputDirectory={library}",
                "dependency:copy-dependencies",
            ]
        )
        ready.touch()
    return f"{library}/*"


@contextmanager
def kafka(home: Path) -> Iterator[str]:
    """Run one Kafka node, broker and controller in one process; yield its address.

    Raises:
        Unavailable: Java or Maven is missing, or the server did not start.
    """
    _needs("java")
    java = ["java", *_KAFKA_JAVA, "-cp", _kafka_class_path()]
    port, controller = _free_ports(2)
    properties = home / "server.properties"
    properties.write_text(
        _KAFKA_PROPERTIES.format(port=port, controller=controller, directory=home / "log")
    )
    cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
    _fetch([*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)])
    with _running([*java, "kafka.Kafka", str(properties)], port, home / "kafka.out"):
        yield f"127.0.0.1:{port}"


def _nats_program() -> Path:
    folder = TOOLS / f"nats-server-{NATS_VERSION}"
    program = folder / "nats-server"
    if not program.exists():
        _needs("go")
        module = f"github.com/nats-io/nats-server/v2@v{NATS_VERSION}"
        _fetch(["go", "install", module], {"GOBIN": str(folder)})
    return program


@contextmanager
def nats(home: Path) -> Iterator[str]:
    """Run one nats-server with JetStream; yield its address.

    Raises:
        Unavailable: Go is missing, or the server did not start.
    """
    program = _nats_program()
    (port,) = _free_ports(1)
    command = [str(program), "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(home / "store")]
    with _running(command, port, home / "nats.out"):
        yield f"nats://127.0.0.1:{port}"


@contextmanager
def pocketmq(home: Path) -> Iterator[str]:
    """Run a name server and a broker with default settings; yield the name server's address."""
    settings = {"mappedFileSizeCommitLog": RELEASE_FILE_BYTES}
    with testing.broker(store=home / "store", settings=settings) as server:
        yield server.nameserver
