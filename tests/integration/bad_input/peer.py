"""A peer that can send anything: a plain socket, and frames built by hand."""

from __future__ import annotations

import re
import socket
import ssl
import struct
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Self

from pocketmq.testing import ServerProcess
from remoting.protocol.codes import RequestCode, SerializeType
from remoting.protocol.command import Command
from remoting.protocol.frame import FIELD, VALUE, cut, decode, encode, needed

PATIENCE = 20.0
"""Seconds to wait for an answer or an end; a busy CI machine needs a few."""

OFFER = (FIELD, VALUE)

_PREFIX = struct.Struct(">iI")
_SAMPLE = re.compile(r"^(\w+(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)


def frame(header: bytes, body: bytes = b"", *, serialize: int = 0) -> bytes:
    """Return a frame with valid lengths and any content."""
    length = 4 + len(header) + len(body)
    return _PREFIX.pack(length, serialize << 24 | len(header)) + header + body


class Peer:
    """One connection, with TLS if a context is given; to be used in a ``with`` block."""

    def __init__(
        self,
        address: str,
        *,
        receive_buffer_bytes: int | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_buffer_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self.socket.settimeout(PATIENCE)
        self.socket.connect((host, int(port)))
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=host)
        self._opaques = count(1)
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        """Send bytes; ignore that the server may have closed already."""
        # After a failed write, OpenSSL calls the length of the next one wrong.
        with suppress(ConnectionError, ssl.SSLError):
            self.socket.sendall(data)

    def ask(self, command: Command) -> Command:
        """Send a request and read its answer; skip other frames before it."""
        command.opaque = next(self._opaques)
        self.send(encode(command))
        while (answer := self.read()).opaque != command.opaque or not answer.is_response:
            pass
        return answer

    def read(self) -> Command:
        """The next command.

        Raises:
            EOFError: the server closed the connection.
        """
        while len(self._unread) < (size := needed(self._unread)):
            part = self.socket.recv(1 << 20)
            if not part:
                raise EOFError("the server closed the connection")
            self._unread += part
        whole, self._unread = self._unread[:size], self._unread[size:]
        found = cut(whole)
        assert found is not None
        return decode(found)

    def last_words(self) -> bytes:
        """Read until the server closes the connection; raise TimeoutError if it doesn't."""
        words = self._unread
        with suppress(ConnectionError):
            while part := self.socket.recv(1 << 20):
                words += part
        return words

    def reset(self) -> None:
        """Close with a TCP reset."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def agree_on_msgpack(self, code: int) -> None:
        """Offer our own header codec with a request that may carry the offer."""
        body = b'{"clientID":"attacker"}' if code == RequestCode.HEART_BEAT else b""
        answer = self.ask(Command(code, pairs=(OFFER, ("topic", "TBW102")), body=body))
        assert OFFER in (answer.pairs or ())


@dataclass(frozen=True)
class Target:
    """A server process under attack.

    Attributes:
        name: ``broker`` or ``nameserver``, as its metrics call it.
        harmless: the code of a request without fields that it always answers with success.
        carrier: the code of a request that may carry the offer of msgpack.
    """

    name: str
    process: ServerProcess
    harmless: int
    carrier: int

    @property
    def address(self) -> str:
        return self.process.addresses[self.name]

    def peer(self) -> Peer:
        return Peer(self.address)

    def harmless_request(self) -> Command:
        """Return a request that the server always answers with success."""
        return Command.request(self.harmless)

    def metrics(self) -> dict[str, float]:
        """All its metrics, by name and labels."""
        url = f"http://{self.process.addresses['metrics']}/metrics"
        with urllib.request.urlopen(url, timeout=PATIENCE) as page:
            return {name: float(value) for name, value in _SAMPLE.findall(page.read().decode())}

    def dropped(self, reason: str = "bad_frame") -> int:
        """Return how many peers it has dropped for a reason."""
        name = f'pocketmq_peers_dropped_total{{reason="{reason}",server="{self.name}"}}'
        return int(self.metrics()[name])

    @contextmanager
    def drops_a_peer(self) -> Iterator[Peer]:
        """Check that the block makes the server drop the peer, and that this is counted."""
        before = self.dropped()
        with self.peer() as peer:
            yield peer
            peer.last_words()
        assert self.dropped() == before + 1


def as_msgpack(command: Command) -> bytes:
    """Return a command's frame in the msgpack codec."""
    command.serialize = SerializeType.MSGPACK
    return encode(command)
