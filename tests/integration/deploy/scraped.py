"""A group of a master with traffic of every kind and a slave, scraped by a real Prometheus."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import client
from broker.config import BrokerConfig
from nameserver.config import NameServerConfig
from pocketmq import certificates
from pocketmq.server.metrics import MetricsPart
from pocketmq.server.serving import BrokerPart, servers_of, standalone_parts
from pocketmq.testing import SMALL_STORE
from tests.harness.controller import ControllerServer
from tests.support.ports import free_port
from tests.support.tour import HOME
from tests.support.waiting import until

ALERTS = HOME / "deploy" / "alerts.yml"
SCRAPING = HOME / "deploy" / "prometheus.yml"
READY_WITHIN = 30.0
SCRAPED_WITHIN = 60.0

Vector = list[dict[str, Any]]


@dataclass(frozen=True)
class Scraped:
    """What Prometheus returned.

    Attributes:
        samples: expression -> its samples; an expression without any is left out.
        rules: the alert rules with their health.
    """

    samples: Mapping[str, Vector]
    rules: Vector

    def complete(self, expressions: Collection[str]) -> bool:
        """Return whether there are samples for all expressions, and every rule was evaluated."""
        return self.samples.keys() == set(expressions) and all(
            rule["health"] != "unknown" for rule in self.rules
        )


@dataclass(frozen=True)
class Prometheus:
    """A running Prometheus."""

    address: str

    def wait_until_ready(self) -> None:
        """Wait until it answers queries."""
        deadline = time.monotonic() + READY_WITHIN
        while True:
            try:
                with urllib.request.urlopen(f"http://{self.address}/-/ready", timeout=10):
                    return
            except OSError:
                assert time.monotonic() < deadline, "Prometheus doesn't get ready"
                time.sleep(0.05)

    def get(self, path: str, **parameters: str) -> Any:
        """Return the data of a request to its HTTP API."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=10) as answer:
            return json.load(answer)["data"]

    def query(self, expression: str) -> Vector:
        """Return the samples that an expression has now, but NaN."""
        found = self.get("query", query=expression)["result"]
        return [one for one in found if not math.isnan(float(one["value"][1]))]

    def ask(self, expressions: Collection[str]) -> Scraped:
        """Return the samples of all expressions, and the rules."""
        found = {expression: self.query(expression) for expression in expressions}
        groups = self.get("rules")["groups"]
        return Scraped(
            {expression: samples for expression, samples in found.items() if samples},
            [rule for group in groups for rule in group["rules"]],
        )


@contextmanager
def prometheus(home: Path, targets: Sequence[str]) -> Iterator[Prometheus]:
    """Run Prometheus with our configuration for a broker and its slave; killed at the end."""
    config = yaml.safe_load(SCRAPING.read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms"}
    config["rule_files"] = [str(ALERTS)]
    [job] = config["scrape_configs"]
    job["static_configs"] = [{**job["static_configs"][0], "targets": targets}]
    (home / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (home / "prometheus.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *("prometheus", f"--config.file={home / 'prometheus.yml'}"),
                *(f"--storage.tsdb.path={home / 'data'}", f"--web.listen-address={address}"),
            ],
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        yield Prometheus(address)
    finally:
        process.kill()
        process.wait()


async def scrape(home: Path, expressions: Collection[str]) -> Scraped:
    """Run a group with traffic, and Prometheus until all expressions have samples.

    After ``SCRAPED_WITHIN`` seconds the samples are returned as they are.
    """
    async with ControllerServer() as controller:
        return await _scrape(home, expressions, controller)


async def _scrape(
    home: Path, expressions: Collection[str], controller: ControllerServer
) -> Scraped:
    parts = standalone_parts(
        NameServerConfig(listen_port=0, kv_config_path=home / "kv.json"),
        BrokerConfig.from_sources(
            overrides={
                **SMALL_STORE,
                **certificates.make(home / "tls").settings,
                **_group(controller),
                "storePathRootDir": str(home / "store"),
                "transactionTimeOut": "500",
                "transactionCheckInterval": "500",
                "transactionCheckMax": "1000000",
            }
        ),
    )
    serving = MetricsPart(parts, host="127.0.0.1", port=0)
    await serving.start()
    try:
        [name_server], [broker] = servers_of(parts)
        await until(lambda: controller.model.master is not None, READY_WITHIN)
        settings = {
            **SMALL_STORE,
            **_group(controller),
            "namesrvAddr": name_server.address,
            "storePathRootDir": str(home / "slave"),
        }
        part = BrokerPart(BrokerConfig.from_sources(overrides=settings))
        slave = MetricsPart([part], host="127.0.0.1", port=0)
        async with AsyncExitStack() as stack:
            await slave.start()
            stack.push_async_callback(slave.stop)
            await until(lambda: len(controller.model.members) == 2, READY_WITHIN)
            producer = await _use_everything(name_server.address, stack)
            targets = [serving.address, slave.address]
            server = stack.enter_context(prometheus(home, targets))
            await asyncio.to_thread(server.wait_until_ready)
            deadline = time.monotonic() + SCRAPED_WITHIN
            while True:
                for _ in range(20):
                    await producer.send("orders", b"more", tag="paid")
                await broker.processors.sampler.sample_lags()
                scraped = await asyncio.to_thread(server.ask, expressions)
                if scraped.complete(expressions) or time.monotonic() > deadline:
                    return scraped
    finally:
        await serving.stop()


def _group(controller: ControllerServer) -> dict[str, str]:
    return {
        "brokerName": "broker-a",
        "enableControllerMode": "true",
        "controllerAddr": controller.address,
        "listenPort": "0",
        "haListenPort": "0",
    }


async def _use_everything(nameserver: str, stack: AsyncExitStack) -> client.Producer[bytes]:
    """Leave a lagging group, dead letters, an open half message, timers and a group's problem."""
    enter = stack.enter_async_context
    admin = await enter(client.Admin(nameserver))
    for topic in ("orders", "bad"):
        await admin.create_topic(topic, queues=1)
    unknown = client.TransactionState.UNKNOWN
    producer = await enter(
        client.Producer(nameserver, group="shop", transaction_checker=lambda _: unknown)
    )
    for number in range(50):
        await producer.send("orders", b"%d" % number, tag="paid")
    await producer.send("bad", b"x")
    await producer.send("orders", b"level", delay_level=10)
    await producer.send("orders", b"timer", delay=3600)
    await producer.send("orders", b"now", delay=1)
    half = await enter(producer.transaction("orders", b"half"))
    await half.defer()
    lagging = await enter(client.PullConsumer(nameserver, group="billing", start_from=client.BEGIN))
    lagging.assign(await lagging.queues("orders"))
    await lagging.get_many(10, timeout=10)
    await lagging.commit()
    dead = asyncio.Event()

    async def give_up(_: object) -> None:
        dead.set()
        raise client.DeadLetter("unreadable")

    await enter(
        client.PushConsumer(
            nameserver,
            group="failing",
            subscribe={"bad": "*"},
            handler=give_up,
            start_from=client.FIRST,
        )
    )
    for expression in ("*", "paid"):
        await enter(
            client.PushConsumer(
                nameserver,
                group="quarrel",
                subscribe={"orders": expression},
                handler=lambda _: None,
                on_conflict="warn",
            )
        )
    async with asyncio.timeout(30):
        await dead.wait()
    return producer
