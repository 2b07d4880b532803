"""A name server with aclEnable: who may register, change and read."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from client import blocking
from nameserver.app import NameServer
from nameserver.requests import HANDLERS
from nameserver.state import StateFileError
from remoting.pool import ConnectionPool
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.own_codes import OwnRequestCode
from remoting.protocol.signing import Credentials, signed
from remoting.security.credentials import Signer
from tests.harness.processes import processes
from tests.integration.nameserver.conftest import Topics
from tests.support.waiting import until
from tests.unit.nameserver.commands import T, put, register, route_of

NewServer = Callable[..., Awaitable[NameServer]]

USER = Credentials("some-user", "secret-of-user")
ADMIN = Credentials("operator", "secret-of-operator")
RULES = f"""
accounts:
- accessKey: {USER.access_key}
  secretKey: {USER.secret_key}
  defaultTopicPerm: PUB|SUB
- accessKey: {ADMIN.access_key}
  secretKey: {ADMIN.secret_key}
  admin: true
"""
WHITE = "globalWhiteRemoteAddresses: ['127.0.0.1']\n"
EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "

OPEN = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    OwnRequestCode.SUBSCRIBE_ROUTE,
}
ADMIN_ONLY = {
    *(RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.BROKER_HEARTBEAT),
    *(RequestCode.QUERY_DATA_VERSION, RequestCode.REGISTER_TOPIC_IN_NAMESRV),
    *(RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG),
    *(RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.ADD_WRITE_PERM_OF_BROKER),
    RequestCode.DELETE_TOPIC_IN_NAMESRV,
}


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    file = tmp_path / "plain_acl.yml"
    file.write_text(RULES)
    return file


@pytest.fixture
async def server(new_server: NewServer, rules: Path) -> NameServer:
    return await new_server(acl_enable=True, acl_file=rules)


def write(file: Path, text: str) -> None:
    file.write_text(text)


def denied(answer: Command) -> str:
    """Return why; empty if the handler has answered."""
    remark = answer.remark or ""
    return remark.removeprefix(EXCEPTION) if remark.startswith(EXCEPTION) else ""


@pytest.mark.parametrize("code", [*HANDLERS, 99_999])
async def test_a_code_is_for_all_for_accounts_or_for_administrators(
    server: NameServer, client: Any, code: int
) -> None:
    async def ask(who: Credentials | None) -> str:
        command = Command.request(code)
        return denied(await client.ask(server, signed(command, who) if who else command))

    stranger, user, admin = await ask(None), await ask(USER), await ask(ADMIN)
    assert stranger == ("" if code in OPEN else "No accessKey is configured")
    needs_admin = f"Need admin permission for request code={code}, but accessKey=some-user is not"
    assert user == (needs_admin if code in ADMIN_ONLY or code not in HANDLERS else "")
    assert admin == ""


async def test_only_what_is_admitted_changes_the_tables(server: NameServer, client: Any) -> None:
    for command in (register(T), signed(register(T), USER)):
        assert denied(await client.ask(server, command))
    forged = signed(register(T), Credentials(ADMIN.access_key, "not-the-secret"))
    assert denied(await client.ask(server, forged))
    assert not server.state.routes.brokers()
    assert (await client.ask(server, signed(register(T), ADMIN))).code == ResponseCode.SUCCESS
    assert (await client.ask(server, route_of(T.topic_name))).code == ResponseCode.SUCCESS

    assert denied(await client.ask(server, put("n", "k", "v")))
    assert server.state.kv.get("n", "k") is None
    assert server.guard is not None
    assert server.guard.denied == 4


async def test_a_broker_registers_and_leaves_with_its_signature(
    server: NameServer, new_registration: Any, client: Any
) -> None:
    unsigned = new_registration([server.address], Topics("t"))
    await unsigned.start()
    error = unsigned.states[0].last_error or ""
    assert "No accessKey is configured; set pocketmqCredentials" in error
    assert not server.state.routes.brokers()

    registration = new_registration(
        [server.address], Topics("t"), pool=partial(ConnectionPool, signer=Signer(ADMIN))
    )
    await registration.start()
    assert await client.knows(server, "t")
    await registration.stop()
    assert not server.state.routes.brokers()


async def test_a_changed_file_has_effect_and_a_broken_one_has_none(
    server: NameServer, rules: Path, client: Any
) -> None:
    assert server.guard is not None
    file = server.guard.file
    write(rules, RULES + WHITE)
    await until(lambda: bool(file.rules.white))
    assert not denied(await client.ask(server, register(T)))
    write(rules, "accounts: [")
    await until(lambda: bool(file.problem))
    assert not denied(await client.ask(server, register(T)))
    write(rules, RULES)
    await until(lambda: not file.rules.white)
    assert denied(await client.ask(server, register(T)))


async def test_no_request_switches_the_protection_off(server: NameServer, client: Any) -> None:
    for text in (
        b"aclEnable=false",
        b"pocketmqAclFile=/tmp/other.yml",
        b"tls.server.mode=disabled",
        b"pocketmqAuditLog=off",
    ):
        command = Command.request(RequestCode.UPDATE_NAMESRV_CONFIG, body=text)
        answer = await client.ask(server, signed(command, ADMIN))
        assert answer.code == ResponseCode.NO_PERMISSION
    assert server.state.config.acl_enable


async def test_changes_and_denials_are_in_the_audit_log_and_registrations_are_not(
    new_server: NewServer, rules: Path, tmp_path: Path, client: Any
) -> None:
    log = tmp_path / "audit.log"
    server = await new_server(acl_enable=True, acl_file=rules, audit_log=str(log))
    await client.ask(server, signed(register(T), ADMIN))
    await client.ask(server, signed(put("n", "k", "any-value"), ADMIN))
    await client.ask(server, put("n", "k", "v"))
    await server.stop()
    change, denial = map(json.loads, log.read_text().splitlines())
    assert (change["who"], change["action"], change["result"]) == (
        "operator",
        "PUT_KV_CONFIG",
        "ok",
    )
    assert change["fields"]["value"] == "***"
    assert (denial["event"], denial["who"]) == ("denial", "-")
    assert denial["text"] == "No accessKey is configured"


async def test_a_name_server_without_usable_accounts_does_not_start(new_server: NewServer) -> None:
    with pytest.raises(StateFileError, match=r"aclEnable is true.*plain_acl\.yml: No such file"):
        await new_server(acl_enable=True)


def test_a_broker_without_keys_registers_from_a_white_address(tmp_path: Path, rules: Path) -> None:
    rules.write_text(RULES + WHITE)
    settings = {"aclEnable": "true", "pocketmqAclFile": rules}
    with (
        processes(tmp_path, nameserver_settings=settings) as servers,
        blocking.Admin(servers.address) as admin,
    ):
        # A broker is ready when it has registered.
        assert [broker.name for broker in admin.brokers()] == ["broker-a"]
