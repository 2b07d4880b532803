"""The members of the demo's group, as the demo sees them: processes that tell what they own."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from examples.demo.member import Duty, Told
from pocketmq.cli.demo import DemoFailed

STOP_TIMEOUT: Final = 15.0
"""Seconds for a clean stop."""


class Member:
    """One process.

    Attributes:
        number: what people call it by.
        queues: the ids of those it owns, by its own word.
        idle: it said that it owns none.
    """

    def __init__(self, number: int, log: Path) -> None:
        self.number = number
        self.queues: set[int] = set()
        self.idle = False
        self._log = log
        self._process: asyncio.subprocess.Process
        self._listening: asyncio.Task[None]

    def __str__(self) -> str:
        return f"member {self.number}"

    async def start(self, duty: Duty, heard: Callable[[Member, Told], None]) -> None:
        """Start it; ``heard`` is told what it says."""
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "examples.demo.member"),
                msgspec.json.encode(duty).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self._listening = asyncio.create_task(self._listen(heard), name=str(self))

    async def _listen(self, heard: Callable[[Member, Told], None]) -> None:
        output = self._process.stdout
        assert output is not None
        async for line in output:
            told = msgspec.json.decode(line, type=Told)
            if told.what == "gained":
                self.queues.add(told.queue)
            elif told.what == "lost":
                self.queues.discard(told.queue)
            self.idle = told.what == "idle" or (self.idle and not self.queues)
            heard(self, told)

    def check(self) -> None:
        """Raise DemoFailed if it is gone."""
        if self._process.returncode is not None or self._listening.done():
            raise DemoFailed(self._complaint())

    async def kill(self) -> None:
        """End it as a power cut would."""
        self._process.kill()
        await self._process.wait()
        await self._listening

    async def stop(self) -> None:
        """Let it leave the group.

        Raises:
            DemoFailed: it did not end well.
        """
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                code = await self._process.wait()
        except TimeoutError:
            code = None
        if code != 0:
            raise DemoFailed(self._complaint())
        await self._listening

    async def end(self) -> None:
        """Make sure that it is gone."""
        self._listening.cancel()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def _complaint(self) -> str:
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        return f"{self} did not end well: {' '.join(last) or 'it said nothing'}"


class Members:
    """The members of one group that are alive.

    Args:
        heard: is told what a member says, besides what it owns.
    """

    def __init__(self, duty: Duty, logs: Path, heard: Callable[[Member, Told], None]) -> None:
        self.alive: list[Member] = []
        self._duty = duty
        self._logs = logs
        self._heard = heard
        self._changed = asyncio.Event()

    @property
    def owners(self) -> Mapping[int, Member]:
        """Queue id -> its owner."""
        return {queue: member for member in self.alive for queue in member.queues}

    async def join(self, count: int) -> None:
        """So many more."""
        for _ in range(count):
            number = len(list(self._logs.glob("*.log"))) + 1
            member = Member(number, self._logs / f"member-{number}.log")
            await member.start(self._duty, self._hear)
            self.alive.append(member)

    def _hear(self, member: Member, told: Told) -> None:
        self._changed.set()
        self._heard(member, told)

    async def settled(self, queues: int, timeout: float) -> None:
        """Wait until all queues have one owner each, and every member queues or said it has none.

        Raises:
            DemoFailed: that took too long, or a member is gone.
        """
        try:
            async with asyncio.timeout(timeout):
                while not self._all_have_theirs(queues):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self.check()
            raise DemoFailed(
                f"{len(self.alive)} members did not share {queues} queues in {timeout:g} s: "
                + ", ".join(f"{member}: {sorted(member.queues)}" for member in self.alive)
            ) from None

    def _all_have_theirs(self, queues: int) -> bool:
        owned = [queue for member in self.alive for queue in member.queues]
        busy = [member for member in self.alive if member.queues]
        return (
            sorted(owned) == list(range(queues))
            and len(busy) == min(len(self.alive), queues)
            and all(member.queues or member.idle for member in self.alive)
        )

    def check(self) -> None:
        """Raise DemoFailed if one is gone that should be there."""
        for member in self.alive:
            member.check()

    async def kill(self, member: Member) -> None:
        """End one as a power cut would."""
        self.alive.remove(member)
        await member.kill()

    async def stop(self) -> None:
        """Let all leave. Raises DemoFailed when one does not end well."""
        await asyncio.gather(*(member.stop() for member in self.alive))
        self.alive.clear()

    async def end(self) -> None:
        """Make sure that all are gone."""
        await asyncio.gather(*(member.end() for member in self.alive))
