"""A running name server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broker.registration import Announcement
from nameserver.app import NameServer
from nameserver.config import NameServerConfig
from nameserver.state import StateFileError
from remoting.blocking import BlockingConnection
from remoting.counters import CloseReason
from remoting.errors import BindFailed, ConnectFailed
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.stats import TopicList
from remoting.protocol.bodies.topic import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.frame import cut
from remoting.protocol.headers.admin import PutKVConfigRequestHeader
from tests.support.clock import ManualClock

NewServer = Callable[..., Awaitable[NameServer]]
ANNOUNCEMENT = Announcement(
    cluster="c", broker_name="broker-a", broker_id=0, address="1.1.1.1:1", ha_address="1.1.1.1:2"
)
TOPICS = TopicConfigSerializeWrapper({"t": TopicConfig("t")}, DataVersion(1, 1))


def put(key: str) -> Command:
    header = PutKVConfigRequestHeader(namespace="ns", key=key, value="v")
    return Command.request(RequestCode.PUT_KV_CONFIG, header)


async def test_port_0_picks_a_free_one(new_server: NewServer) -> None:
    one, two = await new_server(), await new_server()
    assert one.port != two.port != 0
    assert one.address == f"127.0.0.1:{one.port}"


async def test_a_stopped_server_takes_no_connection(new_server: NewServer, client: Any) -> None:
    server = await new_server()
    connection = await client.pool.get(server.address)
    await server.stop()
    await connection.wait_closed()
    with pytest.raises(ConnectFailed):
        await client.pool.get(server.address)
    await server.stop()


async def test_a_port_in_use_is_a_clear_error(new_server: NewServer) -> None:
    server = await new_server()
    with pytest.raises(BindFailed, match="another process listens there"):
        await new_server(listen_port=server.port)


async def test_an_unreadable_key_value_file_is_a_clear_error(
    new_server: NewServer, tmp_path: Path
) -> None:
    (tmp_path / "kv.json").write_text("{broken")
    with pytest.raises(StateFileError, match=r"kv\.json.*Restore the file from a copy"):
        await new_server(kv_config_path=tmp_path / "kv.json")


async def test_entries_survive_a_restart_and_many_at_once_are_all_kept(
    new_server: NewServer, client: Any, tmp_path: Path
) -> None:
    path = tmp_path / "deep" / "kv.json"
    server = await new_server(kv_config_path=path)
    keys = [f"k{n}" for n in range(20)]
    replies = await asyncio.gather(*(client.ask(server, put(key)) for key in keys))
    assert {reply.code for reply in replies} == {ResponseCode.SUCCESS}
    await server.stop()
    again = await new_server(kv_config_path=path)
    assert sorted(again.state.kv.entries("ns")) == sorted(keys)
    assert set(json.loads(path.read_text())["configTable"]["ns"]) == set(keys)


async def test_a_request_that_cannot_be_understood_is_answered_and_the_connection_stays(
    new_server: NewServer, client: Any
) -> None:
    server = await new_server()
    reply = await client.ask(server, Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC))
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "topic" in (reply.remark or "")
    assert await client.route(server, "t") is None
    assert server.counters.connections_accepted == 1


async def test_a_oneway_request_is_never_answered(new_server: NewServer, client: Any) -> None:
    server = await new_server()
    connection = await client.pool.get(server.address)
    connection.send_oneway(Command.request(999, oneway=True))
    assert (await connection.request(Command.request(998), timeout=30)).code == 3
    assert client.pool.counters.frames_in == 1


async def test_garbage_ends_its_connection_only(new_server: NewServer, client: Any) -> None:
    server = await new_server()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"\xff" * 64)
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    assert server.counters.dropped[CloseReason.BAD_FRAME] == 1
    assert await client.route(server, "t") is None


async def test_captured_frames_of_a_java_client_are_answered_over_the_wire(
    new_server: NewServer, golden: Path
) -> None:
    server = await new_server()
    lines = (golden / "frames" / "route_json_dialects.jsonl").read_text().splitlines()
    record = json.loads(lines[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(bytes.fromhex(record["frame_hex"]))
    received = b""
    while (frame := cut(received)) is None:
        received += await reader.read(65_536)
    header = json.loads(bytes(frame.header))
    assert (header["opaque"], header["code"]) == (record["opaque"], ResponseCode.TOPIC_NOT_EXIST)
    writer.close()
    await writer.wait_closed()


async def test_a_broker_that_stops_sending_is_removed_by_the_scan(client: Any) -> None:
    clock = ManualClock()
    config = NameServerConfig(listen_port=0, kv_config_path=Path("/nonexistent/kv.json"))
    config = replace(config, scan_not_active_broker_interval_ms=10)
    async with NameServer(config, clock=clock) as server:
        connection = await client.pool.get(server.address)
        await connection.request(ANNOUNCEMENT.register(TOPICS), timeout=30)
        clock.advance(119)
        server.state.scan()
        assert server.state.routes.brokers()
        clock.advance(2)
        await connection.wait_closed()
        assert not server.state.routes.brokers()


async def test_a_blocking_connection_is_served_too(new_server: NewServer) -> None:
    server = await new_server()

    def topic_list() -> bytes:
        with BlockingConnection(server.address, timeout=30) as connection:
            command = Command.request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
            return bytes(connection.request(command, timeout=30).body)

    assert await asyncio.to_thread(topic_list) == encode(TopicList([]))


async def test_settings_without_effect_and_an_open_address_are_logged(tmp_path: Path) -> None:
    overrides = {
        "listenPort": "0",
        "kvConfigPath": str(tmp_path / "kv.json"),
        "clusterTest": "true",
        "pocketmqBindHost": "0.0.0.0",
    }
    with capture_logs() as logs:
        async with NameServer(NameServerConfig.from_sources(None, {}, overrides)):
            pass
    events = {entry["event"]: entry for entry in logs}
    assert events["settings without effect"]["keys"] == ["clusterTest"]
    open_to_all = next(entry for entry in logs if entry["log_level"] == "warning")
    assert "set aclEnable=true" in open_to_all["event"]
    assert "name server stopped" in events


async def test_the_failure_of_a_background_task_is_raised(
    new_server: NewServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await new_server(scan_not_active_broker_interval_ms=1)

    def broken(_: int) -> None:
        raise RuntimeError("the scan is broken")

    monkeypatch.setattr(server.state.routes, "scan", broken)
    with pytest.raises(RuntimeError, match="the scan is broken"):
        await server.failed
