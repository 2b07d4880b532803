"""Connections that outlive the task they were opened for."""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Generator, Iterator

import pytest

from remoting.blocking import BlockingConnection
from remoting.errors import ConnectFailed
from remoting.protocol.codes import FLAG_RESPONSE
from remoting.protocol.command import Command
from remoting.protocol.frame import encode
from spark_connector.connections import ConnectionCache
from spark_connector.limits import MAX_KEPT_CONNECTIONS


class Peer:
    """A server whose connections the test controls."""

    def __init__(self, listener: socket.socket) -> None:
        self.listener = listener
        self.address = f"127.0.0.1:{listener.getsockname()[1]}"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def peer() -> Iterator[Peer]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(10)
        yield Peer(listener)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def cache(clock: Clock) -> Iterator[ConnectionCache]:
    cache = ConnectionCache(clock)
    yield cache
    cache.close()


def test_the_next_task_gets_the_connection_of_the_last(cache: ConnectionCache, peer: Peer) -> None:
    with cache.lease(peer.address) as first:
        assert cache.unused(peer.address) == 0
    with cache.lease(peer.address) as second:
        assert second is first
    assert cache.unused(peer.address) == 1


def test_two_tasks_at_a_time_have_two(cache: ConnectionCache, peer: Peer) -> None:
    with cache.lease(peer.address) as first, cache.lease(peer.address) as second:
        assert second is not first
    assert cache.unused(peer.address) == 2


def test_no_more_than_a_few_are_kept(cache: ConnectionCache, peer: Peer) -> None:
    leases = [cache.lease(peer.address) for _ in range(MAX_KEPT_CONNECTIONS + 1)]
    connections = [lease.__enter__() for lease in leases]
    for lease in leases:
        lease.__exit__(None, None, None)
    assert cache.unused(peer.address) == MAX_KEPT_CONNECTIONS
    assert [connection.closed for connection in connections].count(True) == 1


def test_after_an_error_it_is_closed(cache: ConnectionCache, peer: Peer) -> None:
    with pytest.raises(ZeroDivisionError), cache.lease(peer.address) as connection:
        raise ZeroDivisionError
    assert connection.closed
    assert cache.unused(peer.address) == 0


def test_a_generator_closed_early_leaves_nothing_half_read(
    cache: ConnectionCache, peer: Peer
) -> None:
    connections: list[BlockingConnection] = []

    def read() -> Generator[int, None, None]:
        with cache.lease(peer.address) as connection:
            connections.append(connection)
            while True:
                connection.submit(Command.request(11))
                yield 1

    reading = read()
    next(reading)
    reading.close()
    assert connections[0].closed
    assert cache.unused(peer.address) == 0


def test_one_with_unanswered_requests_is_not_kept(cache: ConnectionCache, peer: Peer) -> None:
    with cache.lease(peer.address) as connection:
        connection.submit(Command.request(11))
    assert connection.closed


def test_a_connection_closed_or_written_to_unasked_is_not_used_again(
    cache: ConnectionCache, peer: Peer
) -> None:
    for data in (b"", encode(Command(0, 9, FLAG_RESPONSE))):
        with cache.lease(peer.address) as first:
            other, _ = peer.listener.accept()
        with other:
            other.sendall(data)
        assert select.select([first._socket], [], [], 10)[0]
        with cache.lease(peer.address) as second:
            assert second is not first
            peer.listener.accept()[0].close()
        assert first.closed


def test_a_connection_unused_for_long_is_closed(
    cache: ConnectionCache, peer: Peer, clock: Clock
) -> None:
    with cache.lease(peer.address) as first:
        pass
    clock.now = 300.0
    with cache.lease(peer.address) as second:
        assert second is first
    clock.now = 600.5
    with cache.lease(peer.address) as third:
        assert third is not first
    assert first.closed


def test_an_unreachable_broker_is_reported(cache: ConnectionCache) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        with pytest.raises(ConnectFailed, match="Connection refused"), cache.lease(address):
            pass


def test_a_forked_worker_does_not_use_its_parents_connections(
    cache: ConnectionCache, peer: Peer
) -> None:
    with cache.lease(peer.address) as connection:
        other, _ = peer.listener.accept()
    mine, childs = os.pipe()
    pid = os.fork()
    if pid == 0:
        cache.forked()
        os.write(childs, b"%d" % cache.unused(peer.address))
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(mine, 10) == b"0"
    os.close(mine)
    os.close(childs)
    with cache.lease(peer.address) as again, other:
        assert again is connection
        other.sendall(encode(Command(0, 0, FLAG_RESPONSE)))
        again.request(Command.request(11))
