"""Keys from arguments, files and the environment, and requests signed with them."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

import pytest

from remoting.blocking import BlockingConnection
from remoting.connection import Connection
from remoting.pool import ConnectionPool
from remoting.protocol.codes import RequestCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.frame import FIELD, VALUE
from remoting.protocol.headers.admin import GetRouteInfoRequestHeader
from remoting.protocol.signing import (
    ACCESS_KEY,
    SECURITY_TOKEN,
    SIGNATURE,
    Credentials,
    signature,
    signed_content,
)
from remoting.runtime.settings import ConfigError
from remoting.security.credentials import Signer, from_environment, open_to_others, signer_of
from remoting.server import Server
from tests.support.waiting import until

SECRET = "planted-secret"
KEYS = Credentials("account", SECRET)


class Signed:
    """A server's handler that keeps the requests and answers whether they are signed."""

    def __init__(self) -> None:
        self.requests: list[Command] = []

    def __call__(self, command: Command, connection: Connection) -> Command:
        self.requests.append(command)
        fields = command.fields
        if command.values is not None:  # a msgpack header has typed fields
            fields |= dict(command.read(GetRouteInfoRequestHeader).pairs())
        made = signature(SECRET, signed_content(fields, command.body))
        return command.reply(0 if fields.get(SIGNATURE) == made else 1, fields.get(ACCESS_KEY))


def keys_file(folder: Path, account: str = "account", secret: str = SECRET) -> Path:
    """Write a file with keys, as its owner's only, in one step."""
    fresh = folder / "fresh"
    fresh.write_text(f"accessKey: {account}\nsecretKey: {secret}\n")
    fresh.chmod(0o600)
    return fresh.rename(folder / "tools.yml")


def route(topic: str = "orders") -> Command:
    header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
    return Command.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, body=b"body")


@pytest.mark.parametrize("serialize", [SerializeType.JSON, SerializeType.ROCKETMQ])
async def test_a_pool_signs_each_request_with_all_its_fields(serialize: SerializeType) -> None:
    seen = Signed()
    async with Server(seen) as server, ConnectionPool(signer=Signer(KEYS)) as pool:
        request = route()
        request.serialize = serialize
        assert (await pool.request(server.address, request, timeout=10)).code == 0
        # A retry is signed again, for it may go to another peer.
        assert (await pool.request(server.address, request, timeout=10)).code == 0
        (await pool.get(server.address)).send_oneway(route())
        await until(lambda: len(seen.requests) == 3)
    assert all(SIGNATURE in command.fields for command in seen.requests)
    assert SIGNATURE not in request.fields


async def test_the_offer_of_a_codec_and_what_comes_in_that_codec_are_signed() -> None:
    seen = Signed()
    async with (
        Server(seen) as server,
        ConnectionPool(signer=Signer(KEYS), offer_msgpack=True) as pool,
    ):
        for _ in range(2):
            assert (await pool.request(server.address, route(), timeout=10)).code == 0
    offer, later = seen.requests
    assert offer.fields[FIELD] == VALUE
    assert later.serialize is SerializeType.MSGPACK


async def test_a_blocking_connection_signs_and_follows_the_file(tmp_path: Path) -> None:
    seen = Signed()
    signer = Signer(keys_file(tmp_path))

    def ask(address: str) -> list[tuple[int, str | None]]:
        with BlockingConnection(address, timeout=10, signer=signer) as connection:
            answers = [connection.request(route())]
            keys_file(tmp_path, "second")
            answers.append(connection.request(route()))
        return [(answer.code, answer.remark) for answer in answers]

    async with Server(seen) as server:
        assert await asyncio.to_thread(ask, server.address) == [(0, "account"), (0, "second")]


async def test_a_pool_uses_new_keys_soon_after_their_file_has_changed(tmp_path: Path) -> None:
    signer = Signer(keys_file(tmp_path))
    async with Server(Signed()) as server, ConnectionPool(signer=signer) as pool:
        used = {(await pool.request(server.address, route(), timeout=10)).remark}
        keys_file(tmp_path, "second")
        async with asyncio.timeout(30):
            while "second" not in used:
                answer = await pool.request(server.address, route(), timeout=10)
                assert answer.code == 0, "no request fails while the keys change"
                used.add(answer.remark)
    assert used == {"account", "second"}


