"""Captured requests replayed to our processors in order, compared with captured answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode
from tests.unit.broker.harness import Bench, FakeConnection

FRAMES = Path(__file__).parents[3] / "golden" / "frames"


@dataclass
class Exchange:
    """A request of a client to a broker, what Apache's broker answered, and what ours did."""

    conn: int
    request: Command
    theirs: Command | None
    ours: Command | None = None


def captured(name: str) -> list[Exchange]:
    """Return the requests to a broker in a captured file, in order, with Apache's answers."""
    lines = [json.loads(line) for line in (FRAMES / name).read_text().splitlines()]
    lines = [line for line in lines if line["role"] in {"client-broker", "slave-broker"}]
    answers = {
        (line["conn"], line["opaque"]): _command(line)
        for line in lines
        if line["type"] == "response" and line["dir"] == "s2c"
    }
    return [
        Exchange(line["conn"], _command(line), answers.get((line["conn"], line["opaque"])))
        for line in lines
        if line["type"] != "response" and line["dir"] == "c2s"
    ]


def replay(bench: Bench, name: str, outgoing: list[Command] | None = None) -> Sequence[Exchange]:
    """Replay a file's exchanges to our processors, and return them with our answers.

    What the broker asks its clients is appended to ``outgoing``.
    """
    wake_on_arrival(bench)
    exchanges = captured(name)
    connections = {one.conn: FakeConnection(5000 + one.conn, outgoing) for one in exchanges}
    for conn, code, answer in _answers_of_clients(name):
        connections[conn].answers[code] = answer
    for one in exchanges:
        answer = bench.ask(one.request, connections[one.conn])
        if answer is not None:
            connections[one.conn].sent.append(answer)
    sent = {(conn, one.opaque): one for conn, to in connections.items() for one in to.sent}
    for one in exchanges:
        if not one.request.is_oneway:
            one.ours = sent.get((one.conn, one.request.opaque))
    return exchanges


def _answers_of_clients(name: str) -> list[tuple[int, int, Command]]:
    """Return the clients' answers to the broker: connection, request code, answer."""
    lines = [json.loads(line) for line in (FRAMES / name).read_text().splitlines()]
    return [
        (line["conn"], line["reply_to"], _command(line))
        for line in lines
        if line["role"] == "client-broker" and line["type"] == "response" and line["dir"] == "c2s"
    ]


def wake_on_arrival(bench: Bench) -> None:
    """Make messages wake parked pulls, as the broker does."""
    bench.store.dispatcher.on_arrival = lambda *event: bench.processors.pull.wake(
        bench.state.long_polls.arrived(*event)
    )


def _command(line: dict) -> Command:
    frame = cut(bytes.fromhex(line["frame_hex"]))
    assert frame is not None
    return decode(frame)
