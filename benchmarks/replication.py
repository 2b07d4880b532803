"""Measurements of pairs of a master and a slave, ours and Apache's.

All processes run on this machine, so a slave takes processor time from its master. The runs of two
sides alternate, and each begins when the slaves of both have everything. For catching up, a slave
starts while the log is in its first file, since Apache's slaves copy only the last file at first;
then it stops, the log grows, and the time is counted from the slave's start until it has all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.beside import Beside, Plan
from benchmarks.figures import Figures
from benchmarks.scenarios import KIB, Scenario
from benchmarks.servers import HEAP, HERE, directory, ours, process, theirs
from benchmarks.tools import VERSION, BenchmarkError, Target, fill, load
from pocketmq.server.probe import NoAnswer, ask
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.codes import RequestCode
from tests.interop import apache
from tests.support.ports import free_ports

NAME: Final = "broker-a"
FIRST_MESSAGES: Final = 1_000
CAUGHT_UP_WITHIN: Final = 300.0
SHOWN: Final = {
    "per_s": "{:,.0f}/s",
    "cpu_us_per": "{:.2f} us CPU each",
    "p99_us": "p99 {:.0f} us",
}

Slave = Callable[[Path, Target], AbstractContextManager[str]]


def sends(name: str) -> Scenario:
    """Return the load of pairs and groups."""
    shape = {"conns": 4, "inflight": 64, "topics": 1, "size": KIB, "vary": 1, "forms": 1}
    text = "send 256-1,792 B, tags, keys, four clients' headers, 4 x 64"
    return Scenario(name=name, text=text, mode="send", options=shape, bars={})


@contextmanager
def our_slave(home: Path, master: Target, *, python: Path = HERE) -> Iterator[str]:
    """Run a slave of PocketMQ; yield its address."""
    home.mkdir(exist_ok=True)
    port = free_ports(10)
    command = [
        *(str(python), "-P", "-m", "pocketmq", "broker", f"--nameserver={master.nameserver}"),
        *(f"--port={port}", f"--store={home / 'store'}", f"--name={NAME}"),
        *("--set=brokerRole=SLAVE", "--set=brokerId=1"),
    ]
    with process(command, home, home / "broker.log"):
        yield f"127.0.0.1:{port}"


@contextmanager
def their_slave(home: Path, master: Target) -> Iterator[str]:
    """Run a slave of Apache RocketMQ; yield its address."""
    home.mkdir(exist_ok=True)
    port = free_ports(10)
    settings = [f"namesrvAddr={master.nameserver}", "brokerRole=SLAVE", "brokerId=1"]
    command = apache.broker_command(VERSION, home, port, settings=settings, heap=HEAP)
    with process(command, home, home / "broker.log"):
        yield f"127.0.0.1:{port}"


def log_end(address: str) -> int | None:
    """Return where a broker's log ends; None while it does not answer."""
    try:
        table = ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, KVTable, timeout=5.0).table
    except NoAnswer:
        return None
    return int(table["commitLogMaxOffset"])


def wait_until_equal(master: str, slave: str) -> int:
    """Wait until a slave has its master's log, which does not grow; return where it ends.

    Raises:
        BenchmarkError: it took too long.
    """
    end = log_end(master)
    deadline = time.monotonic() + CAUGHT_UP_WITHIN
    while end is None or log_end(slave) != end:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"the slave {slave} does not follow its master {master}")
        time.sleep(0.02)
        end = end if end is not None else log_end(master)
    return end


