"""A broker signs what it sends to its name servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.app import Broker
from broker.config import BrokerConfig
from broker.errors import StartError
from remoting.connection import Connection
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.signing import ACCESS_KEY, SIGNATURE, signature, signed_content
from remoting.server import Server

SECRET = "secret-of-the-broker"


def settings(root: Path, nameserver: str) -> dict[str, str]:
    file = root / "keys.yml"
    file.write_text(f"accessKey: broker-account\nsecretKey: {SECRET}\n")
    file.chmod(0o600)
    return {
        "brokerName": "broker-a",
        "listenPort": "0",
        "namesrvAddr": nameserver,
        "storePathRootDir": str(root / "store"),
        "mappedFileSizeCommitLog": str(16 << 20),
        "pocketmqCredentials": str(file),
    }


async def test_registrations_and_their_ends_are_signed(tmp_path: Path) -> None:
    seen: list[Command] = []

    def name_server(command: Command, connection: Connection) -> Command:
        command.body = bytes(command.body)
        seen.append(command)
        return command.reply()

    async with Server(name_server) as server:
        broker = Broker(BrokerConfig.from_sources(overrides=settings(tmp_path, server.address)))
        await broker.start()
        await broker.stop()
    codes = {command.code for command in seen}
    assert {RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER} <= codes
    for command in seen:
        assert command.fields[ACCESS_KEY] == "broker-account"
        made = signature(SECRET, signed_content(command.fields, command.body))
        assert command.fields[SIGNATURE] == made


async def test_a_broker_does_not_start_with_a_file_that_others_can_read(tmp_path: Path) -> None:
    config = BrokerConfig.from_sources(overrides=settings(tmp_path, "127.0.0.1:1"))
    (tmp_path / "keys.yml").chmod(0o644)
    broker = Broker(config)
    with pytest.raises(StartError, match=r"pocketmqCredentials: .*chmod 600") as refused:
        await broker.start()
    assert SECRET not in str(refused.value)
    await broker.stop()
