"""Serving until stopped, with parts that the test controls."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
from collections.abc import Mapping, Sequence

import pytest

from pocketmq.server.serving import COLLECT_EVERY, Failed, ServerRunner


class Fake:
    """A part that records its calls."""

    def __init__(self, name: str, events: list[str], *, fails_at_start: bool = False) -> None:
        self.name = name
        self.events = events
        self.fails_at_start = fails_at_start
        self.failure: asyncio.Future[None] | None = None

    async def start(self) -> None:
        self.events.append(f"start {self.name}")
        self.failure = asyncio.get_running_loop().create_future()
        if self.fails_at_start:
            raise OSError("the port is in use")

    async def stop(self) -> None:
        self.events.append(f"stop {self.name}")

    def ready(self) -> Mapping[str, str]:
        return {self.name: "127.0.0.1:1"}

    def failures(self) -> Sequence[asyncio.Future[None]]:
        assert self.failure is not None
        return [self.failure]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_the_parts_in_the_opposite_order(number: signal.Signals) -> None:
    events: list[str] = []

    def ready(line: str) -> None:
        events.append(line)
        os.kill(os.getpid(), number)

    ServerRunner(parts=[Fake("nameserver", events), Fake("broker", events)], echo=ready).run()
    assert events == [
        "start nameserver",
        "start broker",
        "ready: nameserver 127.0.0.1:1, broker 127.0.0.1:1",
        "stop broker",
        "stop nameserver",
    ]


def test_a_hangup_stops_nothing() -> None:
    events: list[str] = []

    def ready(_: str) -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        asyncio.get_running_loop().call_later(0, os.kill, os.getpid(), signal.SIGTERM)

    ServerRunner(parts=[Fake("broker", events)], echo=ready).run()
    assert events == ["start broker", "stop broker"]


def test_a_ready_line_that_cannot_be_written_stops_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def ready(_: str) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise OSError(28, "No space left on device")

    ServerRunner(parts=[Fake("broker", [])], echo=ready).run()
    assert "the server is ready, but stdout can't be written: reason=No space left" in caplog.text


def test_while_it_serves_the_garbage_collector_leaves_alone_what_was_there() -> None:
    usual = gc.get_threshold()
    found: list[tuple[bool, int]] = []

    def ready(_: str) -> None:
        found.append((gc.get_freeze_count() > 0, gc.get_threshold()[0]))
        os.kill(os.getpid(), signal.SIGTERM)

    ServerRunner(parts=[Fake("broker", [])], echo=ready).run()
    assert found == [(True, COLLECT_EVERY)]
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == usual


def test_the_ready_line_as_json_is_one_object() -> None:
    lines: list[str] = []

    def ready(line: str) -> None:
        lines.append(line)
        os.kill(os.getpid(), signal.SIGTERM)

    ServerRunner(parts=[Fake("broker", [])], as_json=True, echo=ready).run()
    assert json.loads(lines[0]) == {"event": "ready", "broker": "127.0.0.1:1", "pid": os.getpid()}


def test_a_part_that_cannot_start_stops_those_before_it() -> None:
    events: list[str] = []
    parts = [Fake("a", events), Fake("b", events, fails_at_start=True), Fake("c", events)]
    with pytest.raises(OSError, match="the port is in use"):
        ServerRunner(parts=parts, echo=events.append).run()
    assert events == ["start a", "start b", "stop b", "stop a"]


class Slow(Fake):
    """A part whose start never ends."""

    async def start(self) -> None:
        await super().start()
        os.kill(os.getpid(), signal.SIGTERM)
        try:
            await asyncio.Event().wait()
        finally:
            self.events.append(f"give up {self.name}")


def test_a_signal_during_a_start_aborts_it() -> None:
    events: list[str] = []
    parts = [Fake("a", events), Slow("b", events), Fake("c", events)]
    ServerRunner(parts=parts, echo=events.append).run()
    assert events == ["start a", "start b", "give up b", "stop b", "stop a"]


def test_a_signal_at_the_end_of_a_start_is_handled() -> None:
    class Last(Fake):
        async def start(self) -> None:
            await super().start()
            os.kill(os.getpid(), signal.SIGTERM)

    events: list[str] = []
    parts = [Last("a", events), Slow("b", events)]
    ServerRunner(parts=parts, echo=events.append).run()
    assert events[0] == "start a"
    assert events[-1] == "stop a"
    assert not any(event.startswith("ready") for event in events)


def test_a_part_that_dies_ends_it_with_its_error() -> None:
    events: list[str] = []
    part = Fake("broker", events)

    def ready(_: str) -> None:
        assert part.failure is not None
        part.failure.set_exception(ValueError("the wheel is broken"))

    with pytest.raises(Failed, match="ValueError: the wheel is broken") as caught:
        ServerRunner(parts=[part], echo=ready).run()
    assert isinstance(caught.value.__cause__, ValueError)
    assert events[-1] == "stop broker"


def test_it_stops_when_its_input_ends() -> None:
    reading, writing = os.pipe()
    events: list[str] = []

    def ready(_: str) -> None:
        os.write(writing, b"ignored")
        os.close(writing)

    ServerRunner(parts=[Fake("broker", events)], echo=ready, until_end_of=reading).run()
    os.close(reading)
    assert events == ["start broker", "stop broker"]
