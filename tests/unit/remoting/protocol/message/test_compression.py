"""Bodies round-trip through compression, and the size limit holds while they inflate."""

from __future__ import annotations

import tracemalloc
import zlib
from collections.abc import Callable

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from remoting.protocol.errors import BodyError
from remoting.protocol.message.compression import CompressionKind, compress, decompress

KINDS: list[CompressionKind] = ["zlib", "lz4", "zstd"]
BITS = {"zlib": 0x301, "lz4": 0x101, "zstd": 0x201}
MIB = 1024 * 1024


@given(st.binary(max_size=2000), st.sampled_from(KINDS))
def test_a_body_round_trips(body: bytes, kind: CompressionKind) -> None:
    packed, bits = compress(body, kind)
    assert bits == BITS[kind]
    assert decompress(packed, bits, max_bytes=len(body)) == body
    assert decompress(memoryview(packed), bits, max_bytes=3000) == body


@pytest.mark.parametrize("kind", KINDS)
def test_a_large_body_round_trips(kind: CompressionKind) -> None:
    body = bytes(range(256)) * 4096
    packed, bits = compress(body, kind, 1)
    assert decompress(packed, bits, max_bytes=len(body)) == body


def test_the_default_is_a_zlib_stream_of_level_5() -> None:
    packed, bits = compress(b"hello" * 20)
    assert (packed, bits) == (zlib.compress(b"hello" * 20, 5), 0x301)
    assert packed[:2] == b"\x78\x5e"


def test_the_legacy_flag_means_zlib() -> None:
    assert decompress(zlib.compress(b"old"), 0x001) == b"old"


def test_without_the_compressed_bit_the_body_is_as_it_is() -> None:
    assert decompress(b"plain", 0x300) == b"plain"
    assert decompress(memoryview(b"plain"), 0) == b"plain"


def test_an_empty_body_is_empty() -> None:
    assert decompress(b"", 0x301) == b""


@pytest.mark.parametrize("kind", range(4, 8))
def test_an_unknown_type_is_refused(kind: int) -> None:
    with pytest.raises(BodyError, match=f"unknown way: type {kind}"):
        decompress(b"x", kind << 8 | 1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_follows_the_stream_is_ignored(kind: CompressionKind) -> None:
    packed, bits = compress(b"body", kind)
    assert decompress(packed + b"more", bits) == b"body"


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_cut_off_anywhere_is_refused(kind: CompressionKind) -> None:
    packed, bits = compress(b"a body that is " * 9, kind)
    for length in range(1, len(packed)):
        with pytest.raises(BodyError, match="does not inflate"):
            decompress(packed[:length], bits)


@given(st.binary(min_size=1, max_size=200), st.sampled_from([0x001, 0x101, 0x201, 0x301]))
def test_arbitrary_bytes_raise_nothing_but_a_body_error(body: bytes, flags: int) -> None:
    try:
        inflated = decompress(body, flags, max_bytes=1000)
    except BodyError:
        return
    assert len(inflated) <= 1000


def damaged(packed: bytes, data: st.DataObject) -> bytes:
    changed = bytearray(packed)
    changed[data.draw(st.integers(0, len(packed) - 1))] = data.draw(st.integers(0, 255))
    return bytes(changed)


@given(st.binary(max_size=300), st.sampled_from(KINDS), st.data())
def test_a_changed_byte_raises_nothing_but_a_body_error(
    body: bytes, kind: CompressionKind, data: st.DataObject
) -> None:
    packed, bits = compress(body, kind)
    try:
        inflated = decompress(damaged(packed, data), bits, max_bytes=1000)
    except BodyError:
        return
    assert len(inflated) <= 1000


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_is_exact(kind: CompressionKind) -> None:
    packed, bits = compress(bytes(1000), kind)
    assert decompress(packed, bits, max_bytes=1000) == bytes(1000)
    with pytest.raises(BodyError, match="inflates to more than 999 bytes"):
        decompress(packed, bits, max_bytes=999)


def zlib_bomb() -> bytes:
    packer = zlib.compressobj(9)
    return b"".join([*(packer.compress(bytes(MIB)) for _ in range(100)), packer.flush()])


def lz4_bomb() -> bytes:
    packer = lz4.frame.LZ4FrameCompressor()
    parts = [packer.begin()]
    parts += [packer.compress(bytes(MIB)) for _ in range(100)]
    return b"".join([*parts, packer.flush()])


def zstd_bomb() -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    return b"".join([*(packer.compress(bytes(MIB)) for _ in range(100)), packer.flush()])


def zstd_bomb_that_says_so() -> bytes:
    packer = zstandard.ZstdCompressor().compressobj(size=100 * MIB)
    return b"".join([*(packer.compress(bytes(MIB)) for _ in range(100)), packer.flush()])


@pytest.mark.parametrize(
    ("bomb", "flags"),
    [
        (zlib_bomb, 0x301),
        (lz4_bomb, 0x101),
        (zstd_bomb, 0x201),
        (zstd_bomb_that_says_so, 0x201),
    ],
)
def test_a_bomb_of_100_mib_is_refused_at_the_bound(bomb: Callable[[], bytes], flags: int) -> None:
    packed = bomb()
    assert len(packed) < MIB
    tracemalloc.start()
    try:
        with pytest.raises(BodyError, match=rf"(more than|at most) {4 * MIB} bytes"):
            decompress(packed, flags, max_bytes=4 * MIB)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10 * MIB
