"""Two workers of one command, one of them killed under load."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import client
from pocketmq.testing import SMALL_STORE, ServerError, ServerProcess
from remoting.addresses import parse_address
from tests.chaos.load import BACK_WITHIN, PATIENCE, Load, stored_numbers
from tests.harness.processes import options
from tests.support.ports import free_port, free_ports
from tests.support.sizes import size
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(300)

ROUNDS = size(test=2, ci=4, soak=30)
TOPIC = "numbers"
QUEUES = 4
"""The queues of the topic, two at each worker."""


@contextmanager
def workers(
    store: Path, *, count: int = 2, replicates: bool = False
) -> Iterator[tuple[str, ServerProcess]]:
    """Run a name server and a broker of two workers, SYNC_MASTERs if it ``replicates``.

    Yield the name server's address, and the broker.
    """
    port, broker_port = free_port(), free_ports(10 * count + 3)
    role = {"brokerRole": "SYNC_MASTER", "haListenPort": broker_port + 1} if replicates else {}
    address = f"127.0.0.1:{port}"
    nameserver = ServerProcess(
        ["nameserver", f"--port={port}", f"--set=kvConfigPath={store / 'kvConfig.json'}"]
    )
    broker = ServerProcess(
        [
            *("broker", f"--nameserver={address}", "--name=w", f"--workers={count}"),
            *(f"--port={broker_port}", f"--store={store}"),
            *options({**SMALL_STORE, **role}),
        ]
    )
    try:
        nameserver.start()
        broker.start()
        yield address, broker
        broker.stop()
    finally:
        broker.kill()
        nameserver.kill()


def processes_of(supervisor: ServerProcess) -> list[int]:
    """Return the workers' process ids."""
    children = Path(f"/proc/{supervisor.pid}/task/{supervisor.pid}/children").read_text()
    return [int(child) for child in children.split()]


async def test_the_workers_of_a_slave_copy_those_of_the_master_by_one_command(
    tmp_path: Path,
) -> None:
    with workers(tmp_path / "master", replicates=True) as (address, master):
        first = parse_address(master.addresses["broker"].split(";")[0])
        slave = ServerProcess(
            [
                *("broker", f"--nameserver={address}", "--name=w", "--workers=2", "--id=1"),
                *(f"--port={free_ports(23)}", f"--store={tmp_path / 'slave'}"),
                f"--set=haMasterAddress={first[0]}:{first[1] + 1}",
                *options({**SMALL_STORE, "brokerRole": "SLAVE"}),
            ]
        )
        try:
            slave.start()
            async with client.Admin(address, request_timeout=PATIENCE) as admin:
                await admin.create_topic(TOPIC, queues=QUEUES // 2)
                queues = await admin.queues(TOPIC)
                assert {queue.broker_name for queue in queues} == {"w-0", "w-1"}
                async with client.Producer(address, group="load") as producer:

                    async def acknowledged() -> bool:
                        sent = [await producer.send(TOPIC, b"x" * 99, queue=one) for one in queues]
                        return {receipt.status for receipt in sent} == {client.SendStatus.OK}

                    await until(acknowledged, BACK_WITHIN)
                ends = {
                    one.name: int((await admin.broker_runtime(one.address))["commitLogMaxOffset"])
                    for one in await admin.brokers()
                    if one.id == 0
                }
            slave.stop()
        finally:
            slave.kill()
    assert ends.keys() == {"w-0", "w-1"}
    for name, end in ends.items():
        logs = [tmp_path / role / name / "commitlog" / f"{0:020}" for role in ("master", "slave")]
        one, other = (log.read_bytes()[:end] for log in logs)
        assert one == other
        assert any(one)


async def test_a_killed_worker_loses_nothing_acknowledged_and_clients_continue(
    tmp_path: Path,
) -> None:
    with workers(tmp_path) as (address, broker):
        async with client.Admin(address, request_timeout=PATIENCE) as admin:
            await admin.create_topic(TOPIC, queues=QUEUES // 2)
            queues = await admin.queues(TOPIC)
        assert {queue.broker_name for queue in queues} == {"w-0", "w-1"}
        async with client.Producer(address, group="load") as producer:
            load = Load(producer, TOPIC)
            task = asyncio.create_task(load.run())
            try:
                for number in range(ROUNDS):
                    await load.wait_for(200)
                    victim = processes_of(broker)[number % 2]
                    os.kill(victim, signal.SIGKILL)
                    async with asyncio.timeout(BACK_WITHIN):
                        await load.wait_for(200)
                    await until_both_serve(address, broker, without=victim)
            finally:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        async with asyncio.timeout(30):
            stored = await stored_numbers(address, TOPIC)

    assert load.acknowledged <= set(stored)
    assert (tmp_path / "w-0" / "commitlog").is_dir()
    assert (tmp_path / "w-1" / "commitlog").is_dir()


async def until_both_serve(address: str, broker: ServerProcess, *, without: int) -> None:
    """Wait until the killed worker's successor is in the route."""
    async with asyncio.timeout(20), client.Admin(address, request_timeout=PATIENCE) as admin:
        while without in processes_of(broker) or len(await admin.queues(TOPIC)) < QUEUES:  # noqa: ASYNC110 - another process has no event to await
            await asyncio.sleep(0.02)


async def test_a_topic_is_created_changed_and_deleted_at_every_worker(tmp_path: Path) -> None:
    with workers(tmp_path) as (address, _):
        async with client.Admin(address, request_timeout=PATIENCE) as admin:
            await admin.create_topic("orders", queues=3)
            assert len(await admin.queues("orders")) == 6
            await admin.update_topic("orders", read_queues=5, write_queues=5)

            async def is_changed() -> bool:
                return len(await admin.queues("orders")) == 10

            # A broker answers although a name server is slow to take the change.
            await until(is_changed, PATIENCE)
            await admin.delete_topic("orders")
            assert "orders" not in await admin.topics()


def test_the_ready_line_names_every_worker_ten_ports_apart(tmp_path: Path) -> None:
    with workers(tmp_path) as (_, broker):
        addresses = broker.addresses["broker"].split(";")
    first, second = (int(address.rpartition(":")[2]) for address in addresses)
    assert second == first + 10


def test_workers_stop_when_their_supervisor_is_killed(tmp_path: Path) -> None:
    with workers(tmp_path) as (_, broker):
        children = processes_of(broker)
        broker.kill()
        for child in children:
            # Grandchildren can't be waited for otherwise.
            subprocess.run(["tail", f"--pid={child}", "-f", "/dev/null"], check=True, timeout=20)


def test_a_worker_that_cannot_start_stops_the_others_and_is_reported(tmp_path: Path) -> None:
    (tmp_path / "w-1").write_text("in the way")
    with pytest.raises(ServerError) as caught, workers(tmp_path):
        pass
    assert str(tmp_path / "w-1") in str(caught.value)
    assert "the worker w-1 did not start (exit code 1)" in str(caught.value)
