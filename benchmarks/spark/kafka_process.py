"""Installs Spark 4.0 and its jars for Kafka into ``.tools``, and controls ``kafka_lane``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Final

from benchmarks.clients.servers import Unavailable, fetch_once, maven, needs

SPARK_VERSION: Final = "4.0.1"
HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parent.parent
PYSPARK: Final = ROOT / ".tools" / f"pyspark-{SPARK_VERSION}"
JARS: Final = ROOT / ".tools" / f"spark-kafka-{SPARK_VERSION}" / "lib"
LOCK: Final = HERE / "requirements.lock"
STOP_TIMEOUT: Final = 30.0


def install() -> None:
    """Install Spark 4.0 and the jars, unless they are installed.

    Raises:
        Unavailable: Java or Maven is missing, or a download failed.
    """
    needs("java", "mvn")
    pip = [
        *(sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--require-hashes", "--no-deps", "--target", str(PYSPARK), "-r", str(LOCK)),
    ]
    fetch_once(PYSPARK, LOCK, pip)
    pom = HERE / "pom.xml"
    fetch_once(JARS, pom, maven(pom, JARS, spark=SPARK_VERSION))


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
        Unavailable: see ``install``.
    """
    install()
    environment = {
        **os.environ,
        "PYTHONPATH": f"{PYSPARK}:{ROOT}",
        "SPARK_HOME": str(PYSPARK / "pyspark"),
    }
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.spark.kafka_lane", kafka, str(JARS)],
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
