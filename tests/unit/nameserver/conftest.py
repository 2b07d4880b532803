"""A name server's state without sockets, and captured frames as commands."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nameserver.config import NameServerConfig
from nameserver.requests import process
from nameserver.state import SharedState
from remoting.errors import ConnectionLost
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode
from tests.support.clock import ManualClock


@dataclass(eq=False)
class FakePeer:
    """A connection that records what is sent to it."""

    remote_text: str = "127.0.0.1:5"
    sent: list[Command] = field(default_factory=list)
    close_reason: str | None = None

    def send_oneway(self, command: Command) -> None:
        if self.close_reason is not None:
            raise ConnectionLost(self.remote_text, self.close_reason)
        self.sent.append(command)

    def close(self, reason: str = "closed by us") -> None:
        self.close_reason = reason


@dataclass
class Captured:
    """One captured frame."""

    record: dict[str, Any]
    command: Command

    @property
    def key(self) -> tuple[int, int]:
        return self.record["conn"], self.record["opaque"]


class Requests:
    """Sends requests to a state and waits for the answers."""

    def __init__(self, state: SharedState) -> None:
        self.state = state
        self.peer = FakePeer()

    def __call__(self, command: Command, peer: FakePeer | None = None) -> Command:
        answer = process(self.state, command, peer or self.peer)
        if inspect.isawaitable(answer):
            return asyncio.run(_wait(answer))
        assert isinstance(answer, Command)
        return answer


async def _wait(answer: Any) -> Command:
    reply = await answer
    assert isinstance(reply, Command)
    return reply


@pytest.fixture
def config(tmp_path: Path) -> NameServerConfig:
    return NameServerConfig(kv_config_path=tmp_path / "kvConfig.json")


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def state(config: NameServerConfig, clock: ManualClock) -> SharedState:
    return SharedState.load(config, clock)


@pytest.fixture
def ask(state: SharedState) -> Requests:
    return Requests(state)


@pytest.fixture
def new_peer() -> type[FakePeer]:
    return FakePeer


@pytest.fixture
def frames(golden: Path) -> Callable[[str], Iterator[Captured]]:
    """The frames between brokers, clients and name servers of a captured scenario."""

    def read(name: str) -> Iterator[Captured]:
        for line in (golden / "frames" / f"{name}.jsonl").read_text().splitlines():
            record = json.loads(line)
            if "namesrv" in record["role"]:
                frame = cut(bytes.fromhex(record["frame_hex"]))
                assert frame is not None
                yield Captured(record, decode(frame))

    return read
