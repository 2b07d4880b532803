"""Measure what accounts cost: signed sends at a broker with ACL, beside unsigned ones without.

    python -m benchmarks.signed [--rounds 5] [--seconds 3]

Signed sends take the broker's slower path, so the difference is that of the paths and of the check.
Each round runs both, 1 KiB at 4 x 64; the load is in this process, on the same machine.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Final

from benchmarks import machine
from benchmarks.pump import pump, send_each, send_frame
from pocketmq import testing
from remoting.protocol.frame import cut, decode, encode
from remoting.protocol.signing import Credentials, signed

KIB: Final = 1024
QUEUES: Final = 4
ACCOUNT: Final = "bench-sender"
ACCOUNTS: Final = {ACCOUNT: {"topicPerms": ["signed=PUB|SUB"]}}

Rows = dict[str, list[dict[str, float]]]


def frames(who: Credentials | None) -> list[bytes]:
    """Return one send for each queue; a broker accepts a signed request again and again."""
    made = [send_frame("signed", queue, KIB, queues=QUEUES) for queue in range(QUEUES)]
    return made if who is None else [sign(one, who) for one in made]


def sign(frame: bytes, who: Credentials) -> bytes:
    """Return a signed copy of a frame."""
    whole = cut(frame)
    assert whole is not None
    return encode(signed(decode(whole), who))


def measure(rounds: int, seconds: float) -> Rows:
    """Run the rounds; return the figures of each kind."""
    found: Rows = {"unsigned": [], "signed": []}
    with testing.broker() as open_broker, testing.broker(accounts=ACCOUNTS) as guarded:
        for _ in range(rounds):
            for kind, server in (("unsigned", open_broker), ("signed", guarded)):
                requests = frames(server.credentials.get(ACCOUNT))
                send_each(server.broker, requests)
                figures = pump(
                    server.broker,
                    requests,
                    connections=4,
                    inflight=64,
                    seconds=seconds,
                    warm=0.5,
                    pid=server.pid,
                )
                found[kind].append(figures.as_json())
    return found


def table(found: Rows) -> str:
    """Return the medians, a line for each kind."""
    lines = []
    for kind, rows in found.items():
        rate, cpu, p50 = (
            statistics.median(row[name] for row in rows)
            for name in ("per_s", "cpu_us_per", "p50_ms")
        )
        lines.append(f"{kind:9} {rate:9,.0f}/s  CPU {cpu:6.2f} us a send  p50 {p50:.2f} ms")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    options = parser.parse_args()
    print(machine.facts()["cpu"])
    print(table(measure(options.rounds, options.seconds)))


if __name__ == "__main__":
    main()
