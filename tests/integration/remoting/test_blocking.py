"""The blocking connection, as used by threads and Spark tasks."""

from __future__ import annotations

import asyncio
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from remoting.blocking import BlockingConnection
from remoting.errors import AnswerTimeout, ConnectFailed, ConnectionLost, TooManyRequests
from remoting.protocol.codes import FLAG_RESPONSE
from remoting.protocol.command import Command
from remoting.protocol.frame import cut, decode, encode
from remoting.server import Server
from tests.integration.remoting.peers import CALL_BACK, ECHO, LARGE, LARGE_BYTES, SLOW, Services


async def with_server(work: Callable[[BlockingConnection, Services], Any], **limits: int) -> Any:
    """Run ``work`` in a thread beside a server."""
    services = Services()
    async with Server(services) as server:

        def in_thread() -> Any:
            with BlockingConnection(server.address, timeout=10, **limits) as connection:
                return work(connection, services)

        return await asyncio.to_thread(in_thread)


@contextmanager
def script(*steps: bytes | Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that accepts one connection and one request, runs its steps and closes."""

    def play() -> None:
        with listener.accept()[0] as peer:
            peer.recv(65536)
            for step in steps:
                if callable(step):
                    step(peer)
                else:
                    peer.sendall(step)
            # Closing with requests unread would reset the connection and lose the answers.
            if peer.fileno() >= 0:
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(65536):
                    pass

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=play)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


def submit_for_ever(connection: BlockingConnection, timeout: float) -> None:
    while True:
        connection.submit(Command.request(ECHO, body=bytes(8 << 20)), timeout=timeout)


async def test_a_request_is_answered() -> None:
    def work(connection: BlockingConnection, _services: Services) -> None:
        for n in range(100):
            answer = connection.request(Command.request(ECHO, body=b"%d" % n))
            assert bytes(answer.body) == b"%d" % n
        assert connection.in_flight == 0

    await with_server(work)


async def test_pipelined_requests_are_answered_in_the_order_they_are_done() -> None:
    def work(connection: BlockingConnection, _services: Services) -> None:
        opaques = [connection.submit(Command.request(ECHO, body=b"%d" % n)) for n in range(50)]
        assert connection.in_flight == 50
        for n, opaque in enumerate(opaques):
            answer = connection.receive()
            assert (answer.opaque, bytes(answer.body)) == (opaque, b"%d" % n)

    await with_server(work)


async def test_a_request_between_pipelined_ones_keeps_their_answers() -> None:
    def work(connection: BlockingConnection, _services: Services) -> None:
        for n in range(3):
            connection.submit(Command.request(ECHO, body=b"%d" % n))
        assert bytes(connection.request(Command.request(ECHO, body=b"mine")).body) == b"mine"
        assert connection.in_flight == 3
        assert [bytes(connection.receive().body) for _ in range(3)] == [b"0", b"1", b"2"]
        with pytest.raises(ValueError, match="nothing was submitted"):
            connection.receive()

    await with_server(work)


async def test_answers_larger_than_the_buffer_arrive_whole_and_the_buffer_is_reused() -> None:
    def work(connection: BlockingConnection, _services: Services) -> None:
        for _ in range(3):
            large = connection.request(Command.request(LARGE)).body
            assert len(large) == LARGE_BYTES
        for _ in range(5):
            for _ in range(4):
                connection.submit(Command.request(ECHO, body=bytes(100_000)))
            for _ in range(4):
                body = connection.receive().body
                assert len(body) == 100_000
                assert body.obj is large.obj

    await with_server(work, buffer_bytes=1000)


async def test_a_timeout_leaves_the_connection_usable_and_a_late_answer_is_dropped() -> None:
    loop = asyncio.get_running_loop()

    def work(connection: BlockingConnection, services: Services) -> None:
        with pytest.raises(AnswerTimeout, match=r"request 11 within 0\.05 s"):
            connection.request(Command.request(SLOW), timeout=0.05)
        connection.submit(Command.request(SLOW))
        with pytest.raises(AnswerTimeout, match="request 11"):
            connection.receive(timeout=0.05)
        loop.call_soon_threadsafe(services.gate.set)
        assert connection.receive().code == 0
        assert bytes(connection.request(Command.request(ECHO, body=b"x")).body) == b"x"
        assert connection.in_flight == 0

    await with_server(work)


async def test_bodies_are_received_into_the_callers_memory_others_into_the_buffer() -> None:
    def work(connection: BlockingConnection, _services: Services) -> None:
        shelf = memoryview(bytearray(LARGE_BYTES))
        asked: list[int] = []

        def place(answer: Command, length: int) -> memoryview | None:
            asked.append(answer.opaque)
            return None if answer.opaque == unwanted else shelf[:length]

        small = connection.submit(Command.request(ECHO, body=b"small"))
        unwanted = connection.submit(Command.request(ECHO, body=bytes(100_000)))
        large = connection.submit(Command.request(LARGE))
        empty = connection.submit(Command.request(ECHO))
        answers = {}
        for _ in range(4):
            answer = connection.receive(place=place)
            answers[answer.opaque] = bytes(answer.body)
            if answer.opaque in {small, large}:
                assert bytes(shelf[: len(answer.body)]) == bytes(answer.body)
        assert answers[small] == b"small"
        assert answers[unwanted] == bytes(100_000)
        assert len(answers[large]) == LARGE_BYTES
        assert answers[empty] == b""
        assert {small, unwanted, large} == set(asked)

    await with_server(work)


def test_answers_are_placed_however_they_are_split() -> None:
    answers = [encode(Command(0, n, FLAG_RESPONSE, body=bytes([n]) * (50 * n))) for n in range(4)]
    answers.insert(2, encode(Command(ECHO, 77, body=b"a request of the server")))
    stream = b"".join(answers)
    dribble = [stream[start : start + 7] for start in range(0, len(stream), 7)]
    shelf = memoryview(bytearray(1000))
    with script(*dribble) as address, BlockingConnection(address, timeout=10) as connection:
        for _ in range(4):
            connection.submit(Command.request(ECHO))
        for n in range(4):
            answer = connection.receive(place=lambda _, length: shelf[:length])
            assert bytes(answer.body) == bytes([n]) * (50 * n)


def test_a_partly_placed_answer_cannot_be_awaited_again() -> None:
    stream = encode(Command(0, 0, FLAG_RESPONSE, body=bytes(1000)))
    done = threading.Event()

    def wait(_peer: socket.socket) -> None:
        done.wait(10)

    with script(stream[:-1], wait) as address, BlockingConnection(address) as connection:
        connection.submit(Command.request(ECHO))
        select.select([connection], [], [], 10)
        with pytest.raises(AnswerTimeout):
            connection.receive(timeout=0.2, place=lambda _, length: memoryview(bytearray(length)))
        assert connection.closed
        with pytest.raises(ConnectionLost, match="part of an answer"):
            connection.receive()
        done.set()
    with script(stream[:-1]) as address, BlockingConnection(address, timeout=10) as connection:
        connection.submit(Command.request(ECHO))
        with pytest.raises(ConnectionLost, match="closed by the peer"):
            connection.receive(place=lambda _, length: memoryview(bytearray(length)))


async def test_an_idle_connection_is_usable_while_the_server_runs() -> None:
    def work(connection: BlockingConnection, _services: Services) -> None:
        assert connection.usable
        connection.submit(Command.request(ECHO))
        assert not connection.usable
        connection.receive()
        assert connection.usable
        connection.close()
        assert not connection.usable

    await with_server(work)


def test_a_connection_whose_server_has_left_is_not_usable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with BlockingConnection(address) as connection:
            listener.accept()[0].close()
            select.select([connection], [], [], 10)
            assert not connection.usable


async def test_requests_from_the_server_are_skipped() -> None:
    def work(connection: BlockingConnection, _services: Services) -> None:
        connection.submit(Command.request(CALL_BACK))
        assert bytes(connection.request(Command.request(ECHO, body=b"x")).body) == b"x"

    await with_server(work)


async def test_a_oneway_request_waits_for_nothing() -> None:
    def work(connection: BlockingConnection, _services: Services) -> None:
        connection.send_oneway(Command.request(ECHO, oneway=True))
        assert connection.in_flight == 0
        connection.request(Command.request(ECHO))

    await with_server(work)


async def test_using_a_closed_connection_is_an_error() -> None:
    def work(connection: BlockingConnection, _services: Services) -> None:
        assert not connection.closed
        connection.close()
        connection.close()
        assert connection.closed
        with pytest.raises(ConnectionLost, match="closed by us"):
            connection.request(Command.request(ECHO))

    await with_server(work)


async def test_no_more_than_the_limit_are_in_flight() -> None:
    def work(connection: BlockingConnection, _services: Services) -> None:
        for _ in range(2):
            connection.submit(Command.request(ECHO))
        with pytest.raises(TooManyRequests, match="2 requests wait"):
            connection.submit(Command.request(ECHO))

    await with_server(work, max_in_flight=2)


def test_connecting_to_a_closed_port_fails_with_a_message() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
    with pytest.raises(ConnectFailed, match=f"{address}: Connection refused; check that it runs"):
        BlockingConnection(address)
    with pytest.raises(ConnectFailed, match="this is not host:port"):
        BlockingConnection("nowhere")


def test_connecting_to_a_silent_peer_times_out() -> None:
    with socket.socket() as listener, socket.socket() as first, socket.socket() as second:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for sock in (first, second):
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
        with pytest.raises(ConnectFailed, match=r"no answer within 0\.1 s"):
            BlockingConnection(f"127.0.0.1:{listener.getsockname()[1]}", connect_timeout=0.1)


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ((), "closed by the peer"),
        ((encode(Command(0, 0, FLAG_RESPONSE))[:10],), "closed by the peer"),
        ((b"HTTP/1.1 400 Bad Request\r\n\r\n",), "invalid frame"),
        ((b"\0\0\0\x08\0\0\0\x04{[[[",), "invalid frame"),
    ],
)
def test_a_server_that_closes_or_sends_garbage_ends_the_connection(
    steps: tuple[bytes, ...], reason: str
) -> None:
    with script(*steps) as address, BlockingConnection(address, timeout=10) as connection:
        with pytest.raises(ConnectionLost, match=reason):
            connection.request(Command.request(ECHO))
        assert connection.closed
        with pytest.raises(ConnectionLost, match=reason):
            connection.submit(Command.request(ECHO))


def test_a_reset_ends_the_connection() -> None:
    def reset(peer: socket.socket) -> None:
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()

    with script(reset) as address, BlockingConnection(address, timeout=10) as connection:
        connection.submit(Command.request(ECHO))
        with pytest.raises(ConnectionLost, match="reset"):
            connection.receive()


def test_an_answer_may_come_in_any_pieces() -> None:
    answers = b"".join(encode(Command(0, n, FLAG_RESPONSE, body=b"%d" % n)) for n in range(3))
    dribble = [answers[start : start + 7] for start in range(0, len(answers), 7)]
    with script(*dribble) as address, BlockingConnection(address, timeout=10) as connection:
        for _ in range(3):
            connection.submit(Command.request(ECHO))
        assert [bytes(connection.receive().body) for _ in range(3)] == [b"0", b"1", b"2"]


def test_a_server_that_reads_nothing_ends_the_connection_in_time() -> None:
    done = threading.Event()

    def wait(_peer: socket.socket) -> None:
        done.wait(10)

    with script(wait) as address:
        with BlockingConnection(address) as connection:
            with pytest.raises(AnswerTimeout):
                submit_for_ever(connection, 0.1)
            with pytest.raises(ConnectionLost, match="could not be sent in time"):
                connection.receive()
        done.set()


def test_sending_to_a_server_that_has_left_ends_the_connection() -> None:
    with script() as address, BlockingConnection(address, timeout=10) as connection:
        connection.submit(Command.request(ECHO))
        with pytest.raises(ConnectionLost):
            connection.receive()

    with (
        script(socket.socket.close) as address,
        BlockingConnection(address, timeout=10) as connection,
    ):
        with pytest.raises(ConnectionLost):
            submit_for_ever(connection, 10)
        assert connection.closed


def test_transcripts_and_the_connection_use_the_same_protocol() -> None:
    frame = cut(encode(Command.request(ECHO)))
    assert frame is not None
    assert decode(frame).code == ECHO
