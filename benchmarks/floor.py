"""What a server that stores nothing reaches: ``python -m benchmarks.floor``.

A program in C takes the place of the broker: it answers every send with the same text, and every
pull with records copied from memory. The rest, sockets, wake-ups and the load generator, is what
any broker on this machine has to live with.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from benchmarks.scenarios import SCENARIOS
from benchmarks.tools import BUILT, HERE, BenchmarkError, Target, compiled, load
from remoting.blocking import BlockingConnection
from remoting.errors import RemotingError
from tests.ports import free_port

ROUNDS: Final = 5
SECONDS: Final = 2.0
READY_WITHIN: Final = 5.0
LOADS: Final = ("send-1x1", "send-1x16", "send-4x64", "send-128b-4x64", "pull-1", "pull-4")


@contextmanager
def server() -> Iterator[Target]:
    """The server that stores nothing."""
    program = compiled(BUILT / "floor", [HERE / "floor.c"])
    port = free_port()
    running = subprocess.Popen([str(program), str(port)])
    try:
        address = f"127.0.0.1:{port}"
        _wait(address)
        yield Target(address, address, running.pid)
    finally:
        running.kill()
        running.wait()


def _wait(address: str) -> None:
    deadline = time.monotonic() + READY_WITHIN
    while True:
        try:
            BlockingConnection(address, connect_timeout=1.0).close()
        except RemotingError as problem:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"the server did not get ready: {problem}") from problem
            time.sleep(0.02)
        else:
            return


def main() -> None:
    """Print rate and p50 of each load, the median and range of the rounds."""
    with server() as target:
        for scenario in SCENARIOS:
            if scenario.name in LOADS:
                runs = [load(scenario, target, seconds=SECONDS, warm=0.5) for _ in range(ROUNDS)]
                rates = sorted(run["per_s"] for run in runs)
                p50s = sorted(run["p50_us"] for run in runs)
                print(
                    f"{scenario.text:24} {rates[ROUNDS // 2]:>11,.0f}/s "
                    f"({rates[0]:,.0f}-{rates[-1]:,.0f})  p50 {p50s[ROUNDS // 2]:,.1f} us "
                    f"({p50s[0]:,.1f}-{p50s[-1]:,.1f})"
                )


if __name__ == "__main__":
    main()
