"""Frames that change after they were signed, at a broker with accounts, without and with TLS.

Nothing is done for a frame whose signature is wrong, and what is stored was signed.
"""

from __future__ import annotations

import random
import socket
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

import client
from pocketmq import testing
from pocketmq.server.process import private_megabytes
from remoting.protocol import bodies
from remoting.protocol.bodies.stats import KVTable
from remoting.protocol.codes import RequestCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.frame import PREFIX_BYTES, cut, decode, encode
from remoting.protocol.signing import ACCESS_KEY, SIGNATURE, Credentials, signed
from tests.harness.certificates import self_signed
from tests.integration.bad_input.peer import Peer, frame
from tests.support.sizes import size
from tests.unit.broker.harness import send_command
from tests.unit.remoting.protocol import captured_frames

pytestmark = pytest.mark.timeout(3600)

FRAMES = size(test=500, ci=2_000, soak=500_000)
BURST = 20
"""Frames sent before an answer is awaited; a frame that ends the connection loses those after."""

TOPIC = "fuzz"
ACCOUNTS = {"fuzz-admin": {"admin": True}, "fuzz-writer": {"topicPerms": [f"{TOPIC}=PUB"]}}
MEMORY_MEGABYTES = 256

Connect = Callable[[], Peer]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[testing.StandaloneServer]:
    """One broker, which accepts both kinds of connection on its port."""
    pair = self_signed(tmp_path_factory.mktemp("tls"))
    settings = {"tls.server.certPath": str(pair.cert), "tls.server.keyPath": str(pair.key)}
    with testing.broker(settings=settings, accounts=ACCOUNTS) as running:
        admin = running.credentials["fuzz-admin"]
        with client.blocking.Admin(running.nameserver, credentials=admin) as cluster:
            cluster.create_topic(TOPIC, queues=1)
        yield running


@pytest.fixture(params=["plain", "TLS"])
def connect(request: pytest.FixtureRequest, server: testing.StandaloneServer) -> Connect:
    context = None
    if request.param == "TLS":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return lambda: Peer(server.broker, tls=context)


@contextmanager
def unharmed(server: testing.StandaloneServer) -> Iterator[None]:
    """Check that the block leaves no fault, and changes nothing but the messages of the topic."""
    before = state(server)
    yield
    assert state(server) == before
    assert '"exception"' not in server.log
    assert private_megabytes(server.pid) < MEMORY_MEGABYTES


def state(server: testing.StandaloneServer) -> list[bytes]:
    """Return topics, groups, offsets, settings and accounts."""
    codes = (
        RequestCode.GET_ALL_TOPIC_CONFIG,
        RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET,
        RequestCode.GET_BROKER_CONFIG,
        RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    )
    with Peer(server.broker) as peer:
        return [bytes(ask(peer, server, code).body) for code in codes]


def ask(peer: Peer, server: testing.StandaloneServer, code: int) -> Command:
    answer = peer.ask(signed(Command.request(code), server.credentials["fuzz-admin"]))
    assert answer.code == 0, answer.remark
    return answer


def log_end(server: testing.StandaloneServer) -> str:
    with Peer(server.broker) as peer:
        answer = ask(peer, server, RequestCode.GET_BROKER_RUNTIME_INFO)
    table = bodies.decode(KVTable, bytes(answer.body)).table
    return table["commitLogMaxOffset"]


def changed(original: bytes, dice: random.Random) -> bytes:
    """Return a frame with another header or body, and lengths that fit."""
    end = PREFIX_BYTES + int.from_bytes(original[5:8])
    parts = [bytearray(original[PREFIX_BYTES:end]), bytearray(original[end:])]
    data = parts[0] if dice.random() < 0.85 or not parts[1] else parts[1]
    for _ in range(dice.choice((1, 1, 2, 8))):
        at = dice.randrange(len(data) + 1)
        until = min(len(data), at + dice.choice((1, 2, 16)))
        match dice.randrange(5):
            case 0:
                data[at:until] = dice.randbytes(until - at)
            case 1:
                del data[at:until]
            case 2:
                data[at:at] = data[at:until]
            case 3:
                data[at:at] = dice.randbytes(dice.choice((1, 4, 100)))
            case _:
                data[at:until] = data[at:until].swapcase()
    return frame(bytes(parts[0]), bytes(parts[1]), serialize=original[4])


def with_lengths_that_lie(original: bytes, dice: random.Random) -> bytes:
    data = bytearray(original[: dice.randrange(len(original)) + 1])
    data[dice.randrange(min(len(data), PREFIX_BYTES))] = dice.randrange(256)
    return bytes(data)


def attack(connect: Connect, originals: list[bytes], dice: random.Random) -> None:
    """Send changed frames, some of them many times, over connections that the server may end."""
    for _ in range(FRAMES // BURST):
        with connect() as peer, suppress(EOFError, ConnectionError):
            for _ in range(BURST):
                peer.send(changed(dice.choice(originals), dice) * dice.choice((1, 1, 1, 3)))
            # Without a signature, but with an answer.
            peer.ask(Command.request(RequestCode.GET_BROKER_CONFIG))
        with connect() as peer:
            peer.send(with_lengths_that_lie(dice.choice(originals), dice))
            with suppress(OSError):  # already ended by the server
                peer.socket.shutdown(socket.SHUT_WR)
            peer.last_words()


def test_frames_signed_with_another_key_have_no_effect(
    server: testing.StandaloneServer, connect: Connect
) -> None:
    stranger = Credentials("fuzz-admin", "another-secret")
    originals = []
    for name in captured_frames.FILES:
        for line in captured_frames.lines(name):
            if line["role"] != "client-broker" or line["type"] not in {"request", "oneway"}:
                continue
            captured = cut(bytes.fromhex(line["frame_hex"]))
            assert captured is not None
            command = decode(captured)
            command.pairs = tuple(
                pair for pair in command.pairs or () if pair[0] not in {ACCESS_KEY, SIGNATURE}
            )
            originals.append(encode(signed(command, stranger)))
    before = log_end(server)
    with unharmed(server):
        attack(connect, originals, random.Random(7))
    assert log_end(server) == before


BODIES = {
    codec: [f"{codec.name} {number} 中".encode() for number in range(20)]
    for codec in (SerializeType.JSON, SerializeType.ROCKETMQ)
}


@pytest.mark.parametrize("codec", BODIES)
def test_what_is_stored_was_signed(
    server: testing.StandaloneServer, connect: Connect, codec: SerializeType
) -> None:
    writer, admin = (server.credentials[name] for name in ("fuzz-writer", "fuzz-admin"))
    originals = []
    for body in BODIES[codec]:
        command = send_command(TOPIC, body, properties="KEYS\x01k\x02")
        command.serialize = codec
        originals.append(encode(signed(command, writer)))
    with Peer(server.broker) as peer:
        for original in originals:
            peer.send(original)
            assert peer.read().code == 0
    with unharmed(server):
        attack(connect, originals, random.Random(11))
    with client.blocking.PullConsumer(
        server.nameserver, group="fuzz-reader", start_from=client.FIRST, credentials=admin
    ) as reader:
        reader.assign(reader.queues(TOPIC))
        stored: set[bytes] = set()
        while not stored >= set(BODIES[codec]) and (more := reader.get_many(1000, timeout=30)):
            stored |= {one.body for one in more}
        while more := reader.get_many(1000, timeout=0.5):
            stored |= {one.body for one in more}
    assert set(BODIES[codec]) <= stored <= {body for some in BODIES.values() for body in some}
