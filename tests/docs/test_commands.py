"""Each document runs as one script, in its order, whatever is in the current directory."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

import client
from client import blocking
from pocketmq import testing
from tests.support.ports import free_ports
from tests.support.tour import (
    DOCUMENTS,
    HOME,
    README,
    empty,
    environment,
    holds_test,
    run_python,
    run_tests,
)

ELSEWHERE = {
    "docker": "tests/integration/deploy reads the files: there is no engine to rely on",
    "helm": "tests/integration/deploy runs what the chart renders: there is no Kubernetes",
    "kubectl": "the same",
    "pip": "tests/packaging installs the clone",
}
"""Programs whose commands are not run."""

DOCTOR_FOUND_SOMETHING = 1


ON_A_CLUSTER_IN_USE = ("consumer-groups.md", "deploy.md", "operating", "performance.md")
"""Documents that assume topics, groups and dead letters; the others begin with an empty broker."""

SITE = HOME / "mkdocs.yml"

RUN_HERE = [
    *(
        one
        for one in DOCUMENTS
        if one.parent in {HOME, HOME / "docs"} and one.name != "tutorial.md"
    ),
    *(HOME / "docs" / folder for folder in ("operating", "security")),
]
"""The pages of these folders share a broker; others have tests of their own."""


def scripts(document: Path) -> list[list[str] | str]:
    """Return a document's blocks in their order: lines of commands, or the text of a program.

    To docs/deploy.md belong those of the systemd units in deploy/.
    """
    pages = [document]
    if document.is_dir():
        order = re.findall(rf"({document.name}/.*\.md)$", SITE.read_text(), re.MULTILINE)
        pages = [document.parent / page for page in order]
    whole = "\n".join(page.read_text() for page in pages)
    shown: list[list[str] | str] = []
    for language, text in re.findall(
        r"^```(console|python)\n(.*?)^```", whole, re.MULTILINE | re.DOTALL
    ):
        lines = text.replace("\\\n", " ").splitlines()
        typed = [line[2:] for line in lines if line.startswith("$ ")]
        shown.append(typed if language == "console" else text)
    for unit in sorted((HOME / "deploy").glob("*.service")) if document.name == "deploy.md" else ():
        started = r"^ExecStart=/opt/pocketmq/bin/(.*)$"
        shown.append(re.findall(started, unit.read_text(), re.MULTILINE))
    return shown


@dataclass
class World:
    """A broker in the state that the documents assume.

    Attributes:
        backup: a copy of its store.
        message: the broker's id of a message.
        prefix: shell text in front of each command.
    """

    server: testing.StandaloneServer
    home: Path
    backup: Path
    message: str = ""
    prefix: str = ""

    def here(self, line: str) -> str:
        """Translate a line of a document to this machine."""
        line = re.sub(r"(10\.0\.0\.\d|127\.0\.0\.1):987\d", self.server.nameserver, line)
        line = re.sub(r"10\.0\.0\.\d", "127.0.0.1", line)
        line = line.replace("127.0.0.1:10911", self.server.broker)
        line = line.replace("haListenPort=10912", "haListenPort=0")
        line = line.replace("7F00000100002A9F0000000000001A2B", self.message)
        store, backup = self.server.store, self.backup
        if re.match(r"pocketmq (standalone|nameserver|broker) ", line):
            store = empty(self.home)
        elif "--repair" in line:  # of a stopped store
            store = self.backup
        elif "store copy" in line:
            backup = empty(self.home) / "monday"
        return line.replace("/backup/monday", str(backup)).replace("/var/lib/pocketmq", str(store))

    @contextmanager
    def typed(self, line: str, cwd: Path) -> Iterator[subprocess.Popen[str]]:
        """Run a line in a new shell."""
        with subprocess.Popen(
            ["bash", "-uo", "pipefail", "-c", f"{self.prefix}{line}"],
            cwd=cwd,
            env=environment(self.server.nameserver),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)

    def run(self, line: str, cwd: Path) -> None:
        """Run a line to its end."""
        with self.typed(line, cwd) as process:
            told, why = process.communicate(timeout=60)
        allowed = {0, DOCTOR_FOUND_SOMETHING} if "pocketmq doctor" in line else {0}
        assert process.returncode in allowed, (line, told, why)
        assert "Traceback" not in why, (line, why)

    def run_until_it_prints(self, line: str, cwd: Path) -> None:
        """Run a line that doesn't end, and stop it after its first output."""
        with self.typed(line, cwd) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            os.killpg(process.pid, signal.SIGTERM)
            _, why = process.communicate(timeout=60)
        assert first, (line, why)
        assert "Traceback" not in why, (line, why)


