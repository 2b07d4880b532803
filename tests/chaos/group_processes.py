"""Group members as processes, ours and foreign ones, controlled by a test."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

START_TIMEOUT = 60.0
LEAVE_TIMEOUT = 60.0
LOG_LINES_TOLD = 40


class MemberProcess:
    """One member process, controlled by the commands of ``group_member``.

    Args:
        command: the program with its arguments.
        file: where it writes what it handles.
        name: what the test calls it.

    Attributes:
        client_id: what brokers call it, once it has joined.
        ended_at: when it ended, on the machine's monotonic clock in nanoseconds.
    """

    def __init__(self, command: Sequence[str], file: Path, name: str) -> None:
        self.name = name
        self.file = file
        self.client_id = ""
        self.ended_at: int | None = None
        self._command = command
        self._log = file.with_suffix(".log")
        self._process: asyncio.subprocess.Process | None = None

    async def join(self) -> None:
        """Start it and wait until it is a member."""
        self.file.touch()
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        async with asyncio.timeout(START_TIMEOUT):
            self.client_id = (await self._answer("joined"))[1]

    async def owned(self) -> set[int]:
        """Return the queues of the topic that it owns."""
        self._say(b"owned\n")
        async with asyncio.timeout(START_TIMEOUT):
            queues = (await self._answer("owned"))[1]
        return {int(queue.rpartition(":")[2]) for queue in queues.split(",") if queue}

    async def leave(self) -> None:
        """Make it leave the group and exit.

        Raises:
            AssertionError: it did not, or not well.
        """
        self._say(b"leave\n")
        async with asyncio.timeout(LEAVE_TIMEOUT):
            await self._answer("done")
            code = await self._running().wait()
        self.ended_at = time.monotonic_ns()
        assert code == 0, self._complaint(f"ended with {code}")

    async def kill(self) -> None:
        """Kill it (SIGKILL)."""
        process = self._running()
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        self.ended_at = time.monotonic_ns()

    async def close(self) -> None:
        """Kill it if it still runs."""
        if self._process is not None and self.ended_at is None:
            await self.kill()

    @property
    def log(self) -> str:
        """Return its log."""
        return self._log.read_text(errors="replace")

    def _say(self, command: bytes) -> None:
        stdin = self._running().stdin
        assert stdin is not None
        stdin.write(command)

    async def _answer(self, word: str) -> list[str]:
        stdout = self._running().stdout
        assert stdout is not None
        while text := await stdout.readline():
            fields = text.decode().rstrip("\n").split("\t")
            if fields[0] == word:
                return fields
        raise AssertionError(self._complaint(f"ended before it said {word!r}"))

    def _running(self) -> asyncio.subprocess.Process:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    def _complaint(self, what: str) -> str:
        tail = "\n".join(self.log.splitlines()[-LOG_LINES_TOLD:])
        return f"{self.name} ({self.client_id}) {what}:\n{tail}"


def ours(
    name: str,
    folder: Path,
    nameserver: str,
    group: str,
    topic: str,
    *,
    ordered: bool,
    max_retries: int = 16,
) -> MemberProcess:
    """Create a member that uses our client and writes to ``folder``."""
    file = folder / name
    command = [
        *(sys.executable, "-m", "tests.chaos.group_member"),
        *(nameserver, group, topic, str(file)),
        f"--max-retries={max_retries}",
    ]
    return MemberProcess([*command, "--ordered"] if ordered else command, file, name)
