"""How two ends agree on the msgpack header, per connection.

The client puts ``pmqCodecs=msgpack`` into the ext fields of its first route request or heartbeat
(never of a hot code); a server that knows it puts the same field into the answer. From then on the
client writes type 2 and the server answers type 2 with type 2. Anybody else ignores an ext field it
does not know, and nothing changes. Requests of the server itself stay JSON.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from remoting.protocol.codes import RequestCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.frame import encode, encode_head

FIELD: Final = "pmqCodecs"
VALUE: Final = "msgpack"
CARRIERS: Final = frozenset({RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.HEART_BEAT})
"""Requests that may carry an offer."""

_PAIR: Final = (FIELD, VALUE)


def _has_pair(command: Command) -> bool:
    return any(key == FIELD and VALUE in value.split(",") for key, value in command.fields.items())


class CodecNegotiation:
    """The state of one connection."""

    __slots__ = ("_accepts", "_asked", "_offers", "_owed", "_writes", "agreed")

    def __init__(self, *, offers: bool, accepts: bool) -> None:
        self.agreed = False
        """Type 2 may come in."""
        self._writes = False
        self._offers = offers
        self._accepts = accepts
        self._asked: int | None = None
        self._owed: int | None = None

    def encode_request(self, command: Command) -> bytes:
        """A request of ours up to its body, with the offer if it is the one to carry it.

        The command itself stays as it was: it may be sent again over another connection.
        """
        if self._writes:
            if command.serialize != SerializeType.JSON:
                return _head(command)
            command.serialize = SerializeType.MSGPACK
            try:
                return _head(command)
            finally:
                command.serialize = SerializeType.JSON
        if self._offers and command.code in CARRIERS and not command.is_oneway:
            self._offers = False
            self._asked = command.opaque
            return _with_pair(command, _head)
        return _head(command)

    def see_response(self, command: Command) -> None:
        """The client looks for the answer to its offer."""
        if command.opaque == self._asked:
            self._asked = None
            self.agreed = self._writes = _has_pair(command)

    def see_request(self, command: Command) -> None:
        """The server looks for an offer."""
        if (
            self._accepts
            and command.code in CARRIERS
            and not command.is_oneway
            and _has_pair(command)
        ):
            self._owed = command.opaque

    def encode_answer(self, command: Command) -> bytes:
        """An answer of the server, with the agreement if it is owed."""
        if self._owed is None or command.opaque != self._owed or not command.is_response:
            return encode(command)
        self._owed = None
        self.agreed = True
        return _with_pair(command, encode)


def _head(command: Command) -> bytes:
    return encode_head(command, len(command.body))


def _with_pair(command: Command, encoder: Callable[[Command], bytes]) -> bytes:
    pairs = command.pairs
    command.pairs = (*(pairs or ()), _PAIR)
    try:
        return encoder(command)
    finally:
        command.pairs = pairs