@contextmanager
def world(home: Path) -> Iterator[World]:
    """A broker with a topic, and with a group that is stuck in one queue and has dead letters."""
    settings = {"brokerName": "broker-a"}
    with testing.broker(store=home / "store", settings=settings) as server:
        made = World(server, home, home / "backup")
        with blocking.Admin(server.nameserver) as admin:
            admin.create_topic("orders", queues=4)
            admin.create_group("billing")
        queues = [client.MessageQueue("orders", "broker-a", number) for number in range(4)]
        with blocking.Producer(server.nameserver, group="shop") as producer:
            for queue in queues:
                made.message = producer.send(
                    "orders", b"dead", queue=queue, tag="paid", keys=["o-4711"]
                ).offset_id
            producer.send("orders", b"stuck", queue=queues[3])
        made.run(f"pocketmq store copy {server.store} {made.backup}", home)
        with (
            blocking.Admin(server.nameserver) as admin,
            blocking.PushConsumer(
                server.nameserver,
                group="billing",
                subscribe={"orders": "*"},
                handler=refuse,
                order=client.Orderly(),
                start_from=client.FIRST,
            ),
        ):
            while len(list(admin.dead_letters("billing"))) < len(queues) or not any(
                state.queue == queues[3] and state.committed
                for state in admin.describe_group("billing").queues
            ):
                time.sleep(0.05)
            yield made


def refuse(message: client.ReceivedMessage[bytes]) -> None:
    """Dead-letter a message, or block its queue."""
    raise ValueError("try again") if message.body == b"stuck" else client.DeadLetter("no account")


@contextmanager
def new_world(home: Path) -> Iterator[World]:
    """A newly started broker with an empty store, as in the README."""
    with testing.broker(store=home / "store") as server:
        yield World(server, home, home / "backup")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "document", [one for one in RUN_HERE if scripts(one)], ids=lambda document: document.name
)
def test_a_document_runs_in_its_order_as_one_script(document: Path, tmp_path: Path) -> None:
    with (world if document.name in ON_A_CLUSTER_IN_USE else new_world)(tmp_path) as made:
        # Run so, unlike as a script, Python looks for modules in the current directory first.
        made.prefix = f'pocketmq() {{ {shlex.quote(sys.executable)} -m pocketmq "$@"; }}; '
        run_all(made, document)


def test_the_readme_runs_in_its_order_with_the_installed_script(tmp_path: Path) -> None:
    with new_world(tmp_path) as made:
        run_all(made, README)


def run_all(made: World, document: Path) -> None:
    """Run a document's blocks, those of commands in the directory of another application."""
    tests = [each for each in scripts(document) if isinstance(each, str) and holds_test(each)]
    if tests:
        # Together: they need nothing of other blocks, and pytest takes a second to start.
        run_tests(tests, made.server.nameserver, made.home)
    for script in scripts(document):
        if isinstance(script, str):
            if script in tests:
                continue
            run_python(script, made.server.nameserver, made.home)
            continue
        cwd = empty(made.home)
        for name in ("client", "broker", "remoting"):
            (cwd / f"{name}.py").write_text(f"raise RuntimeError('the application: {name}')\n")
        for line in script:
            type_(made, made.here(line), cwd)


def type_(made: World, line: str, cwd: Path) -> None:
    """Run one line of a document."""
    program, *words = shlex.split(line, comments=True)
    if program in ELSEWHERE:
        return
    if program in {"make", "python"}:
        check_in_clone(line)
    elif program == "pocketmq" and words[0] == "broker" and words[1][0] != "-":
        made.run(line, cwd)
    elif program == "pocketmq" and words[0] in {"standalone", "nameserver", "broker", "console"}:
        made.run_until_it_prints(f"{line} {small(words)}", cwd)
    elif "--follow" in words:
        made.run_until_it_prints(line, cwd)
    elif words[:1] == ["bench"]:
        made.run(line if words[1] == "consume" else f"{line} --duration 1", cwd)
    else:
        made.run(line, cwd)


def small(words: list[str]) -> str:
    """Return options that override a server's, so that it can run beside others."""
    if words[0] in {"nameserver", "console"}:
        return "--port 0"
    size = "--set mappedFileSizeCommitLog=1048576"
    if words[0] == "standalone":
        console = " --console-port 0" if "--console-port" in words else ""
        return f"--nameserver-port 0 --broker-port 0 {size}{console}"
    # Another name: the one that the documents give is taken by the broker that is there.
    return f"--name another --port {free_ports(40)} --host 127.0.0.1 {size}"


@cache
def check_in_clone(line: str) -> None:
    """Check that a command for a clone exists with its options: running it takes minutes."""
    words = shlex.split(line, comments=True)
    if words[0] == "make":
        quiet = ["make", "--no-print-directory", "-n"]
        words = shlex.split(told([*quiet, *words[1:]]).splitlines()[-1])
    assert words[1] == "-m"
    options = told([sys.executable, "-m", words[2], "--help"])
    for word in words:
        assert not word.startswith("--") or word in options, (line, word)


def told(arguments: list[str]) -> str:
    """Run a command in the clone; return its output."""
    return subprocess.run(
        arguments, cwd=HOME, capture_output=True, text=True, check=True, timeout=60
    ).stdout
