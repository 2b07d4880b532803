"""TLS at a server: one port for both kinds of connection, and peers that break the handshake."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import ssl
import stat
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import pytest

from remoting.blocking import BlockingConnection
from remoting.counters import CloseReason, TlsFailure
from remoting.errors import BindFailed, ConnectFailed, ConnectionLost
from remoting.limits import ServerLimits
from remoting.pool import ConnectionPool
from remoting.protocol.command import Command
from remoting.protocol.frame import encode
from remoting.runtime.clock import SystemClock
from remoting.runtime.process_limits import ConnectionRoom
from remoting.security.server_tls import ServerTls, TlsServerSettings
from remoting.security.tls import ClientTls, Tls
from remoting.server import Server
from tests.harness.certificates import Pair, self_signed
from tests.integration.remoting.peers import ECHO, LARGE, Services, ended, raw
from tests.support.waiting import until

PATIENT = 30.0
"""A handshake timeout that no test reaches."""


@pytest.fixture(scope="module")
def member(folder: Path) -> Pair:
    return self_signed(folder, "member")


def server_tls(pair: Pair, **settings: str) -> ServerTls:
    keys = {"tls.server.certPath": str(pair.cert), "tls.server.keyPath": str(pair.key)}
    tls = ServerTls.of(
        TlsServerSettings.from_sources(overrides={**keys, **settings}), SystemClock()
    )
    assert tls is not None
    tls.open()
    return tls


def open_sockets() -> int:
    count = 0
    for entry in Path("/dev/fd").iterdir():
        # One of them is that of the directory.
        with suppress(OSError):
            count += stat.S_ISSOCK(os.fstat(int(entry.name)).st_mode)
    return count


@asynccontextmanager
async def serving(
    tls: ServerTls,
    *,
    handshake_timeout: float = PATIENT,
    max_handshakes: int = 100,
    fair_handshake_seconds: float = PATIENT,
) -> AsyncIterator[Server]:
    """A server that still serves a good client at the end, and has then closed what failed."""
    limits = ServerLimits(
        handshake_timeout=handshake_timeout,
        max_handshakes=max_handshakes,
        fair_handshake_seconds=fair_handshake_seconds,
    )
    async with Server(Services(), tls=tls, limits=limits) as server:
        before = open_sockets()
        yield server
        await until(lambda: len(server.connections) == 0)
        await until(lambda: open_sockets() <= before)
        assert server.counters.tls_connections == 0


async def call(server: Server, tls: ClientTls | None, size: int = 1) -> None:
    async with ConnectionPool(tls=tls) as pool:
        command = Command.request(ECHO, body=bytes(size))
        answer = await pool.request(server.address, command, timeout=30)
        assert len(answer.body) == size


def client_hello() -> bytes:
    """Return the first bytes of a client with TLS."""
    out = ssl.MemoryBIO()
    side = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        side.do_handshake()
    return out.read()


async def test_one_port_accepts_connections_with_and_without_tls(pair: Pair) -> None:
    async with serving(server_tls(pair)) as server:
        async with ConnectionPool(tls=Tls(ca=pair.cert)) as with_tls, ConnectionPool() as plain:
            for pool in (with_tls, plain):
                for size in (0, 100, 3_000_000):
                    command = Command.request(ECHO, body=bytes(size))
                    answer = await pool.request(server.address, command, timeout=30)
                    assert len(answer.body) == size
            assert sorted(peer.is_tls for peer in server.connections) == [False, True]
            assert server.counters.tls_connections == 1
        assert server.counters.tls_accepted == 1


async def test_versions_before_1_2_are_refused(pair: Pair) -> None:
    async with serving(server_tls(pair)) as server:
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = Tls(ca=pair.cert).context()
            context.minimum_version = context.maximum_version = version
            await call(server, context)
        old = Tls(ca=pair.cert).context()
        old.set_ciphers("ALL:@SECLEVEL=0")
        with pytest.deprecated_call():
            old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        with pytest.raises(ConnectFailed, match="the TLS handshake ended early"):
            await call(server, old)
        await until(lambda: server.counters.tls_failed[TlsFailure.VERSION] == 1)


async def test_an_enforcing_port_closes_plain_connections_and_says_why(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    tls = server_tls(pair, **{"tls.server.mode": "enforcing"})
    async with serving(tls) as server:
        with pytest.raises(
            ConnectionLost, match="if the port accepts TLS only, set the option tls"
        ):
            await call(server, None)
        await call(server, Tls(ca=pair.cert))
        assert server.counters.tls_failed[TlsFailure.PLAIN] == 1
    (line,) = [text for text in caplog.messages if "handshake" in text]
    assert "no TLS, and tls.server.mode is enforcing" in line


async def test_a_port_without_tls_closes_a_hello_and_says_why(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    async with Server(Services()) as server:
        with pytest.raises(ConnectFailed, match="the TLS handshake ended early"):
            await call(server, Tls(ca=pair.cert))
        await call(server, None)
        assert server.counters.dropped[CloseReason.BAD_FRAME] == 1
    (line,) = [text for text in caplog.messages if "dropped" in text]
    assert "a TLS handshake, but TLS is off here: set tls.server.certPath" in line


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        ("nothing", "slow"),
        ("first byte", "slow"),
        ("half a hello", "slow"),
        ("a hello", "slow"),
        ("a hello in single bytes", "slow"),
        ("garbage", "invalid"),
        ("a hello, then garbage", "invalid"),
        ("half a hello, then the end", "closed"),
        ("a record of 64 KiB", "invalid"),
    ],
)
async def test_a_broken_handshake_ends_in_time_and_leaves_nothing(
    pair: Pair, sent: str, reason: str
) -> None:
    hello = client_hello()
    parts = {
        "nothing": [b""],
        "first byte": [hello[:1]],
        "half a hello": [hello[:100]],
        "a hello": [hello],
        "a hello in single bytes": [bytes((byte,)) for byte in hello[:30]],
        "garbage": [b"\x16" + os.urandom(1000)],
        "a hello, then garbage": [hello, os.urandom(100)],
        "half a hello, then the end": [hello[:100]],
        "a record of 64 KiB": [b"\x16\x03\x01\xff\xff" + bytes(0xFFFF)],
    }[sent]
    limit = 0.4 if reason == "slow" else PATIENT
    async with serving(server_tls(pair), handshake_timeout=limit) as server:
        async with raw(server.address) as (reader, writer):
            for part in parts:
                if writer.is_closing():
                    break
                writer.write(part)
                await asyncio.sleep(0.02 if len(parts) > 1 else 0)
            if sent.endswith("the end"):
                writer.write_eof()
            await call(server, Tls(ca=pair.cert))
            assert await ended(reader)
        await until(lambda: server.counters.tls_failed[reason] == 1)


async def test_a_peer_that_closes_before_its_first_byte_is_no_failure(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(server_tls(pair)) as server:
        for _ in range(3):
            async with raw(server.address) as (_, writer):
                writer.close()
        await call(server, None)
    assert not caplog.messages


async def test_of_too_many_handshakes_the_oldest_is_ended(pair: Pair) -> None:
    async with (
        serving(server_tls(pair), max_handshakes=2, fair_handshake_seconds=0.05) as server,
        raw(server.address) as (first, _),
        raw(server.address) as (_, writer),
    ):
        await until(lambda: server.handshakes == 2)
        writer.write(client_hello()[:100])
        await call(server, Tls(ca=pair.cert))
        assert await ended(first)
        assert server.counters.tls_failed[TlsFailure.CROWDED] == 1
        assert server.handshakes == 1


async def test_when_many_connect_at_once_all_get_their_turn(pair: Pair) -> None:
    async with serving(server_tls(pair), max_handshakes=3) as server:
        async with asyncio.timeout(30), asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(call(server, Tls(ca=pair.cert) if number % 2 else None))
        assert server.counters.tls_accepted == 20
        assert server.counters.tls_failed[TlsFailure.CROWDED] == 0


async def test_handshakes_leave_room_for_connections_of_the_process(pair: Pair) -> None:
    room = ConnectionRoom(lambda: sys.maxsize)
    assert room.allowed == 16
    limits = ServerLimits(room=room, fair_handshake_seconds=0.05)
    async with Server(Services(), tls=server_tls(pair), limits=limits) as server:
        async with AsyncExitStack() as stack:
            silent = [await stack.enter_async_context(raw(server.address)) for _ in range(20)]
            await until(lambda: server.counters.tls_failed[TlsFailure.CROWDED] == 4)
            assert room.waiting == server.handshakes == 16
            await call(server, None)
            for reader, _ in silent[:4]:
                assert await ended(reader)
        await until(lambda: room.taken == room.waiting == 0)


async def test_a_port_in_use_is_reported(pair: Pair) -> None:
    async with Server(Services()) as first:
        second = Server(Services(), tls=server_tls(pair), port=first.port)
        with pytest.raises(BindFailed, match="another process listens there"):
            await second.start()
        await second.stop()


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
async def test_renegotiation_is_refused(pair: Pair) -> None:
    async with serving(server_tls(pair)) as server:
        client = await asyncio.create_subprocess_exec(
            *("openssl", "s_client", "-tls1_2", "-connect", server.address),
            stdin=PIPE,
            stdout=PIPE,
            stderr=STDOUT,
        )
        async with asyncio.timeout(30):
            await until(lambda: server.counters.tls_accepted == 1)
            # To openssl this line is a command.
            output, _ = await client.communicate(b"R\n")
        assert b"no renegotiation" in output
        await call(server, Tls(ca=pair.cert))


async def test_a_client_with_tls_that_never_reads_is_dropped_in_time(pair: Pair) -> None:
    limits = ServerLimits(unsent_timeout=0.3)
    context = Tls(ca=pair.cert).context()
    async with Server(Services(), tls=server_tls(pair), limits=limits) as server:

        def ask_for_much() -> ssl.SSLSocket:
            host, _, port = server.address.rpartition(":")
            plain = socket.create_connection((host, int(port)), timeout=30)
            sock = context.wrap_socket(plain, server_hostname=host)
            sock.sendall(encode(Command.request(LARGE)) * 200)
            return sock

        with await asyncio.to_thread(ask_for_much):
            await until(lambda: server.counters.dropped[CloseReason.SLOW_READER] == 1)
            assert server.counters.frames_in < 100


async def test_a_stop_ends_handshakes(pair: Pair) -> None:
    async with serving(server_tls(pair)) as server, raw(server.address) as (reader, writer):
        writer.write(client_hello()[:100])
        async with raw(server.address) as (silent, _):
            await until(lambda: server.handshakes == 2)
            await server.stop()
            assert await ended(reader)
            assert await ended(silent)


async def test_a_connection_beyond_the_limit_gets_no_handshake(pair: Pair) -> None:
    limits = ServerLimits(max_connections=1)
    async with Server(Services(), tls=server_tls(pair), limits=limits) as server:
        async with ConnectionPool(tls=Tls(ca=pair.cert)) as pool:
            await pool.get(server.address)
            with pytest.raises(ConnectFailed, match="the TLS handshake ended early"):
                await call(server, Tls(ca=pair.cert))
            assert server.counters.connections_refused == 1
        assert server.counters.tls_accepted == 1


def requires(trusted: Pair, need: str) -> dict[str, str]:
    return {
        "tls.server.need.client.auth": need,
        "tls.server.authClient": "true",
        "tls.server.trustCertPath": str(trusted.cert),
    }


async def test_certificates_of_clients_are_verified(
    folder: Path, pair: Pair, member: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    tls = server_tls(pair, **requires(member, "require"))
    async with serving(tls) as server:
        await call(server, Tls(ca=pair.cert, cert=member.cert, key=member.key))
        stranger = Tls(ca=pair.cert, cert=pair.cert, key=pair.key)
        for refused in (Tls(ca=pair.cert), stranger):
            with pytest.raises((ConnectFailed, ConnectionLost), match="certificate"):
                await call(server, refused)
        await until(lambda: server.counters.tls_failed[TlsFailure.CERTIFICATE] == 2)
    assert "it has no certificate; tls.server.need.client.auth is require" in caplog.text
    assert "its certificate is refused: self-signed certificate" in caplog.text
    old = self_signed(folder, "old", days=-1)
    async with serving(server_tls(pair, **requires(old, "require"))) as server:
        with pytest.raises((ConnectFailed, ConnectionLost)):
            await call(server, Tls(ca=pair.cert, cert=old.cert, key=old.key))
    assert "its certificate is refused: certificate has expired" in caplog.text


async def test_an_optional_certificate_may_be_missing_but_not_wrong(
    pair: Pair, member: Pair
) -> None:
    tls = server_tls(pair, **requires(member, "optional"))
    async with serving(tls) as server:
        await call(server, Tls(ca=pair.cert))
        await call(server, Tls(ca=pair.cert, cert=member.cert, key=member.key))
        with pytest.raises((ConnectFailed, ConnectionLost)):
            await call(server, Tls(ca=pair.cert, cert=pair.cert, key=pair.key))
        await until(lambda: server.counters.tls_failed[TlsFailure.CERTIFICATE] == 1)


async def test_a_changed_file_of_authorities_is_used(
    folder: Path, pair: Pair, member: Pair
) -> None:
    trusted = Pair(folder / "trusted.pem", member.key)
    trusted.cert.write_bytes(member.cert.read_bytes())
    tls = server_tls(pair, **requires(trusted, "require"))
    old = Tls(ca=pair.cert, cert=member.cert, key=member.key)
    new = Tls(ca=pair.cert, cert=pair.cert, key=pair.key)
    async with serving(tls) as server:
        await call(server, old)
        trusted.cert.write_bytes(pair.cert.read_bytes() + b"\n")
        assert tls.refresh()
        await call(server, new)
        with pytest.raises((ConnectFailed, ConnectionLost)):
            await call(server, old)


async def test_a_client_that_refuses_the_server_is_counted(pair: Pair, member: Pair) -> None:
    async with serving(server_tls(pair)) as server:
        with pytest.raises(ConnectFailed, match="its certificate is refused"):
            await asyncio.to_thread(BlockingConnection, server.address, tls=Tls(ca=member.cert))
        await until(lambda: server.counters.tls_failed[TlsFailure.REJECTED] == 1)
