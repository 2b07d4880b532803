"""Settings changed at run time, at a whole broker with its fast path and a name server."""

from __future__ import annotations

import pytest

from broker.errors import StartError
from nameserver.app import NameServer
from nameserver.config import NameServerConfig
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.route import TopicRouteData
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers import admin
from tests.integration.broker.client import Client, bodies


async def update(client: Client, text: str) -> None:
    reply = await client.ask(Command.request(RequestCode.UPDATE_BROKER_CONFIG, body=text.encode()))
    assert (reply.code, reply.remark) == (0, None)


async def test_a_change_applies_to_running_pulls_and_survives_a_restart(make_broker, connect):
    async with make_broker() as broker:
        client = await connect(broker)
        for _ in range(3):
            await client.send()
        for _ in range(2):
            assert len(bodies(await client.pull())) == 3
        await update(client, "pocketmqPullMaxMessages=2\nfileReservedTime=7")
        assert len(bodies(await client.pull())) == 2
        assert broker.state.config.file_reserved_time_hours == 7
    async with make_broker() as again:
        assert again.config.file_reserved_time_hours == 7
        assert len(bodies(await (await connect(again)).pull())) == 2


async def test_a_broker_without_write_permission_is_so_in_the_route(tmp_path, make_broker, connect):
    config = NameServerConfig.from_sources(
        None, {}, {"listenPort": "0", "kvConfigPath": str(tmp_path / "kv.json")}
    )
    async with NameServer(config) as names:
        broker = make_broker(namesrv_addr=(names.address,))
        await broker.start()
        client, to_names = await connect(broker), Client()
        to_names.connection = await to_names.pool.get(names.address)
        await client.send("T")

        async def perm() -> int:
            header = admin.GetRouteInfoRequestHeader(topic="TBW102")
            reply = await to_names.ask(Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header))
            return decode(TopicRouteData, reply.body).queue_datas[0].perm

        assert await perm() == 7
        await update(client, "brokerPermission=4")
        assert await perm() == 4
        await update(client, "brokerPermission=6")
        assert await perm() == 7
        await to_names.pool.close()


async def test_saved_settings_that_no_longer_fit_are_a_one_line_error(make_broker, connect):
    async with make_broker() as broker:
        await update(await connect(broker), "diskMaxUsedSpaceRatio=88")
    with pytest.raises(StartError, match=r"brokerSettings\.json .* diskSpaceWarningLevelRatio"):
        await make_broker(disk_space_warning_level_ratio=80).start()
