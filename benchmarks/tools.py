"""The programs that generate the load: building them on first use, and running them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import page_cache
from benchmarks.scenarios import Scenario
from tests.interop import apache

VERSION: Final = "4.9.7"
HERE: Final = Path(__file__).parent
BUILT: Final = HERE.parent / ".tools" / "benchmarks"
MOST_REFUSED: Final = 0.05
"""The largest share of refused requests in a valid run: Apache's broker refuses some sends when it
is overloaded. Their number is shown."""

FILL_TIMEOUT: Final = 600.0
RUN_MARGIN: Final = 60.0
"""Seconds that a run may take in addition to its planned time."""


def say(text: str) -> None:
    """Print progress to stderr; the result goes to stdout."""
    print(text, file=sys.stderr, flush=True)


class BenchmarkError(Exception):
    """A required program is missing, or a run failed; the text is shown to the user."""


@dataclass(frozen=True, slots=True)
class Target:
    """A running broker: name server and broker addresses (``host:port``), and process id."""

    nameserver: str
    broker: str
    pid: int


def check() -> None:
    """Raise BenchmarkError with all missing programs, if any is missing."""
    lacking = [
        f"{program} ({why})"
        for program, why in (
            ("cc", "builds the load generator; Debian: apt install gcc libc6-dev"),
            ("java", "runs Apache RocketMQ; Debian: apt install openjdk-17-jdk-headless"),
            ("javac", "builds the load of the Java producer; part of the same JDK"),
            ("mvn", "fetches Apache RocketMQ; Debian: apt install maven"),
        )
        if shutil.which(program) is None
    ]
    if lacking:
        raise BenchmarkError("not on the PATH: " + "; ".join(lacking))


def _is_older(made: Path, sources: Sequence[Path]) -> bool:
    return not made.exists() or made.stat().st_mtime < max(s.stat().st_mtime for s in sources)


def compiled(made: Path, sources: Sequence[Path], options: Sequence[str] = ()) -> Path:
    """Compile a C program from its first source, if it is older than any of its sources."""
    if _is_older(made, sources):
        BUILT.mkdir(parents=True, exist_ok=True)
        command = ["cc", "-O2", "-Wall", "-o", str(made), str(sources[0]), *options]
        if subprocess.run(command, check=False).returncode:
            raise BenchmarkError(
                f"{made.name} could not be built; TLS needs OpenSSL's headers (Debian: apt install "
                "libssl-dev)"
            )
    return made


def loadgen(*, tls: bool = False) -> Path:
    """Return the path of the load generator in C, after compiling it if necessary."""
    name, options = ("loadgen-tls", ["-DTLS", "-lssl", "-lcrypto"]) if tls else ("loadgen", [])
    return compiled(BUILT / name, [HERE / "loadgen.c", HERE / "loadgen.h"], options)


def java(program: str, *options: str) -> list[str]:
    """Return the command that runs one of the Java programs here, without its arguments.

    Args:
        program: its name.
        options: of the JVM.
    """
    source = HERE / f"{program}.java"
    jars = apache.jars(VERSION)
    if _is_older(BUILT / f"{program}.class", [source]):
        BUILT.mkdir(parents=True, exist_ok=True)
        subprocess.run(["javac", "-nowarn", "-cp", jars, "-d", str(BUILT), str(source)], check=True)
    path = f"{BUILT}:{jars}"
    log = f"-Drocketmq.client.logRoot={BUILT}"
    return ["java", "-Xmx512m", log, *options, "-cp", path, program]


def fill(target: Target, topic: str, messages: int, *, queues: int = 4, vary: bool = False) -> None:
    """Send messages of 1 KiB to a topic, one per request.

    A few more than ``messages`` may be stored: those in flight at the end.

    Args:
        target: the broker.
        topic: the topic, created by the first send.
        messages: the number of messages.
        queues: the number of queues of the topic.
        vary: send messages of 256 to 1,792 bytes with a tag, a key and a property.
    """
    command = [
        *(str(loadgen()), "send", "--addr", target.broker, "--topic", topic),
        *("--conns", "4", "--inflight", "64", "--secs", str(FILL_TIMEOUT), "--warm", "0"),
        *("--count", str(messages), "--queues", str(queues), "--vary", str(int(vary))),
    ]
    run(command, FILL_TIMEOUT)


def load(scenario: Scenario, target: Target, *, seconds: float, warm: float) -> dict[str, float]:
    """Run a scenario once.

    Args:
        scenario: the scenario.
        target: the broker.
        seconds: the counted time.
        warm: the seconds before it, which are not counted.

    Returns:
        The figures of the program's last line: per_s, p50_us, p99_us, cpu_us_per and others.

    Raises:
        BenchmarkError: the program failed, or too many requests did.
    """
    if scenario.by_java_client:
        command = _java_command(scenario, target, seconds, warm)
    else:
        command = [
            *(
                str(loadgen(tls=scenario.tls)),
                scenario.mode,
                "--addr",
                target.broker,
                "--topic",
                scenario.name,
            ),
            *("--secs", str(seconds), "--warm", str(warm), "--pid", str(target.pid)),
            *(
                word
                for name, value in scenario.options.items()
                for word in (f"--{name}", f"{value}")
            ),
        ]
    page_cache.settle()
    figures = run(command, seconds + warm)
    if figures["errs"] > MOST_REFUSED * figures["n"] or not figures["n"]:
        raise BenchmarkError(
            f"{scenario.name}: {figures['errs']:.0f} requests failed, {figures['n']:.0f} did not"
        )
    return figures


def _java_command(scenario: Scenario, target: Target, seconds: float, warm: float) -> list[str]:
    # Java's client trusts every server by default.
    tls = ["-Dtls.enable=true"] if scenario.tls else []
    return [
        *(*java("JavaLoad", *tls), scenario.mode.removeprefix("java-")),
        *(target.nameserver, scenario.name),
        *(str(scenario.options["parallel"]), str(scenario.options["size"])),
        *(str(seconds), str(warm), str(target.pid)),
    ]


def run(command: Sequence[str], seconds: float) -> dict[str, float]:
    """Run a load program and return the figures of its last line (``key=value ...``).

    Args:
        command: the command.
        seconds: its planned time; it is stopped a minute later.

    Raises:
        BenchmarkError: it did not end in time, or failed.
    """
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=seconds + RUN_MARGIN, check=False
        )
    except subprocess.TimeoutExpired:
        raise BenchmarkError(f"{command[0]} hung; the command was {' '.join(command)}") from None
    if done.returncode != 0:
        told = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise BenchmarkError(f"{' '.join(command)} ended with {done.returncode}: {' '.join(told)}")
    line = done.stdout.strip().splitlines()[-1]
    pairs = (pair.split("=") for pair in line.split())
    return {name: float(value) for name, value in pairs if name != "mode"}
