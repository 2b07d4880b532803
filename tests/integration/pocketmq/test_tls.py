"""``pocketmq tls self-signed``, and test brokers with TLS."""

from __future__ import annotations

import ssl
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import client
from broker.config import BrokerConfig
from client import blocking
from nameserver.config import NameServerConfig
from pocketmq import certificates, testing
from pocketmq.cli import root
from pocketmq.server.serving import standalone_parts
from pocketmq.testing import SMALL_STORE
from remoting.runtime.clock import SystemClock
from remoting.security.server_tls import ServerTls, TlsServerSettings
from tests.support.waiting import until


def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner(env=env).invoke(root, ["tls", "self-signed", *arguments])


def test_the_settings_that_are_printed_work(tmp_path: Path) -> None:
    out = tmp_path / "new" / "tls"
    result = run("mq.example.com", "10.0.0.2", "fd00::1", "--out", str(out), "--days", "20")
    assert result.exit_code == 0, result.output
    printed = dict(line.split("=") for line in result.output.splitlines() if line[0] != "#")
    tls = ServerTls.of(TlsServerSettings.from_sources(overrides=printed), SystemClock())
    assert tls is not None
    tls.open()
    assert tls.days_left == 19
    assert sorted(file.name for file in out.iterdir()) == ["ca.pem", "server.key", "server.pem"]
    assert (out / "server.key").stat().st_mode & 0o777 == 0o600
    context = ssl.create_default_context(cafile=str(out / "ca.pem"))
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    for name in ("mq.example.com", "10.0.0.2", "fd00::1", "localhost", "127.0.0.1"):
        handshake(tls.context, context, name)
    with pytest.raises(ssl.SSLCertVerificationError, match="mismatch"):
        handshake(tls.context, context, "10.0.0.3")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str) -> None:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = server.wrap_bio(to_server, to_client, server_side=True)
    theirs = client.wrap_bio(to_client, to_server, server_hostname=name)
    for side in (theirs, ours, theirs):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
    assert theirs.getpeercert()


def test_files_are_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "server.key").write_text("mine")
    result = run("--out", str(tmp_path))
    assert result.exit_code == 1
    assert "server.key exists; remove it" in result.output
    assert (tmp_path / "server.key").read_text() == "mine"
    assert not (tmp_path / "ca.pem").exists()


def test_what_openssl_refuses_is_an_error(tmp_path: Path) -> None:
    result = run("a,b", "--out", str(tmp_path))
    assert result.exit_code == 1
    assert "openssl x509 failed" in result.output
    assert not list(tmp_path.iterdir())


def test_without_openssl_there_is_advice(tmp_path: Path) -> None:
    result = run("--out", str(tmp_path / "tls"), env={"PATH": str(tmp_path)})
    assert result.exit_code == 1
    assert "the openssl program is missing: install it" in result.output


def test_a_test_broker_accepts_tls_only_also_after_a_restart(tmp_path: Path) -> None:
    store = tmp_path / "new"
    with testing.broker(store=store, tls=True, accounts={"billing": {"admin": True}}) as server:
        keys = server.credentials["billing"]

        def brokers(tls: str | None) -> int:
            with blocking.Admin(server.nameserver, tls=tls, credentials=keys) as admin:
                return len(admin.brokers())

        assert brokers(server.tls) == 1
        with pytest.raises(client.Unavailable, match="set the option tls"):
            brokers(None)
        env: dict[str, str | None] = {
            # The option sets it for the process; the runner removes it again.
            "POCKETMQ_CLIENT_TLS_CA": None,
            "POCKETMQ_ACCESS_KEY": keys.access_key,
            "POCKETMQ_SECRET_KEY": keys.secret_key,
            "NAMESRV_ADDR": server.nameserver,
        }
        doctor = CliRunner(env=env).invoke(root, ["doctor", "--tls-ca", server.tls or ""])
        assert "broker-a's certificate is valid for 364 days" in doctor.output
        server.stop()
        server.restart()
        with blocking.Producer(
            server.nameserver, group="test", tls=server.tls, credentials=keys
        ) as producer:
            producer.send("orders", b"tea")
    assert not list(store.glob("**/*.pem")), "the store keeps no certificates"


async def test_a_standalone_broker_on_all_addresses_registers_over_tls(tmp_path: Path) -> None:
    made = certificates.make(tmp_path / "tls", ["mq.example.com"])
    settings = {
        **made.settings,
        "tls.server.mode": "enforcing",
        "pocketmqBindHost": "0.0.0.0",
        "listenPort": "0",
    }
    own = {
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(tmp_path / "store"),
        "useTLS": "true",
        "tls.client.trustCertPath": str(made.ca),
    }
    parts = standalone_parts(
        NameServerConfig.from_sources(
            overrides={**settings, "kvConfigPath": str(tmp_path / "kv.json")}
        ),
        BrokerConfig.from_sources(overrides={**SMALL_STORE, **settings, **own}),
    )
    async with AsyncExitStack() as stack:
        for part in parts:
            stack.push_async_callback(part.stop)
            await part.start()
        port = parts[0].ready()["nameserver"].rpartition(":")[2]
        async with client.Admin(f"127.0.0.1:{port}", tls=str(made.ca)) as admin:
            await until(admin.brokers, 30)
