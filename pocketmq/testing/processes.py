"""One server in a child process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

START_TIMEOUT: Final = 30.0
"""Seconds until a server must be ready; a busy CI machine needs a few."""

ANSWER_TIMEOUT: Final = 20.0
"""Seconds until a test's broker must have done what a test asks."""

STOP_TIMEOUT: Final = 20.0
"""Seconds for a clean stop, after which the process is killed."""

LOGS_VARIABLE: Final = "POCKETMQ_TEST_LOGS"
"""Environment variable of a directory that keeps the whole logs of the servers."""

SMALL_STORE: Final = {
    "mappedFileSizeCommitLog": str(64 * 1024 * 1024),
    "diskSpaceCleanForciblyRatio": "100",
    "diskSpaceWarningLevelRatio": "100",
}
"""A test's store uses log files of 64 MiB instead of RocketMQ's 1 GiB, and works on a nearly full
disk."""

_LOG_LINES_KEPT: Final = 1000


class ServerError(RuntimeError):
    """A server process did not start or stop cleanly; the text ends with its last log lines."""


class ServerProcess:
    """One ``pocketmq`` server as a child process.

    Args:
        command: ``standalone``, ``nameserver`` or ``broker`` with its options.
        environment: variables added to this process's.
        program: the module that runs, and its own arguments.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        program: Sequence[str] = ("pocketmq",),
    ) -> None:
        self.command = list(command)
        self.program = program
        self.addresses: dict[str, str] = {}
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[str] | None = None
        self._log: deque[str] = deque(maxlen=_LOG_LINES_KEPT)
        self._reader: threading.Thread | None = None
        self._asking = threading.Lock()

    @property
    def pid(self) -> int:
        """The process id; the process must be running."""
        return self._running().pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def log(self) -> str:
        """The last lines that the server wrote to stderr, across restarts."""
        return "".join(self._log)

    def start(self) -> None:
        """Start the process and wait until it is ready.

        Raises:
            ServerError: it ended, was not ready in time, or is already running.
        """
        if self._process is not None:
            raise ServerError(self._complaint("runs already"))
        process = subprocess.Popen(  # noqa: S603 - our own command line
            [
                sys.executable,
                "-P",
                "-m",
                *self.program,
                *self.command,
                "--json",
                "--until-stdin-closes",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=self._environment,
        )
        self._process = process
        assert process.stderr is not None
        assert process.stdout is not None
        # Read stderr continuously: a full pipe would block the server.
        self._reader = threading.Thread(
            target=self._keep_log, args=(process.stderr, process.pid), daemon=True
        )
        self._reader.start()
        line = _read_line(process.stdout, START_TIMEOUT)
        try:
            ready = json.loads(line)
        except ValueError:
            self.kill()
            raise ServerError(self._complaint("did not get ready")) from None
        self.addresses = {
            name: address for name, address in ready.items() if name not in {"event", "pid"}
        }

    def ask(self, request: Mapping[str, object]) -> None:
        """Let a test's broker do something, and wait until it is done; for the kit itself.

        Raises:
            ServerError: it doesn't run, can't do it, or does not answer in time.
        """
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        with self._asking:
            try:
                process.stdin.write(json.dumps(request) + "\n")
                process.stdin.flush()
                answer = json.loads(_read_line(process.stdout, ANSWER_TIMEOUT))
            except (OSError, ValueError):
                raise ServerError(self._complaint(f"does not answer {request}")) from None
        if answer:
            raise ServerError(f"the broker can't {request['do']}: {answer['error']}")

    def stop(self) -> None:
        """Stop cleanly (SIGTERM) and wait.

        Raises:
            ServerError: it did not end in time, or its exit code was not 0.
        """
        if self._process is None:
            return
        process, code = self._process, None
        process.terminate()
        try:
            code = process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        self._forget()
        if code != 0:
            raise ServerError(self._complaint(f"ended with {code} instead of a clean stop"))

    def kill(self) -> None:
        """Kill the process (SIGKILL) and wait until it has ended."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._forget()

    def pause(self) -> None:
        """Suspend the process (SIGSTOP)."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the process (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def _keep_log(self, lines: IO[str], pid: int) -> None:
        directory = os.environ.get(LOGS_VARIABLE)
        with ExitStack() as stack:
            file = None
            if directory:
                path = Path(directory) / f"{self.command[0]}-{pid}.log"
                path.parent.mkdir(parents=True, exist_ok=True)
                file = stack.enter_context(path.open("a", encoding="utf-8"))
            for line in lines:
                self._log.append(line)
                if file is not None:
                    file.write(line)

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise ServerError(self._complaint("is not running"))
        return self._process

    def _forget(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        if self._reader is not None:
            self._reader.join()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()

    def _complaint(self, what: str) -> str:
        tail = "".join(list(self._log)[-20:])
        return f"pocketmq {' '.join(self.command)} {what}:\n{tail}"


def _read_line(stream: IO[str], timeout: float) -> str:
    """Return a line of a pipe, or an empty string after the timeout.

    Works without ``select``, which some systems lack for pipes.
    """
    lines: list[str] = []
    reader = threading.Thread(target=lambda: lines.append(stream.readline()), daemon=True)
    reader.start()
    reader.join(timeout)
    return lines[0] if lines else ""
