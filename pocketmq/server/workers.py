"""``pocketmq broker --workers N``: several broker processes run by one command.

A Python process uses one core, so a larger broker is several brokers: each worker has its own name
(``NAME-0``, ``NAME-1``, ...), port (in steps of ten, because the VIP port and the HA port are next
to it) and store (``DIR/NAME-0``), and all are in the route. That is how RocketMQ scales too: every
client spreads its messages over them, and administrators change a topic at every master of the
cluster. With ``brokerRole=SLAVE`` each worker copies the master of its name, so the worker of the
same number.

The supervisor in this module only starts, watches and restarts them: messages never pass through
it. A worker that dies is restarted at its old port after a delay that doubles while it keeps dying.
A worker's standard input is a pipe from the supervisor: when the supervisor ends, for whatever
reason, the workers read the end of the pipe and stop cleanly.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import structlog

from pocketmq.server.serving import Failed
from remoting.access.audit import AUTO, own_file
from remoting.addresses import address_text, parse_address
from remoting.protocol.accelerated import json_loads
from remoting.runtime.settings import ConfigError
from remoting.runtime.tasks import Supervisor

if TYPE_CHECKING:
    from broker.config import BrokerConfig

ENDING_SECONDS: Final = 5.0
"""Seconds for a worker that has closed its output to exit."""

PORT_STEP: Final = 10
"""Between the ports of two workers: the VIP port is the port less 2, the HA port is the port plus
1."""

FIRST_DELAY: Final = 0.1
"""Seconds before a worker that died is restarted."""

LONGEST_DELAY: Final = 30.0
"""The longest delay in seconds; more attempts don't fix, for example, a full disk."""

STEADY_AFTER: Final = 30.0
"""Seconds of service after which the delay starts over."""

STOP_TIMEOUT: Final = 60.0
"""Seconds for a worker's clean stop, after which it is killed; syncing to a slow disk takes time.
"""

_log = structlog.get_logger("broker")


class WorkerFailed(Failed):
    """A worker did not start; the reason is in its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerPlan:
    """How one worker is started.

    Attributes:
        name: its broker name.
        settings: RocketMQ's configuration keys; they override the file and the environment.
        options: further arguments of its command line.
    """

    name: str
    settings: Mapping[str, str]
    options: Sequence[str] = ()

    def command(self, addresses: Mapping[str, str]) -> list[str]:
        """Return the command line, with the ports of the previous process if there was one."""
        settings, options = dict(self.settings), list(self.options)
        if "broker" in addresses and settings.get("listenPort", "0") == "0":
            settings["listenPort"] = _port(addresses["broker"])
        if "metrics" in addresses:
            options += ["--metrics-port", _port(addresses["metrics"])]
        return [
            sys.executable,
            "-P",
            "-m",
            "pocketmq",
            "broker",
            *(f"--set={key}={value}" for key, value in settings.items()),
            *options,
            "--until-stdin-closes",
        ]


def plans(
    config: BrokerConfig,
    count: int,
    *,
    settings: Mapping[str, str],
    options: Sequence[str] = (),
    metrics_port: int | None = None,
) -> list[WorkerPlan]:
    """Return one plan per worker.

    Args:
        config: the common configuration, as for a single broker.
        count: number of workers.
        settings: the keys set on the command line.
        options: arguments for each worker's command line.
        metrics_port: the first worker's; each further one uses the next port. 0: any free port.

    Raises:
        ConfigError: no name is given, and the directory has stores of several brokers.
    """
    made = []
    base = config.broker_name or _kept_name(config)
    for number in range(count):
        own = dict(settings)
        name = f"{base}-{number}"
        own["brokerName"] = name
        own["storePathRootDir"] = str(config.store_path_root_dir / name)
        if config.store_path_commit_log is not None:
            own["storePathCommitLog"] = str(config.store_path_commit_log / name)
        if config.listen_port:
            own["listenPort"] = str(config.listen_port + PORT_STEP * number)
        if config.advertised_port is not None:
            own["pocketmqAdvertisedPort"] = str(config.advertised_port + PORT_STEP * number)
        if config.ha_listen_port:
            own["haListenPort"] = str(config.ha_listen_port + PORT_STEP * number)
        if config.ha_master_address:
            host, port = parse_address(config.ha_master_address)
            own["haMasterAddress"] = address_text((host, port + PORT_STEP * number))
        if config.audit_log != AUTO:
            own["pocketmqAuditLog"] = own_file(config.audit_log, str(number))
        words = list(options)
        if metrics_port is not None:
            words += ["--metrics-port", str(metrics_port + number if metrics_port else 0)]
        made.append(WorkerPlan(name=name, settings=own, options=words))
    return made


def _kept_name(config: BrokerConfig) -> str:
    """Return the common name of the workers' stores; without stores, a new store's name."""
    stores = _stores(config.store_path_root_dir)
    names = {store.removesuffix("-0") for store in stores if store.endswith("-0")}
    if len(names) > 1:
        raise ConfigError(
            f"{config.store_path_root_dir} holds the stores of several brokers "
            f"({', '.join(sorted(names))}): choose one with --name"
        )
    return names.pop() if names else config.name_of_new_store


def _stores(root: Path) -> set[str]:
    """Return the names of the workers' stores in a directory; each is named like its broker."""
    return {path.parent.name for path in root.glob("*-[0-9]*/config")}


def unopened_stores(plans: Sequence[WorkerPlan]) -> list[str]:
    """Return the names of stores in the workers' directory that no worker opens.

    These are stores with higher numbers or, if all stores of these workers are new, with another
    name.
    """
    opened = {plan.name for plan in plans}
    stores = _stores(Path(plans[0].settings["storePathRootDir"]).parent)
    base = plans[0].name.removesuffix("-0")
    is_new = not stores & opened
    return sorted(name for name in stores - opened if is_new or name.rpartition("-")[0] == base)