def test_a_file_that_became_unusable_keeps_the_keys(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    signer = Signer(keys_file(tmp_path))
    (tmp_path / "tools.yml").chmod(0o640)
    with caplog.at_level(logging.ERROR):
        signer.refresh()
        signer.refresh()
    assert signer.account == "account"
    assert len(caplog.records) == 1
    assert SECRET not in caplog.text


async def test_what_a_server_sends_to_its_clients_is_unsigned() -> None:
    received: list[Command] = []

    def asked(command: Command, connection: Connection) -> Command:
        received.append(command)
        return command.reply()

    def handler(command: Command, connection: Connection) -> Command:
        connection.send_oneway(Command.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED))
        return command.reply()

    async with Server(handler) as server, ConnectionPool(asked, signer=Signer(KEYS)) as pool:
        await pool.request(server.address, route(), timeout=10)
        await until(lambda: bool(received))
    assert SIGNATURE not in received[0].fields


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o660, 0o777])
def test_a_file_that_others_can_open_is_refused(tmp_path: Path, mode: int) -> None:
    file = keys_file(tmp_path)
    file.chmod(mode)
    with pytest.raises(ConfigError, match=f"chmod 600 {file}"):
        Signer(file)


def test_a_groups_member_may_use_a_file_of_roots_as_a_pod_may_use_its_secret() -> None:
    def refused(mode: int, owner: int, user: int) -> bool:
        return open_to_others(os.stat_result((mode, 1, 1, 1, owner, 10001, 1, 0, 0, 0)), user)

    assert not refused(0o440, owner=0, user=10001)
    assert not refused(0o640, owner=0, user=10001)
    assert refused(0o660, owner=0, user=10001)
    assert refused(0o444, owner=0, user=10001)
    assert refused(0o640, owner=0, user=0)
    assert refused(0o640, owner=10001, user=10001)


@pytest.mark.parametrize(
    "content",
    [
        *("", "text", "- a\n- b", f"secretKey: {SECRET}", f"accessKey: a\nsecretKey: [{SECRET}]"),
        *(f"accessKey: a\nsecretKey: '{SECRET}", f"accessKey: a\nsecretKey: !!x\t{SECRET}: ["),
        *("\x00", "[" * 10_000, "a: &a [x]\nb: &b [*a,*a]\nc: [*b,*b]", "accessKey: *none"),
        f"accessKey: {SECRET * 10_000}\n",
    ],
)
def test_a_file_without_keys_is_an_error_that_shows_nothing_of_it(
    tmp_path: Path, content: str
) -> None:
    file = keys_file(tmp_path)
    file.write_text(content)
    with pytest.raises(ConfigError, match=str(file)) as refused:
        Signer(file)
    assert SECRET not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match=r"/nowhere/tools\.yml can't be read: No such file"):
        Signer("/nowhere/tools.yml")


def test_values_in_a_file_are_texts_whatever_they_look_like(tmp_path: Path) -> None:
    file = keys_file(tmp_path, "0123", '12345678 # the key\nsecurityToken: "true"')
    made = Signer(file)(Command.request(1)).fields
    assert (made[ACCESS_KEY], made[SECURITY_TOKEN]) == ("0123", "true")
    fields = {ACCESS_KEY: "0123", SECURITY_TOKEN: "true"}
    assert made[SIGNATURE] == signature("12345678", signed_content(fields, b""))


@pytest.mark.parametrize(
    ("env", "source"),
    [
        ({}, None),
        ({"POCKETMQ_ACCESS_KEY": "", "POCKETMQ_SECRET_KEY": ""}, None),
        ({"POCKETMQ_ACCESS_KEY": "a", "POCKETMQ_SECRET_KEY": "s"}, Credentials("a", "s")),
        (
            {
                "POCKETMQ_ACCESS_KEY": "a",
                "POCKETMQ_SECRET_KEY": "s",
                "POCKETMQ_SECURITY_TOKEN": "t",
            },
            Credentials("a", "s", "t"),
        ),
        ({"POCKETMQ_ACCESS_KEY": "a", "POCKETMQ_CREDENTIALS": "/keys"}, "/keys"),
    ],
)
def test_the_environment_names_keys_or_a_file(env: dict[str, str], source: Any) -> None:
    assert from_environment(env) == source


def test_a_part_of_the_keys_in_the_environment_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("POCKETMQ_SECRET_KEY", SECRET)
    with pytest.raises(ConfigError, match="POCKETMQ_ACCESS_KEY is not set") as refused:
        signer_of(None)
    assert SECRET not in str(refused.value)
