"""Connections with TLS: what is verified, what errors say, and that frames arrive whole."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from remoting.blocking import BlockingConnection
from remoting.connection import Connection
from remoting.counters import CloseReason
from remoting.endpoint import Endpoint
from remoting.errors import ConnectFailed, ConnectionLost
from remoting.pool import ConnectionPool
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode, encode
from remoting.security.tls import ClientTls, Tls, TlsError
from remoting.server import Server
from tests.harness.certificates import Pair, self_signed
from tests.integration.remoting.peers import CALL_BACK, ECHO, Services, read_command

LARGE = 3_000_000


@pytest.fixture(scope="module")
def member(folder: Path) -> Pair:
    return self_signed(folder, "member", password="hunter2")


def server_context(pair: Pair, **options: object) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*pair)
    for name, value in options.items():
        setattr(context, name, value)
    return context


@asynccontextmanager
async def serving(context: ssl.SSLContext) -> AsyncIterator[str]:
    """A server that accepts TLS only; yields its address."""
    endpoint = Endpoint(name="server", serving=True, handler=Services())
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: Connection(endpoint), "127.0.0.1", 0, ssl=context, ssl_handshake_timeout=5
    )
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await endpoint.stop("the test ends", drain_timeout=1)


async def call(address: str, tls: ClientTls | None, body: bytes = b"x", code: int = ECHO) -> bytes:
    async with ConnectionPool(lambda command, _: command.reply(body=command.body), tls=tls) as pool:
        answer = await pool.request(address, Command.request(code, body=body), timeout=10)
        return bytes(answer.body)


def call_blocking(address: str, tls: ClientTls | None, body: bytes = b"x") -> bytes:
    with BlockingConnection(address, timeout=10, tls=tls) as connection:
        assert connection.usable, "session tickets are no answers"
        first = connection.request(Command.request(ECHO, body=body))
        assert bytes(first.body) == body
        assert connection.usable
        connection.submit(Command.request(ECHO, body=body))
        placed = connection.receive(place=lambda _, length: memoryview(bytearray(length)))
        assert connection.usable
        return bytes(placed.body)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_frames_of_all_sizes_arrive_whole(pair: Pair, version: ssl.TLSVersion) -> None:
    tls = Tls(ca=pair.cert)
    async with serving(server_context(pair, maximum_version=version)) as address:
        bodies = [random.randbytes(size) for size in (0, 1, 16_384, 70_000, LARGE, 300_000, 5)]
        async with ConnectionPool(tls=tls) as pool:
            calls = [
                pool.request(address, Command.request(ECHO, body=body), timeout=60)
                for body in bodies
            ]
            assert [bytes(one.body) for one in await asyncio.gather(*calls)] == bodies
        for body in bodies:
            assert await asyncio.to_thread(call_blocking, address, tls, body) == body
        assert await call(address, tls, b"back", CALL_BACK) == b"back"


async def test_a_context_of_the_application_is_used_as_it_is(pair: Pair) -> None:
    lax = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    lax.check_hostname = False
    lax.verify_mode = ssl.CERT_NONE
    async with serving(server_context(pair)) as address:
        assert await call(address, lax) == b"x"
        assert await asyncio.to_thread(call_blocking, address, lax) == b"x"


async def refused(address: str, tls: ClientTls | None) -> str:
    """Return the text of the error, which is the same for both kinds of connection."""
    texts = []
    with pytest.raises((ConnectFailed, ConnectionLost)) as caught:
        await call(address, tls)
    texts.append(str(caught.value))
    with pytest.raises((ConnectFailed, ConnectionLost)) as caught:
        await asyncio.to_thread(call_blocking, address, tls)
    texts.append(str(caught.value))
    return "\n".join(texts)


def twice(text: str, *parts: str) -> None:
    """Check that both errors have these parts."""
    for part in parts:
        assert text.count(part) == 2, text


async def test_a_certificate_of_an_unknown_authority_is_refused(pair: Pair, member: Pair) -> None:
    async with serving(server_context(pair)) as address:
        for tls in (Tls(), Tls(ca=member.cert)):
            text = await refused(address, tls)
            twice(text, "its certificate is refused: self-signed", "set tls to a file with the")


async def test_an_expired_certificate_is_refused(folder: Path) -> None:
    old = self_signed(folder, "old", days=-1)
    async with serving(server_context(old)) as address:
        text = await refused(address, Tls(ca=old.cert))
    twice(text, "certificate has expired", "renew the server's certificate")


@pytest.mark.parametrize("names", ["DNS:elsewhere", "IP:127.0.0.2"])
async def test_a_certificate_for_another_host_is_refused_unless_the_check_is_off(
    folder: Path, names: str
) -> None:
    other = self_signed(folder, "other", names=names)
    async with serving(server_context(other)) as address:
        twice(await refused(address, Tls(ca=other.cert)), "mismatch", "check_hostname=False")
        port = address.rpartition(":")[2]
        text = await refused(f"localhost:{port}", Tls(ca=other.cert))
        twice(text, "Hostname mismatch, certificate is not valid for 'localhost'")
        assert await call(address, Tls(ca=other.cert, check_hostname=False)) == b"x"


async def test_a_server_may_require_a_certificate(pair: Pair, member: Pair) -> None:
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        strict = server_context(pair, verify_mode=ssl.CERT_REQUIRED, maximum_version=version)
        strict.load_verify_locations(member.cert)
        tls = Tls(ca=pair.cert, cert=member.cert, key=member.key, key_password="hunter2")
        async with serving(strict) as address:
            assert await call(address, tls) == b"x"
            assert await asyncio.to_thread(call_blocking, address, tls) == b"x"
            with pytest.raises((ConnectFailed, ConnectionLost), match=r"set cert"):
                await call(address, Tls(ca=pair.cert))


async def test_a_port_without_tls_says_so(pair: Pair) -> None:
    async with Server(Services()) as server:
        text = await refused(server.address, Tls(ca=pair.cert))
    twice(text, "the TLS handshake ended early", "connect without the option tls")


async def test_plain_text_to_a_port_with_tls_only_says_so(pair: Pair) -> None:
    async with serving(server_context(pair)) as address:
        text = await refused(address, None)
    twice(text, "before its first answer; if the port accepts TLS only, set the option tls")


async def test_a_silent_server_ends_the_handshake_in_time(pair: Pair) -> None:
    ended = asyncio.Event()

    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(65536):
            pass
        writer.close()
        ended.set()

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with ConnectionPool(tls=Tls(ca=pair.cert), connect_timeout=0.2) as pool:
            with pytest.raises(ConnectFailed, match=r"no answer within 0\.2 s"):
                await pool.get(address)
        async with asyncio.timeout(10):
            await ended.wait()

        def blocking() -> None:
            with pytest.raises(ConnectFailed, match=r"no answer within 0\.2 s"):
                BlockingConnection(address, tls=Tls(ca=pair.cert), connect_timeout=0.2)

        await asyncio.to_thread(blocking)


async def test_answers_are_not_lost_when_the_server_closes_after_them(pair: Pair) -> None:
    count = 500

    async def answer_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answers = [
            encode((await read_command(reader)).reply(body=bytes(1000))) for _ in range(count)
        ]
        writer.write(b"".join(answers))
        writer.close()

    server = await asyncio.start_server(answer_and_close, "127.0.0.1", 0, ssl=server_context(pair))
    async with server, ConnectionPool(tls=Tls(ca=pair.cert)) as pool:
        connection = await pool.get(f"127.0.0.1:{server.sockets[0].getsockname()[1]}")
        calls = [connection.request(Command.request(ECHO), timeout=10) for _ in range(count)]
        answers = await asyncio.gather(*calls)
        assert {len(one.body) for one in answers} == {1000}
        await connection.wait_closed()
        assert connection.close_reason == "closed by the peer"


async def test_closing_does_not_wait_for_a_server_that_leaves_its_stream_open(pair: Pair) -> None:
    ended = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def answer_once() -> None:
        peer, _ = listener.accept()
        with server_context(pair).wrap_socket(peer, server_side=True) as stream:
            frame = stream.recv(65536)
            stream.sendall(encode(decode(cut(frame, 0)).reply()))
            assert not stream.recv(1), "the client ends its stream"
            # As Netty in TLS 1.3: the connection stays open until the client closes it.
            assert ended.wait(10)

    serving = asyncio.create_task(asyncio.to_thread(answer_once))
    with listener:
        async with ConnectionPool(tls=Tls(ca=pair.cert)) as pool:
            address = f"127.0.0.1:{listener.getsockname()[1]}"
            await pool.request(address, Command.request(ECHO), timeout=10)
        assert pool.counters.dropped[CloseReason.SLOW_CLOSE] == 0
        ended.set()
        await serving


async def test_until_the_next_attempt_the_advice_stays(pair: Pair) -> None:
    async with (
        serving(server_context(pair)) as address,
        ConnectionPool(tls=Tls(), jitter=lambda: 1.0) as pool,
    ):
        for text in ("set tls to a file", r"the next attempt is made in .* set tls to a file"):
            with pytest.raises(ConnectFailed, match=text):
                await pool.get(address)


async def test_changed_files_are_used_by_the_next_connection(folder: Path) -> None:
    trusted = folder / "trusted.pem"
    first, second = self_signed(folder, "first"), self_signed(folder, "second")
    trusted.write_bytes(first.cert.read_bytes())
    tls = Tls(ca=trusted)
    async with serving(server_context(second)) as address:
        await refused(address, tls)
        trusted.write_bytes(second.cert.read_bytes())
        assert await call(address, tls) == b"x"
        trusted.unlink()
        twice(await refused(address, tls), "CA file", "No such file or directory")


def test_files_that_cannot_be_used_are_named_and_the_password_is_not(
    folder: Path, pair: Pair, member: Pair
) -> None:
    empty = folder / "empty.pem"
    empty.write_text("")
    for tls, text in (
        (Tls(ca=folder / "none.pem"), "none.pem can't be used: No such file or directory"),
        (Tls(ca=empty), "empty.pem can't be used: no certificate or crl found"),
        (Tls(cert=pair.cert, key=member.key, key_password="hunter2"), "mismatch"),
        (Tls(cert=member.cert, key=member.key), "the password is wrong"),
        (Tls(cert=member.cert, key=member.key, key_password="hunter3"), "the password is wrong"),
        (Tls(key=pair.key), "give cert too"),
    ):
        with pytest.raises(TlsError, match=text) as caught:
            tls.context()
        assert "hunter" not in f"{caught.value}{caught.value!r}{tls!r}"
