"""Installs Spark 4.0 and its jars for Kafka into ``.tools``, and controls the process ``lane``."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from benchmarks.clients.servers import FETCH_TIMEOUT, Unavailable

SPARK_VERSION: Final = "4.0.1"
HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
PYSPARK: Final = ROOT / ".tools" / f"pyspark-{SPARK_VERSION}"
JARS: Final = ROOT / ".tools" / f"spark-kafka-{SPARK_VERSION}" / "lib"
LOCK: Final = HERE / "requirements.lock"
STOP_TIMEOUT: Final = 30.0


def _run(command: list[str]) -> None:
    """Run a command.

    Raises:
        Unavailable: it failed; with the end of its output.
    """
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=FETCH_TIMEOUT, check=False
    )
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines()
        reason = lines[-1] if lines else f"it ended with {done.returncode}"
        raise Unavailable(f"{Path(command[0]).name} failed: {reason}")


def fetch() -> None:
    """Install Spark 4.0 and the jars, unless they are installed.

    Raises:
        Unavailable: Java or Maven is missing, or a download failed.
    """
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise Unavailable(f"{program} is not on the PATH")
    _once(PYSPARK, LOCK, _pip(PYSPARK))
    _once(JARS, HERE / "pom.xml", _maven(JARS))


def _once(target: Path, source: Path, command: list[str]) -> None:
    """Run a command that fills a directory, unless that was done for the same source file."""
    ready, stamp = target / ".ready", hashlib.sha256(source.read_bytes()).hexdigest()
    if ready.exists() and ready.read_text() == stamp:
        return
    shutil.rmtree(target, ignore_errors=True)
    _run(command)
    ready.write_text(stamp)


def _pip(target: Path) -> list[str]:
    return [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--require-hashes", "--no-deps", "--target", str(target), "-r", str(LOCK)),
    ]


def _maven(target: Path) -> list[str]:
    return [
        *("mvn", "--batch-mode", "--quiet", "-f", str(HERE / "pom.xml")),
        *(f"-Dspark.version={SPARK_VERSION}", f"-DoutputDirectory={target}"),
        "dependency:copy-dependencies",
    ]


class Lane:
    """The process with Spark 4.0: takes a line of JSON, answers with one."""

    def __init__(self, commands: IO[str], answers: IO[str]) -> None:
        self._commands = commands
        self._answers = answers

    def ask(self, command: str, **given: Any) -> dict[str, Any]:
        """Send a command and return the answer.

        Raises:
            Unavailable: the command failed; the reason is on stderr.
        """
        self._commands.write(json.dumps({"command": command, **given}) + "\n")
        self._commands.flush()
        line = self._answers.readline()
        if not line:
            raise Unavailable(f"Spark {SPARK_VERSION} with Kafka could not {command}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextmanager
def lane(kafka: str) -> Iterator[Lane]:
    """Start Spark 4.0 with a Kafka broker's address.

    Raises:
        Unavailable: see ``fetch``.
    """
    fetch()
    environment = {
        **os.environ,
        "PYTHONPATH": f"{PYSPARK}:{ROOT}",
        "SPARK_HOME": str(PYSPARK / "pyspark"),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.spark_kafka.lane", kafka, str(JARS)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Lane(process.stdin, process.stdout)
            process.stdin.close()
            process.wait(STOP_TIMEOUT)
        finally:
            process.kill()
