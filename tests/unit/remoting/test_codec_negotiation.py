"""Two ends negotiate the msgpack header, or continue without it."""

from __future__ import annotations

import pytest

from remoting.counters import CloseReason
from remoting.protocol.codes import RequestCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.errors import HeaderError
from remoting.protocol.frame import FIELD
from remoting.protocol.headers.send import SendMessageResponseHeader
from tests.unit.remoting.transcripts import Peer, request, turns

ROUTE = RequestCode.GET_ROUTEINFO_BY_TOPIC


def echo(command: Command, _connection: object) -> Command:
    return command.reply(extra=(("seen", "yes"),))


def a_pair(*, offers: bool = True, accepts: bool = True) -> tuple[Peer, Peer]:
    client = Peer(serving=False, offer_msgpack=offers)
    server = Peer(serving=True, handler=echo, accept_msgpack=accepts)
    return client, server


async def exchange(client: Peer, server: Peer, command: Command) -> tuple[Command, Command]:
    """The request as it went over the wire, and its answer."""
    future = client.connection.request_nowait(command, timeout=3)
    await turns()
    sent = client.written()
    server.arrive(*sent)
    client.arrive(*server.written())
    return sent[0], await future


@pytest.mark.parametrize("code", [ROUTE, RequestCode.HEART_BEAT])
async def test_both_ends_agree_in_the_first_route_or_heartbeat(code: int) -> None:
    client, server = a_pair()
    before, _ = await exchange(client, server, Command.request(10))
    assert (before.serialize, FIELD in before.fields) == (SerializeType.JSON, False)

    offer, answer = await exchange(client, server, Command.request(code, extra=(("a", "b"),)))
    assert offer.serialize == SerializeType.JSON
    assert offer.fields == {"a": "b", FIELD: "msgpack"}
    assert answer.fields == {"seen": "yes", FIELD: "msgpack"}

    after, answer = await exchange(client, server, Command.request(code))
    assert after.serialize == answer.serialize == SerializeType.MSGPACK
    assert FIELD not in after.fields
    assert answer.fields == {"seen": "yes"}


@pytest.mark.parametrize(("offers", "accepts"), [(True, False), (False, True)])
async def test_without_both_nothing_changes(*, offers: bool, accepts: bool) -> None:
    client, server = a_pair(offers=offers, accepts=accepts)
    for number in range(3):
        sent, answer = await exchange(client, server, Command.request(ROUTE))
        assert sent.serialize == answer.serialize == SerializeType.JSON
        assert (FIELD in sent.fields) == (offers and number == 0), "offered once"
        assert answer.fields == {"seen": "yes"}


async def test_a_command_may_be_sent_again_over_a_connection_without_agreement() -> None:
    client, server = a_pair()
    command = Command.request(ROUTE, extra=(("a", "b"),))
    for _ in range(3):
        await exchange(client, server, command)
        assert command.serialize == SerializeType.JSON
        assert command.pairs == (("a", "b"),)


async def test_a_codec_that_was_chosen_is_kept() -> None:
    client, server = a_pair()
    await exchange(client, server, Command.request(ROUTE))
    command = Command.request(10)
    command.serialize = SerializeType.ROCKETMQ
    sent, answer = await exchange(client, server, command)
    assert sent.serialize == answer.serialize == SerializeType.ROCKETMQ


async def test_a_oneway_request_carries_no_offer() -> None:
    client, _ = a_pair()
    client.connection.send_oneway(Command.request(RequestCode.HEART_BEAT, oneway=True))
    await turns()
    assert FIELD not in client.written()[0].fields


async def test_an_offer_in_a_send_or_pull_or_a_oneway_request_is_ignored() -> None:
    _, server = a_pair()
    offer = ((FIELD, "msgpack"),)
    server.arrive(request(10, extra=offer), request(ROUTE, extra=offer, oneway=True))
    assert [answer.fields for answer in server.written()] == [{"seen": "yes"}]


async def test_requests_from_the_server_stay_json() -> None:
    client, server = a_pair()
    await exchange(client, server, Command.request(ROUTE))
    server.connection.send_oneway(Command.request(40, oneway=True))
    await turns()
    assert server.written()[0].serialize == SerializeType.JSON


@pytest.mark.parametrize("serving", [True, False])
async def test_a_msgpack_frame_without_agreement_ends_the_connection(*, serving: bool) -> None:
    peer = Peer(serving=serving, handler=echo, accept_msgpack=True)
    command = request()
    command.serialize = SerializeType.MSGPACK
    peer.arrive(command)
    assert peer.connection.closed
    assert peer.counters.dropped[CloseReason.BAD_FRAME] == 1
    assert "agreement" in peer.connection.close_reason


async def test_a_msgpack_answer_is_read_as_the_typed_header_of_its_request() -> None:
    header = SendMessageResponseHeader(msg_id="ID", queue_id=3, queue_offset=7)
    client, server = a_pair()
    await exchange(client, server, Command.request(ROUTE))
    server.endpoint.handler = lambda command, _: command.reply(header=header)
    _, answer = await exchange(client, server, Command.request(RequestCode.SEND_MESSAGE))
    assert answer.serialize == SerializeType.MSGPACK
    assert answer.read(SendMessageResponseHeader) == header


async def test_a_msgpack_answer_that_does_not_fit_says_so_when_it_is_read() -> None:
    client, server = a_pair()
    await exchange(client, server, Command.request(ROUTE))

    def handler(command: Command, _connection: object) -> Command:
        answer = command.reply()
        answer.values = (None, "no number")
        return answer

    server.endpoint.handler = handler
    _, answer = await exchange(client, server, Command.request(RequestCode.SEND_MESSAGE))
    assert answer.values == (None, "no number")
    with pytest.raises(HeaderError, match="the field msgId is missing"):
        answer.read(SendMessageResponseHeader)
