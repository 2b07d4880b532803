"""Changed entries and settings are returned and saved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from nameserver.config import NameServerConfig
from nameserver.state import SharedState
from remoting.protocol.bodies import decode, properties_text
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers import admin
from tests.support.clock import ManualClock
from tests.unit.nameserver.commands import ERROR, SUCCESS, Ask, put, register


class TestKeyValues:
    def get(self, ask: Ask, key: str) -> Command:
        header = admin.KVKeyRequestHeader(namespace="ns", key=key)
        return ask(Command.request(RequestCode.GET_KV_CONFIG, header))

    def test_an_entry_is_on_disk_when_it_is_answered(
        self, ask: Ask, config: NameServerConfig, clock: ManualClock
    ) -> None:
        assert ask(put("ns", "k", "wört")).code == SUCCESS
        assert dict(self.get(ask, "k").all_pairs() or ()) == {"value": "wört"}
        assert SharedState.load(config, clock).kv.get("ns", "k") == "wört"

    def test_a_deleted_entry_is_gone(
        self, ask: Ask, config: NameServerConfig, clock: ManualClock
    ) -> None:
        ask(put("ns", "k", "v"))
        header = admin.KVKeyRequestHeader(namespace="ns", key="k")
        for _ in range(2):
            assert ask(Command.request(RequestCode.DELETE_KV_CONFIG, header)).code == SUCCESS
        assert self.get(ask, "k").code == ResponseCode.QUERY_NOT_FOUND
        assert SharedState.load(config, clock).kv.get("ns", "k") is None

    def test_a_namespace_is_listed(self, ask: Ask) -> None:
        header = admin.GetKVListByNamespaceRequestHeader(namespace="ns")
        command = Command.request(RequestCode.GET_KVLIST_BY_NAMESPACE, header)
        assert ask(command).code == ResponseCode.QUERY_NOT_FOUND
        ask(put("ns", "k", "v"))
        assert decode(KVTable, ask(command).body).table == {"k": "v"}

    def test_an_entry_that_cannot_be_saved_is_an_error(self, ask: Ask) -> None:
        assert ask(put("", "k", "v")).code == ERROR
        assert ask(put("ns", "k", "v" * 70_000)).code == ERROR

    def test_a_failed_write_changes_nothing(self, ask: Ask, config: NameServerConfig) -> None:
        config.kv_config_path.with_name("kvConfig.json.tmp").mkdir()
        reply = ask(put("ns", "k", "v"))
        assert reply.code == ERROR
        assert "Nothing was changed" in (reply.remark or "")
        assert self.get(ask, "k").code == ResponseCode.QUERY_NOT_FOUND


class TestSettings:
    def update(self, ask: Ask, text: str) -> Command:
        return ask(Command.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=text.encode()))

    def shown(self, ask: Ask) -> dict[str, str]:
        reply = ask(Command.request(RequestCode.GET_NAMESRV_CONFIG))
        return properties_text.parse(reply.body)

    def test_a_change_is_shown_and_stored_beside_what_the_file_had(
        self, ask: Ask, state: SharedState, tmp_path: Path
    ) -> None:
        file = tmp_path / "namesrv.conf"
        file.write_text("listenPort=9876\nrocketmqHome=/opt\n")
        state.config = replace(state.config, config_store_path=file)
        assert self.update(ask, "orderMessageEnable=true\nnonsense=1\n").code == SUCCESS
        assert self.shown(ask)["orderMessageEnable"] == "true"
        assert properties_text.parse(file.read_bytes()) == {
            "listenPort": "9876",
            "rocketmqHome": "/opt",
            "orderMessageEnable": "true",
        }

    def test_without_a_file_a_change_lasts_as_long_as_the_process(
        self, ask: Ask, state: SharedState
    ) -> None:
        assert self.update(ask, "orderMessageEnable=true").code == SUCCESS
        assert state.config.order_message_enable

    def test_raised_limits_are_those_of_the_next_registration(self, ask: Ask) -> None:
        t, u = (TopicConfig(name, 4, 8, 6) for name in "tu")
        more = register(t, u, counter=2)
        other = register(name="broker-b", address="10.0.0.2:10911")
        assert self.update(ask, "pocketmqMaxBrokers=1\npocketmqMaxRouteEntries=1").code == SUCCESS
        assert ask(register(t)).code == SUCCESS
        assert [ask(more).code, ask(other).code] == [ERROR, ERROR]
        assert self.update(ask, "pocketmqMaxBrokers=2\npocketmqMaxRouteEntries=2").code == SUCCESS
        assert [ask(more).code, ask(other).code] == [SUCCESS, SUCCESS]

    def test_settings_that_need_a_restart_are_refused_and_nothing_is_changed(
        self, ask: Ask, state: SharedState
    ) -> None:
        before = state.config
        reply = self.update(
            ask,
            "orderMessageEnable=true\npocketmqMaxConnections=5\nlistenPort=1234\n"
            "serverChannelMaxIdleTimeSeconds=5",
        )
        assert reply.code == ERROR
        assert (
            "only a restart can change listenPort, pocketmqMaxConnections,"
            " serverChannelMaxIdleTimeSeconds"
        ) in (reply.remark or "")
        assert state.config == before
        same = f"pocketmqMaxConnections={before.max_connections}"
        assert self.update(ask, same).code == SUCCESS

    def test_settings_that_name_files_cannot_be_changed(self, ask: Ask) -> None:
        reply = self.update(ask, "kvConfigPath=/tmp/x")
        assert reply.code == ResponseCode.NO_PERMISSION

    def test_a_bad_value_is_a_clear_error(self, ask: Ask) -> None:
        reply = self.update(ask, "listenPort=x")
        assert reply.code == ERROR
        assert "listenPort=x" in (reply.remark or "")