def asynchronous(plan: Plan) -> Beside:
    """Compare a master that has a slave with a broker that has none."""
    made = Beside(
        name="replica-async",
        text=f"{sends('').text}, ASYNC_MASTER",
        sides=("with a slave", "alone"),
        shown=SHOWN,
        bars={"per_s": 0.85},
    )
    with ExitStack() as stack:
        home = stack.enter_context(directory(plan.where))
        master = partial(ours, sync_flush=False, python=plan.python)
        options = [f"--name={NAME}", "--set=haListenPort=0"]
        paired = stack.enter_context(master(home / "paired", options=options))
        alone = stack.enter_context(master(home / "alone"))
        slave = stack.enter_context(our_slave(home / "slave", paired, python=plan.python))
        targets = dict(zip(made.sides, (paired, alone), strict=True))

        def loaded(side: str) -> Figures:
            wait_until_equal(paired.broker, slave)
            return load(sends("async"), targets[side], seconds=plan.seconds, warm=plan.settle)

        made.measure(plan.rounds, loaded)
    return made


def synchronous(plan: Plan) -> Beside:
    """Compare our SYNC_MASTER and its slave with Apache's."""
    made = Beside(
        name="replica-sync",
        text=f"{sends('').text}, SYNC_MASTER and a slave",
        sides=("PocketMQ", "Apache"),
        shown=SHOWN,
        bars={"per_s": 2.0},
    )
    with ExitStack() as stack:
        home = stack.enter_context(directory(plan.where))
        targets, slaves = _masters(stack, home, plan, role="SYNC_MASTER")
        addresses = {
            side: stack.enter_context(slave(home / f"slave-{side}", targets[side]))
            for side, slave in slaves.items()
        }
        for side, target in targets.items():
            fill(target, "first", FIRST_MESSAGES)
            wait_until_equal(target.broker, addresses[side])
        load(sends("warm-up"), targets["Apache"], seconds=plan.warm_up, warm=0.0)

        def loaded(side: str) -> Figures:
            for each, target in targets.items():
                wait_until_equal(target.broker, addresses[each])
            return load(sends("sync"), targets[side], seconds=plan.seconds, warm=plan.settle)

        made.measure(plan.rounds, loaded)
    return made


def catching_up(plan: Plan) -> Beside:
    """Compare how fast a slave copies a log, ours from our master and Apache's from Apache's."""
    made = Beside(
        name="replica-catch-up",
        text=f"a slave copies {plan.catch_up_messages:,} messages of 1 KiB",
        sides=("PocketMQ", "Apache"),
        shown={"per_s": "{:,.0f} MB/s", "seconds": "{:.1f} s"},
        bars={"per_s": 0.8},
    )
    with ExitStack() as stack:
        home = stack.enter_context(directory(plan.where))
        targets, slaves = _masters(stack, home, plan, role="ASYNC_MASTER")

        def caught_up(side: str) -> Figures:
            target = targets[side]
            place = home / f"slave-{side}"
            with slaves[side](place, target) as slave:
                begin = wait_until_equal(target.broker, slave)
            fill(target, "copied", plan.catch_up_messages)
            started = time.monotonic()
            with slaves[side](place, target) as slave:
                size = wait_until_equal(target.broker, slave) - begin
            seconds = time.monotonic() - started
            return {"per_s": size / 1e6 / seconds, "seconds": seconds}

        for target in targets.values():
            fill(target, "first", FIRST_MESSAGES)
        # Each round adds a log of the same size.
        made.measure(1 + plan.rounds // 4, caught_up)
    return made


def _masters(
    stack: ExitStack, home: Path, plan: Plan, *, role: str
) -> tuple[Mapping[str, Target], Mapping[str, Slave]]:
    """Start both masters; return them and what starts a slave of each."""
    options = [f"--name={NAME}", "--set=haListenPort=0", f"--set=brokerRole={role}"]
    settings: Sequence[str] = [f"brokerRole={role}"]
    masters = {
        "PocketMQ": stack.enter_context(
            ours(home / "pocketmq", sync_flush=False, python=plan.python, options=options)
        ),
        "Apache": stack.enter_context(theirs(home / "apache", sync_flush=False, settings=settings)),
    }
    return masters, {"PocketMQ": partial(our_slave, python=plan.python), "Apache": their_slave}


PARTS: Final[Mapping[str, Callable[[Plan], Beside]]] = {
    "replica-async": asynchronous,
    "replica-sync": synchronous,
    "replica-catch-up": catching_up,
}
