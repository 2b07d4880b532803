"""The demo: every flight of a year through a broker of its own, and a consumer group at work."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pocketmq import testing
from pocketmq.demo.errors import DemoFailed
from pocketmq.demo.group import GroupDemo, GroupResult
from pocketmq.demo.stage import stage
from pocketmq.demo.stream import CONSUMERS, Result, Stream, quantile
from pocketmq.flights import flights
from remoting import tasks as loop

__all__ = ["CONSUMERS", "DemoFailed", "GroupResult", "Result", "quantile", "run"]


def run(limit: int | None = None, *, silent: bool = False) -> tuple[Result, GroupResult]:
    """Run the demo, both halves.

    Args:
        limit: only so many flights.
        silent: show nothing of the group while it works.

    Raises:
        DemoFailed: something came out differently.
        NoFlights: the data are not installed.
        ServerError: the broker did not start.
    """
    first = next(flights(1))
    assert first.line, "the data are looked for before a broker is started"
    with testing.broker() as server:
        return loop.run(_both(server, limit, silent=silent))


async def _both(
    server: testing.StandaloneServer, limit: int | None, *, silent: bool
) -> tuple[Result, GroupResult]:
    stream = await Stream(server, limit).run()
    with (
        tempfile.TemporaryDirectory(prefix="pocketmq-demo-") as directory,
        stage(silent=silent) as shown,
    ):
        group = GroupDemo(server.nameserver, limit, Path(directory), shown)
        return stream, await group.run()
