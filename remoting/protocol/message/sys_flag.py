"""The bits of a message's system flag (cf. MessageSysFlag)."""

from __future__ import annotations

from typing import Final

COMPRESSED: Final = 0x1
"""The body is compressed; ``COMPRESSION_MASK`` says how."""

MULTI_TAGS: Final = 0x2

TRANSACTION_MASK: Final = 0xC
TRANSACTION_NONE: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC

BORN_HOST_V6: Final = 0x10
"""The born host takes 20 bytes instead of 8."""

STORE_HOST_V6: Final = 0x20
"""The store host takes 20 bytes instead of 8."""

HOSTS_V6_MASK: Final = BORN_HOST_V6 | STORE_HOST_V6

NEED_UNWRAP: Final = 0x40
"""The body is an inner batch that a reader has to unwrap; written by 5.x only."""

INNER_BATCH: Final = 0x80

COMPRESSION_MASK: Final = 0x700
COMPRESSION_LEGACY: Final = 0x000
"""No type given, as senders before 4.9.4 wrote it: zlib."""

COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300


def transaction_type(sys_flag: int) -> int:
    """One of the ``TRANSACTION_*`` values."""
    return sys_flag & TRANSACTION_MASK


def is_compressed(sys_flag: int) -> bool:
    """Whether the stored body has to be inflated; the type bits alone don't say so."""
    return bool(sys_flag & COMPRESSED)
