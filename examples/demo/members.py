"""The member processes of the demo's group: starting, stopping, and tracking their queues."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from examples.demo.flights import DemoFailed
from examples.demo.member import MemberEvent, MemberSettings

STOP_TIMEOUT: Final = 15.0
"""The most seconds for a clean stop."""


class Member:
    """One member process.

    Attributes:
        number: its number, for the display.
        queues: the ids of its queues, according to its events.
        idle: whether it has reported that it has no queue.
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

    async def start(
        self, settings: MemberSettings, on_event: Callable[[Member, MemberEvent], None]
    ) -> None:
        """Start the process; ``on_event`` is called with its events."""
        with self._log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "examples.demo.member"),
                msgspec.json.encode(settings).decode(),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        self._listening = asyncio.create_task(self._listen(on_event), name=str(self))

    async def _listen(self, on_event: Callable[[Member, MemberEvent], None]) -> None:
        output = self._process.stdout
        assert output is not None
        async for line in output:
            event = msgspec.json.decode(line, type=MemberEvent)
            if event.what == "gained":
                self.queues.add(event.queue)
            elif event.what == "lost":
                self.queues.discard(event.queue)
            self.idle = event.what == "idle" or (self.idle and not self.queues)
            on_event(self, event)

    def check(self) -> None:
        """Raise DemoFailed if the process has ended."""
        if self._process.returncode is not None or self._listening.done():
            raise DemoFailed(self._complaint())

    async def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        await self._process.wait()
        await self._listening

    async def stop(self) -> None:
        """Stop the process cleanly, so that it leaves the group.

        Raises:
            DemoFailed: it timed out or failed.
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
        """Kill the process if it is still running."""
        self._listening.cancel()
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()

    def _complaint(self) -> str:
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:]
        return f"{self} failed: {' '.join(last) or 'without a message'}"


class Members:
    """The running members of one group.

    Args:
        settings: the settings of the members.
        logs: the directory for their log files.
        on_event: called with each event of a member.
    """

    def __init__(
        self, settings: MemberSettings, logs: Path, on_event: Callable[[Member, MemberEvent], None]
    ) -> None:
        self.alive: list[Member] = []
        self._settings = settings
        self._logs = logs
        self._on_event = on_event
        self._changed = asyncio.Event()

    @property
    def owners(self) -> Mapping[int, Member]:
        """The owners of the queues, by queue id."""
        return {queue: member for member in self.alive for queue in member.queues}

    async def join(self, count: int) -> None:
        """Start this many more members."""
        for _ in range(count):
            number = len(list(self._logs.glob("*.log"))) + 1
            member = Member(number, self._logs / f"member-{number}.log")
            await member.start(self._settings, self._note_event)
            self.alive.append(member)

    def _note_event(self, member: Member, event: MemberEvent) -> None:
        self._changed.set()
        self._on_event(member, event)

    async def settled(self, queues: int, timeout: float) -> None:
        """Wait until all queues have one owner each, and every member has queues or is idle.

        Args:
            queues: the number of queues.
            timeout: in seconds.

        Raises:
            DemoFailed: the timeout has passed, or a member has ended.
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
        """Raise DemoFailed if a member has ended unexpectedly."""
        for member in self.alive:
            member.check()

    async def kill(self, member: Member) -> None:
        """Kill a member."""
        self.alive.remove(member)
        await member.kill()

    async def stop(self) -> None:
        """Stop all members cleanly. Raises DemoFailed if one times out or fails."""
        await asyncio.gather(*(member.stop() for member in self.alive))
        self.alive.clear()

    async def end(self) -> None:
        """Kill all members that are still running."""
        await asyncio.gather(*(member.end() for member in self.alive))
