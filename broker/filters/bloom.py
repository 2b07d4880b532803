"""The Bloom filter data that RocketMQ keeps with a consumer group's filter (cf. BloomFilter).

Nothing here uses it, but an Apache broker drops all filters if one of them lacks it.
"""

from __future__ import annotations

from typing import Final

from remoting.protocol.bodies.group import BloomFilterData

_BITS: Final = 112
_HASHES: Final = 3
"""The result of 32 groups and an error rate of 20 % (``expectConsumerNumUseFilter``,
``maxErrorRateOfBloomFilter``)."""

_C1: Final = 0x87C37B91114253D5
_C2: Final = 0x4CF5AD432745937F
_MASK: Final = (1 << 64) - 1
_BLOCK: Final = 16


def bloom_of(group: str, topic: str) -> BloomFilterData:
    """Return the data for a group's filter of a topic."""
    value = _murmur3_128(f"{group}#{topic}".encode("utf-8", "replace"))
    low, high = value & 0xFFFFFFFF, value >> 32
    places = []
    for number in range(1, _HASHES + 1):
        # As a signed int of 32 bits.
        combined = ((low + number * high & 0xFFFFFFFF) ^ 0x80000000) - 0x80000000
        places.append((~combined if combined < 0 else combined) % _BITS)
    return BloomFilterData(bit_num=_BITS, bit_pos=tuple(places))


def is_valid(data: BloomFilterData | None) -> bool:
    """Return whether an Apache broker with default settings accepts the data."""
    return data is not None and data.bit_num == _BITS and len(data.bit_pos) == _HASHES


def _rotated(value: int, by: int) -> int:
    return ((value << by) | (value >> (64 - by))) & _MASK


def _mixed(value: int) -> int:
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def _murmur3_128(data: bytes) -> int:
    """Return the first 64 bits of MurmurHash3 (x64, 128 bits, seed 0)."""
    one = two = 0
    for at in range(0, len(data), _BLOCK):
        block = data[at : at + _BLOCK]
        first, second = (int.from_bytes(part, "little") for part in (block[:8], block[8:]))
        one ^= _rotated(first * _C1 & _MASK, 31) * _C2 & _MASK
        if len(block) < _BLOCK:
            two ^= _rotated(second * _C2 & _MASK, 33) * _C1 & _MASK
            break
        one = ((_rotated(one, 27) + two) * 5 + 0x52DCE729) & _MASK
        two ^= _rotated(second * _C2 & _MASK, 33) * _C1 & _MASK
        two = ((_rotated(two, 31) + one) * 5 + 0x38495AB5) & _MASK
    one ^= len(data)
    two ^= len(data)
    one = (one + two) & _MASK
    two = (two + one) & _MASK
    return (_mixed(one) + _mixed(two)) & _MASK
