"""The real Apache RocketMQ on loopback: its jars from Maven, its servers, its Java client."""

from __future__ import annotations

import asyncio
import fcntl
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import client
from remoting.blocking import BlockingConnection
from remoting.protocol import bodies
from remoting.protocol.bodies.route import ClusterInfo
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.security.credentials import Signer
from remoting.security.tls import Tls
from tests.support.ports import free_port, free_ports, wait_until_listening

HERE = Path(__file__).parent
TOOLS = HERE.parent.parent / ".tools"
VERSIONS = ("4.9.7", "5.3.3")
MAVEN_TIMEOUT = 600.0
JAVA_TIMEOUT = 180.0
ANSWER_TIMEOUT = 30.0
"""Seconds to wait for a starting server."""

_OPEN_JAVA = (
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
)
"""Options that RocketMQ needs with Java versions above 8."""

_SOON_READY = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""Options for programs that run for seconds: no thorough compilation, one thread for the garbage.

Not in the commands that the benchmarks start as well.
"""

_RARELY_FLUSHED = "timerFlushIntervalMs=60000"
"""5.x compares the 38 MB of its timer wheel byte by byte at each flush: half a processor."""

_QUIET = '<configuration><root level="ERROR"/></configuration>'
_LOG_FILES = (
    "logback_namesrv.xml",
    "logback_broker.xml",
    "rmq.namesrv.logback.xml",
    "rmq.broker.logback.xml",
    "rmq.client.logback.xml",
    "logback_tools.xml",
    "rmq.tools.logback.xml",
)


@contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Let only one test process at a time prepare a tool."""
    TOOLS.mkdir(exist_ok=True)
    with (TOOLS / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def jars(version: str) -> str:
    """Return the class path of a release, fetched once."""
    library = TOOLS / f"rocketmq-{version}" / "lib"
    with one_at_a_time(f"rocketmq-{version}"):
        if not (library / f"rocketmq-broker-{version}.jar").exists():
            subprocess.run(
                [
                    *("mvn", "--batch-mode", "--quiet", "-f", str(HERE / "java" / "pom.xml")),
                    f"-Drocketmq.version={version}",
                    f"-DoutputDirectory={library}",
                    "dependency:copy-dependencies",
                ],
                check=True,
                timeout=MAVEN_TIMEOUT,
            )
    return f"{library}/*"


def compiled(version: str) -> str:
    """Return the class path with our Java programs, compiled for the release."""
    classes = TOOLS / f"classes-{version}"
    libraries = jars(version)
    classes.mkdir(parents=True, exist_ok=True)
    older = []
    with one_at_a_time(classes.name):
        for source in (HERE / "java").glob("*.java"):
            target = classes / f"{source.stem}.class"
            if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
                older.append(str(source))
        if older:
            command = ["javac", "-nowarn", "-cp", libraries, "-d", str(classes), *older]
            subprocess.run(command, check=True)
    return f"{classes}:{libraries}"


@dataclass(frozen=True)
class JavaClient:
    """The unmodified Java client of a release.

    Attributes:
        version: ``4.9.7`` or ``5.3.3``.
        serialize: ``JSON`` or ``ROCKETMQ``.
        home: Where it may write its logs.
        options: Further options of the JVM.
    """

    version: str
    serialize: str
    home: Path
    options: tuple[str, ...] = ()

    def command(self, *arguments: str, program: str = "Interop") -> list[str]:
        """Return the command line of ``Interop.java`` or another of our Java programs."""
        return [
            *("java", *_SOON_READY),
            "-Xmx256m",
            *self.options,
            f"-Drocketmq.serialize.type={self.serialize}",
            f"-Drocketmq.client.logRoot={self.home}",
            f"-Duser.home={self.home}",
            "-cp",
            compiled(self.version),
            program,
            *arguments,
        ]

    def run(self, *arguments: str, program: str = "Interop") -> list[list[str]]:
        """Run to the end; return the JSON that it printed among its log lines.

        Raises:
            AssertionError: It failed; the text is what it said.
        """
        done = subprocess.run(
            self.command(*arguments, program=program),
            capture_output=True,
            text=True,
            timeout=JAVA_TIMEOUT,
            check=False,
        )
        lines = done.stdout.splitlines()
        facts = [line.split("\t") for line in lines if "\t" in line or line == "done"]
        assert done.returncode == 0, done.stdout + done.stderr
        assert ["done"] in facts, done.stdout + done.stderr
        return [fact for fact in facts if fact != ["done"]]

    @contextmanager
    def running(self, *arguments: str, program: str = "Interop") -> Iterator[subprocess.Popen[str]]:
        """Run during the block; killed at its end."""
        process = subprocess.Popen(
            self.command(*arguments, program=program),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@dataclass(frozen=True)
class Apache:
    """A running Apache name server and broker.

    Attributes:
        process: the broker's; to be stopped cleanly, or in its tracks.
    """

    nameserver: str
    broker: str
    process: subprocess.Popen[bytes]


def _command(version: str, home: Path, main_class: str, config: Path, heap: str) -> list[str]:
    return [
        "java",
        f"-Xms{heap}",
        f"-Xmx{heap}",
        "-XX:MaxDirectMemorySize=1g",
        f"-Drocketmq.home.dir={home}",
        f"-Duser.home={home}",
        f"-Drocketmq.client.logRoot={home}",
        *_OPEN_JAVA,
        *("-cp", jars(version), main_class, "-c", str(config)),
    ]


def start(command: Sequence[str], home: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a server, given its command line, for a test.

    Without TLS, unless the command asks for it: for a certificate of its own, which nobody wants, a
    server of Apache's takes seconds.
    """
    java, *options = command
    with log.open("wb") as output:
        return subprocess.Popen(
            [java, *_SOON_READY, "-Dtls.server.mode=disabled", *options],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "ROCKETMQ_HOME": str(home)},
        )


def nameserver_command(version: str, home: Path, port: int) -> list[str]:
    """Return a name server's command line, after writing its configuration to ``home``."""
    config = _conf(home) / "namesrv.conf"
    config.write_text(f"listenPort={port}\nkvConfigPath={home}/kv.json\nrocketmqHome={home}\n")
    return _command(version, home, "org.apache.rocketmq.namesrv.NamesrvStartup", config, "256m")


def controller_command(
    version: str, home: Path, port: int, *, group: Sequence[str] = (), own: int = 0
) -> list[str]:
    """Return a controller's command line, after configuring it.

    Args:
        version: of RocketMQ.
        home: its directory.
        port: where it listens, if it is alone, and then looks for dead brokers each second.
        group: where all controllers listen; none: it is alone.
        own: which of them it is.
    """
    config = _conf(home) / "controller.conf"
    peers = enumerate(group or [f"127.0.0.1:{port}"])
    config.write_text(
        f"rocketmqHome={home}\ncontrollerDLegerGroup=group\ncontrollerDLegerSelfId=n{own}\n"
        f"controllerDLegerPeers={';'.join(f'n{each}-{address}' for each, address in peers)}\n"
        f"controllerStorePath={home}/store\nmappedFileSize=1048576\n"
        + ("" if group else "scanNotActiveBrokerInterval=1000\n")
    )
    startup = "org.apache.rocketmq.controller.ControllerStartup"
    return _command(version, home, startup, config, "128m")


def broker_command(
    version: str, home: Path, port: int, *, settings: Sequence[str] = (), heap: str = "512m"
) -> list[str]:
    """Return a broker's command line, after writing its configuration to ``home``."""
    config = _conf(home) / "broker.conf"
    lines = [
        "brokerClusterName=DefaultCluster",
        "brokerName=broker-a",
        "brokerId=0",
        "brokerIP1=127.0.0.1",
        f"rocketmqHome={home}",
        f"listenPort={port}",
        f"storePathRootDir={home}/store",
        f"storePathCommitLog={home}/store/commitlog",
        # Of a test's messages none is deleted because this machine's disk is nearly full.
        "cleanFileForciblyEnable=false",
        *settings,
    ]
    config.write_text("\n".join(lines) + "\n")
    return _command(version, home, "org.apache.rocketmq.broker.BrokerStartup", config, heap)


def _conf(home: Path) -> Path:
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name in _LOG_FILES:
        (conf / name).write_text(_QUIET)
    return conf


@contextmanager
def apache(
    version: str,
    home: Path,
    *,
    settings: Sequence[str] = (),
    properties: Sequence[str] = (),
    signer: Signer | None = None,
    tls: Tls | None = None,
) -> Iterator[Apache]:
    """Run a real name server and broker on free ports.

    Args:
        version: ``4.9.7`` or ``5.3.3``.
        home: An empty directory for configuration, store and logs.
        settings: Lines for its ``broker.conf``.
        properties: Options of both JVMs.
        signer: Signs what is asked until it is registered.
        tls: How to connect until it is registered.
    """
    nameserver_port, broker_port = free_port(), free_ports(10)
    nameserver = f"127.0.0.1:{nameserver_port}"
    lines = [
        f"namesrvAddr={nameserver}",
        "mappedFileSizeCommitLog=67108864",
        _RARELY_FLUSHED,
        *settings,
    ]
    processes = []
    try:
        for command, log in (
            (nameserver_command(version, home, nameserver_port), "nameserver.log"),
            (broker_command(version, home, broker_port, settings=lines), "broker.log"),
        ):
            processes.append(start([command[0], *properties, *command[1:]], home, home / log))
        wait_until_listening(nameserver_port)
        wait_until_listening(broker_port)
        _wait_until_registered(nameserver, broker_port, signer=signer, tls=tls)
        yield Apache(nameserver, f"127.0.0.1:{broker_port}", processes[-1])
    finally:
        # Their clean stop takes ten seconds, and nothing here depends on it.
        for process in processes:
            process.kill()
            process.wait()


@contextmanager
def second_broker(version: str, home: Path, nameserver: str, name: str) -> Iterator[str]:
    """Run another broker in a running cluster; yield its address.

    Args:
        version: as of the first.
        home: An empty directory, or one that is to be made.
        nameserver: of the cluster.
        name: Its name.
    """
    home.mkdir(exist_ok=True)
    port = free_ports(10)
    lines = [
        f"namesrvAddr={nameserver}",
        "mappedFileSizeCommitLog=67108864",
        _RARELY_FLUSHED,
        f"brokerName={name}",
    ]
    command = broker_command(version, home, port, settings=lines)
    process = start(command, home, home / "broker.log")
    try:
        wait_until_listening(port)
        _wait_until_registered(nameserver, port, brokers=2)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _wait_until_registered(
    nameserver: str,
    broker_port: int,
    brokers: int = 1,
    signer: Signer | None = None,
    tls: Tls | None = None,
) -> None:
    """Wait until they are registered; 5.x registers after it reports that it has booted.

    The first time 5.x often does so before it has looked which name servers there are, and then
    tries again after ten seconds; a new permission makes it register at once.
    """
    deadline = time.monotonic() + JAVA_TIMEOUT
    ask = Command.request(RequestCode.GET_BROKER_CLUSTER_INFO)
    nudge = Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=6")
    with (
        BlockingConnection(nameserver, timeout=ANSWER_TIMEOUT, tls=tls) as connection,
        BlockingConnection(
            f"127.0.0.1:{broker_port}", timeout=ANSWER_TIMEOUT, signer=signer, tls=tls
        ) as broker,
    ):
        while time.monotonic() < deadline:
            answer = connection.request(ask, timeout=ANSWER_TIMEOUT)
            known = bodies.decode(ClusterInfo, bytes(answer.body)).broker_addr_table
            if len(known) >= brokers:
                return
            time.sleep(0.2)
            broker.request(nudge, timeout=ANSWER_TIMEOUT)
    msg = f"the broker is not registered after {JAVA_TIMEOUT:.0f} s"
    raise AssertionError(msg)


async def shown(nameserver: str, topic: str, count: int) -> None:
    """Wait until a topic's queues show a number of acknowledged messages."""
    async with client.Admin(nameserver) as admin, asyncio.timeout(30):
        while sum(at.max_offset for at in (await admin.topic_stats(topic)).values()) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def mqadmin_command(version: str, home: Path) -> list[str]:
    """Return the command line of ``Mqadmin.java``, after writing to ``home``."""
    _conf(home)
    return [
        *("java", *_SOON_READY),
        "-Xmx256m",
        f"-Drocketmq.home.dir={home}",
        f"-Duser.home={home}",
        # Some commands leave files there.
        f"-Djava.io.tmpdir={home}",
        f"-Drocketmq.client.logRoot={home}",
        *_OPEN_JAVA,
        *("-cp", compiled(version), "Mqadmin"),
    ]


def mqadmin(version: str, home: Path, nameserver: str, *arguments: str) -> str:
    """Run Apache's administration tool; return its output.

    Through ``Mqadmin.java``, which ends at once: alone the tool waits seconds for its threads.

    Args:
        home: where it may write; any server's, or an empty directory.
        arguments: the command and its options, without ``-n``.
    """
    words = [f"{JAVA_TIMEOUT * 1000:.0f}", *arguments, "-n", nameserver]
    done = subprocess.run(
        mqadmin_command(version, home),
        input="\t".join(words),
        capture_output=True,
        text=True,
        timeout=JAVA_TIMEOUT,
        check=False,
        cwd=home,  # some commands leave files where they are called
        env={**os.environ, "ROCKETMQ_HOME": str(home)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
