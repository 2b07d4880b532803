"""Planted secrets are in no log, traceback, repr, output or process list."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

import client
from client.network.context import ClientContext
from pocketmq.testing import StandaloneServer
from remoting.pool import ConnectionPool
from remoting.security.credentials import Signer
from tests.support.ports import free_port

SECRET, TOKEN = "planted-secret-7f3a", "planted-token-91bc"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    file = tmp_path / "keys.yml"
    file.write_text(f"accessKey: billing\nsecretKey: {SECRET}\nsecurityToken: {TOKEN}\n")
    file.chmod(0o600)
    return file


def shown(text: str) -> bool:
    return SECRET in text or TOKEN in text


def test_commands_show_no_secret(pocketmq_broker: StandaloneServer, keys_file: Path) -> None:
    command = [sys.executable, "-m", "pocketmq", "read", "Never", "--follow", "--credentials"]
    command += [str(keys_file), "--nameserver", pocketmq_broker.nameserver]
    texts = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as p:
        texts.append(Path(f"/proc/{p.pid}/cmdline").read_text())
        texts.append(Path(f"/proc/{p.pid}/environ").read_text())
        p.terminate()
        texts.append(p.communicate(timeout=30)[0])
    for words in (
        ["topic", "create", "Planted", "--json"],
        ["send", "Planted", "text", "--json"],
        ["topic", "list", "--json"],
        ["doctor", "--json"],
        ["topic", "create", "Planted"],
        ["send", "Planted", "text", "--nameserver", f"127.0.0.1:{free_port()}"],
    ):
        server = [] if "--nameserver" in words else ["--nameserver", pocketmq_broker.nameserver]
        done = subprocess.run(
            [sys.executable, "-m", "pocketmq", *words, *server, "--credentials", str(keys_file)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=os.environ | {"PYTHONDEVMODE": "1"},
        )
        texts += [done.stdout, done.stderr]
    assert not any(map(shown, texts))


async def test_the_client_shows_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    keys = client.Credentials("billing", SECRET, TOKEN)
    texts = [repr(keys), str(keys), repr(Signer(keys)), f"{vars(client.UsageError('x'))}"]
    with caplog.at_level(logging.DEBUG):
        async with client.Producer(
            f"127.0.0.1:{free_port()}", credentials=keys, retries=0, timeout=2
        ) as producer:
            with pytest.raises(client.PocketMQError) as failed:
                await producer.send("Planted", b"body")
            texts += traceback.format_exception(failed.value)
            texts += traceback.TracebackException.from_exception(
                failed.value, capture_locals=True
            ).format()
        context = ClientContext("127.0.0.1:1", {"credentials": keys})
        texts += [
            repr(context),
            repr(vars(context)),
            repr(ConnectionPool(signer=Signer(keys)).endpoint),
        ]
    assert not any(map(shown, [*texts, caplog.text]))
    with pytest.raises(client.UsageError) as refused:
        client.Producer("127.0.0.1:1", secret_key=SECRET)  # type: ignore[call-overload]
    assert not shown(str(refused.value))
