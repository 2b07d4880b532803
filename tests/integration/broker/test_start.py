"""Starts that fail, starts that take long, and the VIP port."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broker.errors import StartError
from broker.store.os_files import Files
from broker.store.results import StoreError
from remoting.errors import BindFailed
from remoting.protocol.queue import MessageQueue
from tests.integration.broker.client import TIMEOUT, Client, bodies
from tests.support.clock import ManualClock
from tests.support.ports import free_ports
from tests.unit.broker.harness import heartbeat

# --- a start that can't be


async def test_a_port_in_use_is_a_one_line_error(broker, make_broker, tmp_path):
    other = make_broker(listen_port=broker.port, store_path_root_dir=tmp_path / "other")
    with pytest.raises(BindFailed, match="choose another port"):
        await other.start()


async def test_a_store_in_use_is_a_one_line_error(broker, make_broker):
    with pytest.raises(StoreError, match="another broker has the store"):
        await make_broker().start()


async def test_a_store_that_is_not_a_directory_is_a_one_line_error(make_broker, tmp_path):
    (tmp_path / "file").write_text("")
    other = make_broker(store_path_root_dir=tmp_path / "file")
    with pytest.raises(StoreError, match="can't be opened"):
        await other.start()


async def test_an_unknown_advertised_host_is_a_one_line_error(make_broker):
    other = make_broker(broker_ip1="no-such-host.invalid")
    with pytest.raises(StartError, match="brokerIP1"):
        await other.start()


async def test_a_failed_start_leaves_nothing_behind(make_broker, tmp_path):
    broken = tmp_path / "store" / "config"
    broken.mkdir(parents=True)
    for name in ("topics.json", "topics.json.bak"):
        (broken / name).write_text("{")
    with pytest.raises(StoreError):
        async with make_broker():
            pass
    for path in broken.iterdir():
        path.unlink()
    async with make_broker():
        pass


class WaitingFiles(Files):
    """A disk that blocks until released."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.may = threading.Event()
        self.loop = asyncio.get_running_loop()

    def make_directory(self, path: Path, *, durable: bool = False) -> None:
        self.loop.call_soon_threadsafe(self.asked.set)
        self.may.wait(TIMEOUT)
        super().make_directory(path, durable=durable)


async def test_requests_during_the_start_are_answered_busy(make_broker, connect):
    files = WaitingFiles()
    broker = make_broker(files=files)
    starting = asyncio.ensure_future(broker.start())
    await files.asked.wait()
    client = await connect(broker)
    assert (await client.send()).code == 2
    files.may.set()
    await starting
    assert (await client.send()).code == 0


async def test_a_start_that_is_cancelled_twice_leaves_the_store_closed(make_broker):
    files = WaitingFiles()
    broker = make_broker(files=files)
    starting = asyncio.ensure_future(broker.start())
    await files.asked.wait()
    for _ in range(2):
        starting.cancel()
        await asyncio.sleep(0)
    files.may.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await broker.stop()
    async with make_broker():
        pass


# --- the other port


async def test_the_vip_port_takes_sends_and_pulls(make_broker, connect):
    broker = make_broker(listen_port=free_ports(3))
    await broker.start()
    client = Client()
    client.connection = await client.pool.get(f"127.0.0.1:{broker.port - 2}")
    assert (await client.send()).code == 0
    assert (await client.pull()).code == 0
    await client.pool.close()


async def test_a_vip_port_in_use_is_only_a_warning(make_broker, connect):
    port = free_ports(3)
    taken = await asyncio.start_server(lambda *_: None, "127.0.0.1", port - 2)
    broker = make_broker(listen_port=port)
    with capture_logs() as logs:
        await broker.start()
    assert any("vipChannelEnabled" in entry["event"] for entry in logs)
    assert (await (await connect(broker)).send()).code == 0
    taken.close()
    await taken.wait_closed()


# --- background tasks


async def test_the_death_of_a_task_is_reported_to_the_owner(broker):
    parked, broker.state.long_polls = broker.state.long_polls, None
    with pytest.raises(AttributeError, match="expired"):
        await asyncio.wait_for(broker.failed, TIMEOUT)
    broker.state.long_polls = parked


async def test_silent_clients_and_expired_locks_are_removed(make_broker, connect):
    clock = ManualClock()
    broker = make_broker(clock=clock)
    await broker.start()
    client = await connect(broker)
    await client.ask(heartbeat(producers=["pg"]))
    queue = MessageQueue("T", "broker-a", 0)
    broker.state.locks.lock("g", "a", [queue], broker.state.monotonic_ms)
    clock.advance(121)
    broker.processors.clients.scan()
    assert broker.state.producers.groups == {}
    assert len(broker.state.locks) == 0
    await asyncio.wait_for(client.connection.wait_closed(), TIMEOUT)


async def test_rates_are_sampled_from_the_counters(broker, connect):
    client = await connect(broker)
    await client.send()
    broker.processors.sampler.sample_rates()
    assert float(broker.processors.sampler.rates.per_second("put").split(" ")[0]) > 0


async def test_what_was_recovered_after_a_crash_is_logged(make_broker, connect, tmp_path):
    first = make_broker()
    await first.start()
    await (await connect(first)).send()
    await first.stop()
    (tmp_path / "store" / "abort").write_bytes(b"")
    second = make_broker()
    with capture_logs() as logs:
        await second.start()
    assert [entry["clean"] for entry in logs if entry["event"] == "store open"] == [False]
    assert len(bodies(await (await connect(second)).pull())) == 1


async def test_settings_without_effect_are_listed_in_one_line(make_broker):
    broker = make_broker(ignored_keys=("slaveTimeout", "haMaxTimeSlaveNotCatchup"))
    with capture_logs() as logs:
        await broker.start()
    (entry,) = [entry for entry in logs if "without effect" in entry["event"]]
    assert entry["keys"] == "slaveTimeout haMaxTimeSlaveNotCatchup"
