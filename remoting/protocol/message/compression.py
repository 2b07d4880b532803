"""Compressed bodies: zlib streams, LZ4 frames, zstd frames.

The producer compresses and the consumer decompresses; a broker stores and returns the compressed
bytes. A small body may decompress to any size, so decompression stops at a limit: at most
``max_bytes`` and one step are held in memory.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final, Literal, TypeAlias

from remoting.protocol.errors import BodyError
from remoting.protocol.limits import MAX_INFLATED_MESSAGE_BYTES
from remoting.protocol.message import record as flags

CompressionKind: TypeAlias = Literal["zlib", "lz4", "zstd"]

DEFAULT_LEVEL: Final = 5
"""rocketmq.message.compressLevel."""

_LZ4_STEP_BYTES: Final = 256 * 1024


def compress(
    body: bytes, kind: CompressionKind = "zlib", level: int = DEFAULT_LEVEL
) -> tuple[bytes, int]:
    """Return the compressed body and the bits to set in the system flag.

    Args:
        body: as given by the application.
        kind: every RocketMQ client reads zlib; lz4 and zstd need release 4.9.4.
        level: the compression level of zlib and zstd; not used for lz4.
    """
    if kind == "zlib":
        return zlib.compress(body, level), flags.COMPRESSED | flags.COMPRESSION_ZLIB
    if kind == "lz4":
        import lz4.frame  # noqa: PLC0415  # most processes never need it

        # Java's LZ4FrameInputStream can't read linked blocks.
        packed = lz4.frame.compress(body, block_linked=False)
        return packed, flags.COMPRESSED | flags.COMPRESSION_LZ4
    import zstandard  # noqa: PLC0415  # most processes never need it

    packed = zstandard.ZstdCompressor(level=level).compress(body)
    return packed, flags.COMPRESSED | flags.COMPRESSION_ZSTD


def decompress(
    body: bytes | memoryview, sys_flag: int, *, max_bytes: int = MAX_INFLATED_MESSAGE_BYTES
) -> bytes:
    """Return the body as given by the application.

    A body that is empty, or whose system flag lacks the bit ``COMPRESSED``, is returned unchanged.
    Bytes after the compressed stream are ignored.

    Raises:
        BodyError: it is damaged, decompresses to more than ``max_bytes``, or has a format that
            RocketMQ does not define.
    """
    if not sys_flag & flags.COMPRESSED or not body:
        return bytes(body)
    kind = sys_flag & flags.COMPRESSION_MASK
    inflate = _INFLATERS.get(kind)
    if inflate is None:
        raise BodyError(f"the body is compressed in an unknown way: type {kind >> 8}")
    return inflate(body, max_bytes)


def _inflate_zlib(body: bytes | memoryview, max_bytes: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, max_bytes + 1)
    except zlib.error as error:
        raise _damaged("zlib", error) from error
    if len(inflated) > max_bytes:
        raise _too_large("zlib", max_bytes)
    if not inflater.eof:
        raise _damaged("zlib", "the stream is cut off")
    return inflated


def _inflate_lz4(body: bytes | memoryview, max_bytes: int) -> bytes:
    import lz4.frame  # noqa: PLC0415  # most processes never need it

    inflater = lz4.frame.LZ4FrameDecompressor()
    steps: list[bytes] = []
    total = 0
    rest: bytes | memoryview = body
    while not inflater.eof:
        try:
            # In steps, because lz4 allocates ``max_length`` bytes at once.
            step = inflater.decompress(rest, max_length=_LZ4_STEP_BYTES)
        except RuntimeError as error:
            raise _damaged("LZ4", error) from error
        total += len(step)
        if total > max_bytes:
            raise _too_large("LZ4", max_bytes)
        if inflater.needs_input and not inflater.eof:
            raise _damaged("LZ4", "the frame is cut off")
        steps.append(step)
        rest = b""
    return steps[0] if len(steps) == 1 else b"".join(steps)


def _inflate_zstd(body: bytes | memoryview, max_bytes: int) -> bytes:
    import zstandard  # noqa: PLC0415  # most processes never need it

    try:
        # The two largest numbers mean that the frame declares no size.
        declared = zstandard.get_frame_parameters(body).content_size
        if max_bytes < declared < zstandard.CONTENTSIZE_ERROR:
            raise _too_large("zstd", max_bytes)
        # The output buffer has the declared size, or else max_bytes, and can't grow.
        return zstandard.ZstdDecompressor().decompress(body, max_output_size=max_bytes)
    except zstandard.ZstdError as error:
        why = f"to at most {max_bytes} bytes: {error}"
        raise BodyError(f"the zstd body does not inflate {why}") from error


def _too_large(kind: str, max_bytes: int) -> BodyError:
    return BodyError(f"the {kind} body inflates to more than {max_bytes} bytes")


def _damaged(kind: str, why: object) -> BodyError:
    return BodyError(f"the {kind} body does not inflate: {why}")


_INFLATERS: Final[dict[int, Callable[[bytes | memoryview, int], bytes]]] = {
    flags.COMPRESSION_LEGACY: _inflate_zlib,
    flags.COMPRESSION_ZLIB: _inflate_zlib,
    flags.COMPRESSION_LZ4: _inflate_lz4,
    flags.COMPRESSION_ZSTD: _inflate_zstd,
}
