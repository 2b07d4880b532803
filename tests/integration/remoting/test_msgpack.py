"""Negotiation of msgpack over real sockets."""

from __future__ import annotations

import pytest

from remoting.pool import ConnectionPool
from remoting.protocol.codes import RequestCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.headers.send import SendMessageResponseHeader
from remoting.server import Server

HEADER = SendMessageResponseHeader(msg_id="ID", queue_id=1, queue_offset=2)


class Recorder:
    """A handler that records the codec of each request."""

    def __init__(self) -> None:
        self.codecs: list[SerializeType] = []

    def __call__(self, command: Command, _connection: object) -> Command:
        self.codecs.append(command.serialize)
        return command.reply(header=HEADER)


@pytest.mark.parametrize(
    ("offers", "accepts", "then"),
    [
        (True, True, SerializeType.MSGPACK),
        (True, False, SerializeType.JSON),
        (False, True, SerializeType.JSON),
    ],
)
async def test_msgpack_is_used_if_both_ends_offer_it(
    *, offers: bool, accepts: bool, then: SerializeType
) -> None:
    recorder = Recorder()
    async with (
        Server(recorder) as server,
        ConnectionPool(offer_msgpack=offers) as pool,
    ):
        server.endpoint.accept_msgpack = accepts
        await pool.request(server.address, Command.request(RequestCode.HEART_BEAT), timeout=10)
        answer = await pool.request(
            server.address, Command.request(RequestCode.SEND_MESSAGE_V2, body=b"x"), timeout=10
        )
        assert recorder.codecs == [SerializeType.JSON, then]
        assert answer.serialize == then
        assert answer.read(SendMessageResponseHeader) == HEADER


async def test_a_new_connection_renegotiates() -> None:
    recorder = Recorder()
    beat = Command.request(RequestCode.HEART_BEAT)
    async with ConnectionPool(offer_msgpack=True) as pool:
        first = Server(recorder)
        await first.start()
        for _ in range(2):
            await pool.request(first.address, beat, timeout=10)
        await first.stop()
        async with Server(recorder, port=first.port) as second:
            second.endpoint.accept_msgpack = False
            for _ in range(2):
                await pool.request(first.address, beat, timeout=10)
    json, msgpack = SerializeType.JSON, SerializeType.MSGPACK
    assert recorder.codecs == [json, msgpack, json, json]
