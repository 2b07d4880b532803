"""The examples as commands, one after the other on the same topics."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client.blocking import Admin
from examples.spark import send_flights as departures
from pocketmq.testing import StandaloneServer
from tests.spark.pipelines.shared import example

COUNT = 1000


@pytest.fixture
def call(
    spark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[str, object]]:
    """Runs an example in this session; returns its output and exit code."""
    # The session is that of other tests too.
    monkeypatch.setattr(type(spark), "stop", lambda _: None)

    def run(name: str, *words: str) -> tuple[str, object]:
        monkeypatch.setattr(sys, "argv", [name, *words])
        code: object = 0
        try:
            example(name).main()
        except SystemExit as end:
            code = end.code
        return capsys.readouterr().out, code

    return run


@pytest.mark.slow
def test_all_examples_work_as_their_first_lines_show_them(
    call: Callable[..., tuple[str, object]],
    server: StandaloneServer,
    admin: Admin,
    read: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("NAMESRV_ADDR", server.nameserver)
    output, _ = call("send_flights", str(COUNT))
    assert output == f"{COUNT} flights sent\n"

    directory = f"--directory={tmp_path}/archive"
    output, code = call("archive", "--topics", "flights,airlines", directory)
    lines = [line for line in output.splitlines() if line.startswith("flights/")]
    assert (code, len(lines)) == (0, departures.QUEUES)
    assert all(line.endswith(", 0 lack, 0 repeat") for line in lines)

    admin.create_topic("flights-again", queues=2)
    call("replay", directory, "--from", "flights", "--to", "flights-again")
    assert read("flights-again").count() == COUNT

    call("enrich", f"--directory={tmp_path}/enrich")
    assert read("flights-named").count() == COUNT
    assert read("flights-dead").count() == 0

    admin.create_group("idle-readers")
    admin.commit("idle-readers", dict.fromkeys(admin.queues("flights"), 0))
    output, _ = call("lag_report")
    assert f"group idle-readers: {COUNT} messages of flights behind, the oldest waits" in output
    assert "group enrich: 0 messages of flights behind\n" in output

    output, code = call("audit", str(server.store))
    assert code == 0
    assert f"flights: {COUNT} messages in {departures.QUEUES} queues" in output
