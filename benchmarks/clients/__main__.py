"""Runs the servers and the rounds, and prints the table."""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from benchmarks import machine, page_cache
from benchmarks.clients import figures, foreign, servers
from benchmarks.clients.figures import OURS, PHASES, Run
from benchmarks.clients.lanes import measuring
from benchmarks.clients.lanes.measuring import Work
from benchmarks.tools import say

ROOT = Path(__file__).parent.parent.parent
PHASE_TIMEOUT = 300.0
PARTITIONS = 4
BODY_BYTES = 1024
STORED_BYTES = 1300
"""Bytes on the disk per message, including those the server adds."""

DELIVERIES_PER_SECOND = 500


class LaneFailed(Exception):
    """A client failed in a phase; the text has its output."""


class Client(NamedTuple):
    """A client: its lane, its server, and what an acknowledged message means."""

    lane: str
    server: str
    guarantee: str


CLIENTS: Mapping[str, Client] = {
    OURS: Client("pocketmq_lane", "PocketMQ", "acknowledged, in the log: ASYNC_FLUSH"),
    "confluent-kafka": Client("confluent_lane", "Kafka", "acknowledged, in the log: acks=1"),
    "aiokafka": Client("aiokafka_lane", "Kafka", "acknowledged, in the log: acks=1"),
    "nats-py": Client("jetstream_lane", "nats-server", "acknowledged, JetStream in a file"),
}
SERVERS: Mapping[str, Callable[[Path], AbstractContextManager[str]]] = {
    "PocketMQ": servers.pocketmq,
    "Kafka": servers.kafka,
    "nats-server": servers.nats,
}


class Amounts(NamedTuple):
    """The amounts of a run."""

    rounds: int
    warm_up: int
    messages: int
    deliveries: int


QUICK = Amounts(rounds=2, warm_up=0, messages=20_000, deliveries=250)


@contextmanager
def running(names: Sequence[str], absent: dict[str, str]) -> Iterator[dict[str, str]]:
    """Start the servers of some clients and yield their addresses by name.

    Args:
        names: the clients.
        absent: filled with the servers that can't be started, and the reasons.
    """
    addresses: dict[str, str] = {}
    with ExitStack() as stack:
        for server in dict.fromkeys(CLIENTS[name].server for name in names):
            home = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-clients-"))
            say(f"starting {server}")
            try:
                addresses[server] = stack.enter_context(SERVERS[server](Path(home)))
            except servers.Unavailable as reason:
                absent[server] = str(reason)
        yield addresses


def run_phase(name: str, phase: str, work: Work) -> Run | None:
    """Run one phase of one client in a separate process.

    Returns:
        The figures, or None for a phase that is not measured.

    Raises:
        LaneFailed: the process failed, for example because messages were lost.
    """
    python = sys.executable if name == OURS else foreign.python()
    # The dirty pages of the previous client must not slow this one down.
    page_cache.settle()
    done = subprocess.run(
        [python, *measuring.command(CLIENTS[name].lane, phase, work)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PHASE_TIMEOUT,
        check=False,
    )
    if done.returncode:
        msg = f"{name} could not {phase}:\n{done.stderr[-4000:]}"
        raise LaneFailed(msg)
    measured = json.loads(done.stdout)
    if measured is None:
        return None
    return Run.of(
        measured["messages"],
        measured["seconds"],
        measured["cpu_seconds"],
        measured["latencies"],
    )


def run_round(
    order: Sequence[str], addresses: Mapping[str, str], amounts: Amounts, topic: str
) -> dict[str, dict[str, Run]]:
    """Run all phases, each by all clients in the given order."""
    found: dict[str, dict[str, Run]] = {name: {} for name in order}
    for phase in ("prepare", *PHASES):
        for name in order:
            work = Work(
                address=addresses[CLIENTS[name].server],
                topic=f"{topic}-{name}",
                partitions=PARTITIONS,
                messages=amounts.messages,
                body_bytes=BODY_BYTES,
                deliveries=amounts.deliveries,
                per_second=DELIVERIES_PER_SECOND,
            )
            run = run_phase(name, phase, work)
            if run is not None:
                found[name][phase] = run
                rate = f"{run.rate:,.0f}/s" if run.p50_us is None else f"p50 {run.p50_us:,.0f} us"
                say(f"  {name:16} {phase:8} {rate}")
    return found


def run_rounds(
    names: Sequence[str], addresses: Mapping[str, str], amounts: Amounts
) -> dict[str, dict[str, list[Run]]]:
    """Run the warm-up rounds and all counted rounds; return the latter."""
    runs: dict[str, dict[str, list[Run]]] = {
        name: {phase: [] for phase in PHASES} for name in names
    }
    for number in range(-amounts.warm_up, amounts.rounds):
        say(f"round {number + 1} of {amounts.rounds}" if number >= 0 else "warming up")
        order = list(names) if number % 2 == 0 else list(reversed(names))
        stamp = f"clients-{number + amounts.warm_up}"
        for name, phases in run_round(order, addresses, amounts, stamp).items():
            for phase, run in phases.items():
                if number >= 0:
                    runs[name][phase].append(run)
    return runs


def check_disk(names: Sequence[str], amounts: Amounts) -> None:
    """Check that the disk has room for all messages.

    They are not deleted before the end, as that would disturb the next client.

    Raises:
        SystemExit: there is not enough room.
    """
    rounds = amounts.warm_up + amounts.rounds
    needed = len(names) * rounds * amounts.messages * STORED_BYTES
    folder = tempfile.gettempdir()
    if shutil.disk_usage(folder).free < needed:
        sys.exit(
            f"{needed / 1e9:.0f} GB are needed in {folder}: make room, let TMPDIR name another "
            f"folder, or give fewer --messages"
        )


def options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.clients",
        description="Our client beside confluent-kafka, aiokafka and nats-py.",
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--messages", type=int, default=300_000, help="each round, each client")
    parser.add_argument("--only", metavar="NAMES", help=f"of {','.join(CLIENTS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every run and ratio")
    parser.add_argument("--quick", action="store_true", help="whether it runs at all")
    arguments = parser.parse_args()
    arguments.names = arguments.only.split(",") if arguments.only else list(CLIENTS)
    unknown = set(arguments.names) - set(CLIENTS)
    if unknown:
        parser.error(f"there is no client {min(unknown)!r}; there are {', '.join(CLIENTS)}")
    return arguments


def main() -> None:
    """Measure and print."""
    arguments = options()
    amounts = QUICK if arguments.quick else Amounts(arguments.rounds, 2, arguments.messages, 1750)
    check_disk(arguments.names, amounts)
    # Exit normally on SIGTERM, so that the servers are stopped.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    absent: dict[str, str] = {}
    calibration_ms = [machine.calibration_ms()]
    with running(arguments.names, absent) as addresses:
        names = [name for name in arguments.names if CLIENTS[name].server in addresses]
        try:
            runs = run_rounds(names, addresses, amounts)
        except (LaneFailed, servers.Unavailable) as failure:
            sys.exit(str(failure))
    calibration_ms.append(machine.calibration_ms())
    print(figures.table(runs, {name: CLIENTS[name].guarantee for name in names}))
    for server, reason in absent.items():
        print(f"not measured: {server}: {reason}")
    if arguments.json:
        document = {
            "machine": machine.facts(),
            "calibration_ms": calibration_ms,
            "amounts": amounts._asdict(),
            "versions": {
                **foreign.versions(),
                "kafka": servers.KAFKA_VERSION,
                "nats-server": servers.NATS_VERSION,
            },
            "absent": absent,
            **figures.report(runs),
        }
        arguments.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
