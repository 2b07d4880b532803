"""Records of every kind there is, as hypothesis makes them up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from hypothesis import strategies as st

from remoting.protocol.message import properties
from remoting.protocol.message.compression import CompressionKind, compress
from remoting.protocol.message.record import MAGIC_V1, MAGIC_V2, encode_record, host_bytes

V4: Final = host_bytes("10.0.0.1", 40000)
V6: Final = host_bytes("2001:db8::7", 10911)
LARGEST_LONG: Final = 2**63 - 1


def record(**fields: Any) -> bytes:
    """A record; what is not said is as simple as can be."""
    given: dict[str, Any] = {"topic": "orders", "body": b"", "born_host": V4, "store_host": V4}
    return encode_record(**(given | fields))


def numbered(number: int, **fields: Any) -> bytes:
    """So many records at queue offsets 0, 1, 2 ..., the offset also in body and tag."""
    return b"".join(
        record(
            queue_offset=offset,
            body=b"body %d" % offset,
            properties=properties.encode({"TAGS": f"T{offset % 3}"}),
            **fields,
        )
        for offset in range(number)
    )


names = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "a", "größe", "x" * 40])
values = st.one_of(
    st.sampled_from(["true", "A", "a b  c", "grün", ""]),
    st.text(
        st.characters(exclude_characters="\0\x01\x02", codec="utf-8"), min_size=1, max_size=300
    ),
)
tidy_texts = st.builds(
    lambda entries, trailing: properties.encode(entries, trailing=trailing),
    st.dictionaries(names, values, max_size=5),
    st.booleans(),
)
odd_texts = st.one_of(
    st.lists(
        st.sampled_from([b"KEYS", b"TAGS", b"\x01", b"\x02", b"x", b"\xff", b"\0", "ü".encode()]),
        max_size=12,
    ).map(b"".join),
    st.binary(max_size=30),
)
hosts = st.sampled_from([V4, V6, host_bytes("255.254.253.252", 65535), bytes(8), b"\xff" * 8])
longs = st.integers(-LARGEST_LONG - 1, LARGEST_LONG)
ints = st.integers(-(2**31), 2**31 - 1)
right_crcs = st.none()
times = st.one_of(st.integers(0, 2**42), st.sampled_from([-1, -(10**12)]))


@dataclass(frozen=True, slots=True)
class Body:
    """A body as stored, and the bits that say how."""

    stored: bytes
    bits: int


def _compressed(body: bytes, kind: CompressionKind) -> Body:
    return Body(*compress(body, kind))


plain_bodies = st.binary(max_size=200).map(lambda body: Body(body, 0))
compressed_bodies = st.builds(
    _compressed, st.binary(max_size=200), st.sampled_from(["zlib", "lz4", "zstd"])
)
broken_bodies = st.builds(
    Body, st.binary(max_size=40), st.sampled_from([0x1, 0x101, 0x201, 0x301, 0x401, 0x701])
)


def _record(body: Body, **fields: Any) -> bytes:
    return record(body=body.stored, sys_flag=body.bits, **fields)


def records(
    *,
    bodies: st.SearchStrategy[Body] = plain_bodies,
    texts: st.SearchStrategy[bytes] = tidy_texts,
    times: st.SearchStrategy[int] = times,
    crcs: st.SearchStrategy[int | None] = right_crcs,
) -> st.SearchStrategy[bytes]:
    """Whole records with these bodies, properties texts and timestamps."""
    return st.builds(
        _record,
        body=bodies,
        topic=st.sampled_from(["orders", "%RETRY%billing", "t" * 127, "grün", ""]),
        properties=texts,
        born_host=hosts,
        store_host=hosts,
        queue_id=ints,
        flag=ints,
        queue_offset=st.integers(0, 50),
        physical_offset=longs,
        born_timestamp_ms=times,
        store_timestamp_ms=times,
        reconsume_times=ints,
        crc=crcs,
        magic=st.sampled_from([MAGIC_V1, MAGIC_V2]),
    )