def next_delay(delay: float, served: float) -> float:
    """Return the delay in seconds before the next start of a worker.

    Args:
        delay: the previous delay; 0 for the first failure.
        served: seconds for which it was ready.
    """
    if not delay or served >= STEADY_AFTER:
        return FIRST_DELAY
    return min(delay * 2, LONGEST_DELAY)


def facts_of(line: str) -> dict[str, str]:
    """Return the names and addresses of a ready line in either form, or an empty dict."""
    if line.startswith("ready: "):
        pairs = (part.rpartition(" ") for part in line.removeprefix("ready: ").split(", "))
        return {name: address.strip() for name, _, address in pairs}
    try:
        facts = json_loads(line.encode())
    except ValueError:
        return {}
    if not isinstance(facts, dict) or facts.get("event") != "ready":
        return {}
    return {name: str(value) for name, value in facts.items() if name not in {"event", "pid"}}


class BrokerWorker:
    """One worker, across restarts of its process.

    Args:
        plan: how it is started.
        now: returns seconds of a monotonic clock.
    """

    def __init__(self, plan: WorkerPlan, now: Callable[[], float]) -> None:
        self.plan = plan
        self.addresses: dict[str, str] = {}
        self._now = now
        self._process: subprocess.Process | None = None
        self._ready_at = 0.0

    async def start(self) -> None:
        """Start the process and wait until it is ready.

        Raises:
            WorkerFailed: the process ended before that.
        """
        self._process = process = await asyncio.create_subprocess_exec(
            *self.plan.command(self.addresses),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # A new session, so that Ctrl-C at the terminal reaches only the supervisor.
            start_new_session=True,
        )
        assert process.stdout is not None
        facts = facts_of((await process.stdout.readline()).decode(errors="replace"))
        if not facts:
            code = await self._end(process)
            raise WorkerFailed(
                f"the worker {self.plan.name} did not start (exit code {code}); its log says why"
            )
        self.addresses = facts
        self._ready_at = self._now()

    async def keep(self) -> None:
        """Restart the process whenever it ends, until cancelled."""
        delay = 0.0
        serves = True
        while True:
            assert self._process is not None
            code = await self._process.wait()
            delay = next_delay(delay, self._now() - self._ready_at if serves else 0.0)
            _log.error(
                "a worker died and is started again",
                worker=self.plan.name,
                exit_code=code,
                delay_s=delay,
            )
            await asyncio.sleep(delay)
            try:
                await self.start()
            except (OSError, WorkerFailed) as problem:
                serves = False
                _log.error("a worker can't be started", worker=self.plan.name, why=str(problem))
            else:
                serves = True
                _log.info(
                    "worker restarted", worker=self.plan.name, broker=self.addresses["broker"]
                )

    async def _end(self, process: subprocess.Process) -> int:
        """Return the exit code of a process that has closed its output.

        It usually exits by itself. Sending it a signal meanwhile may lose its exit code: ``Popen``
        polls the process before it sends the signal, and the waiter then doesn't get the code.
        """
        try:
            async with asyncio.timeout(ENDING_SECONDS):
                return await process.wait()
        except TimeoutError:
            return await self.stop()

    async def stop(self) -> int:
        """Stop the process cleanly, or kill it after STOP_TIMEOUT; return its exit code."""
        process = self._process
        if process is None:
            return 0
        if process.returncode is None:
            process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT):
                return await process.wait()
        except TimeoutError:
            _log.error("killed a worker that didn't stop", worker=self.plan.name)
            process.kill()
            return await process.wait()


class WorkersPart:
    """All workers, as one part of the supervisor's process.

    Args:
        plans: one per worker.
    """

    def __init__(self, plans: Sequence[WorkerPlan]) -> None:
        self._plans = plans
        self._workers: list[BrokerWorker] = []
        self._tasks: Supervisor | None = None

    async def start(self) -> None:
        """Start all workers concurrently.

        Raises:
            WorkerFailed: a worker didn't start.
        """
        if stores := unopened_stores(self._plans):
            _log.warning(
                "stores that no worker opens, so nobody reads their messages: if that is not "
                "intended, start the broker with their --name and as many --workers as before",
                stores=" ".join(stores),
            )
        now = asyncio.get_running_loop().time
        self._tasks = Supervisor("workers")
        self._workers = [BrokerWorker(plan, now) for plan in self._plans]
        starts = await asyncio.gather(
            *(worker.start() for worker in self._workers), return_exceptions=True
        )
        for result in starts:
            if isinstance(result, BaseException):
                raise result
        for worker in self._workers:
            self._tasks.spawn(worker.keep(), f"worker {worker.plan.name}")

    async def stop(self) -> None:
        """Stop all workers concurrently, also after a failed start."""
        if self._tasks is not None:
            await self._tasks.close()
        await asyncio.gather(*(worker.stop() for worker in self._workers))

    def ready(self) -> Mapping[str, str]:
        """Return the addresses by kind, joined by semicolons as in RocketMQ's lists."""
        names = dict.fromkeys(name for worker in self._workers for name in worker.addresses)
        return {
            name: ";".join(worker.addresses[name] for worker in self._workers) for name in names
        }

    def failures(self) -> Sequence[asyncio.Future[None]]:
        """Return a future that gets an exception if supervising fails.

        A worker that dies is restarted instead.
        """
        return [self._tasks.failed] if self._tasks is not None else []


def _port(address: str) -> str:
    return address.rpartition(":")[2].rstrip("/")
