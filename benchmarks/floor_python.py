"""A server in Python that stores nothing: the same as ``floor.c``, for ``benchmarks.floor``.

It reads only those fields of a request that the answer needs, with a regular expression. The 32
records of a pull are scattered in a log, so they are sliced one by one, joined with the header, and
written, as in any broker in Python. Its rate is an upper limit for a broker on uvloop and this
interpreter, which in addition has to decode, check, store and count.
"""

from __future__ import annotations

import asyncio
import re
import sys
from struct import Struct
from typing import Final, cast

import uvloop

from benchmarks.scenarios import PREFILL

RECORD_BYTES: Final = 1200
QUEUES: Final = 4
PULLED: Final = 32

_PREFIX: Final = Struct(">II")
_OPAQUE: Final = re.compile(rb'"opaque":(\d+)')
_PULL: Final = re.compile(rb'"queueId":"(\d+)","queueOffset":"(\d+)".*"opaque":(\d+)')
_SENT: Final = (
    b'{"code":0,"extFields":{"queueId":"0","TRACE_ON":"true","MSG_REGION":"DefaultRegion",'
    b'"msgId":"7F000001000051AF0000000000000000","queueOffset":"0"},"flag":1,"language":"JAVA",'
    b'"opaque":%b,"serializeTypeCurrentRPC":"JSON","version":407}'
)
_FOUND: Final = (
    b'{"code":%d,"extFields":{"suggestWhichBrokerId":"0","maxOffset":"50000",'
    b'"nextBeginOffset":"%d","minOffset":"0"},"flag":1,"language":"JAVA","opaque":%b,'
    b'"remark":"FOUND","serializeTypeCurrentRPC":"JSON","version":407}'
)


class Floor(asyncio.Protocol):
    """One connection."""

    def __init__(self, log: memoryview) -> None:
        self._log = log
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Answer all complete frames with one write."""
        data = self._rest + data if self._rest else data
        parts: list[bytes | memoryview] = []
        at = 0
        while len(data) - at >= _PREFIX.size:
            length, header_length = _PREFIX.unpack_from(data, at)
            if len(data) - at < length + 4:
                break
            header = data[at + _PREFIX.size : at + _PREFIX.size + header_length]
            at += length + 4
            pull = _PULL.search(header)
            if pull is not None:
                self._pull(parts, int(pull[1]), int(pull[2]), pull[3])
            elif (sent := _OPAQUE.search(header)) is not None:
                text = _SENT % sent[1]
                parts += (_PREFIX.pack(4 + len(text), len(text)), text)
        self._rest = data[at:]
        if parts:
            self._transport.write(b"".join(parts))

    def _pull(
        self, parts: list[bytes | memoryview], queue: int, offset: int, opaque: bytes
    ) -> None:
        count = PULLED if offset + PULLED <= PREFILL // QUEUES else 0
        text = _FOUND % (0 if count else 19, offset + count, opaque)
        body = count * RECORD_BYTES
        parts += (_PREFIX.pack(4 + len(text) + body, len(text)), text)
        first = (offset * QUEUES + queue) * RECORD_BYTES
        step = QUEUES * RECORD_BYTES
        log = self._log
        parts += [log[at : at + RECORD_BYTES] for at in range(first, first + count * step, step)]


async def main(port: int) -> None:
    """Serve until killed."""
    record = RECORD_BYTES.to_bytes(4, "big") + b"x" * (RECORD_BYTES - 4)
    log = memoryview(record * PREFILL)
    server = await asyncio.get_running_loop().create_server(lambda: Floor(log), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main(int(sys.argv[1])))
