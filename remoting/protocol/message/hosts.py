"""Addresses as records and message ids hold them: 4 or 16 bytes of IP, then an int32 port."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

HOST_BYTES_V4: Final = 8
HOST_BYTES_V6: Final = 20


@lru_cache(maxsize=1024)
def ip_bytes(ip: str) -> bytes:
    """The 4 or 16 bytes of an IP address.

    An IPv4 address in IPv6 clothes (``::ffff:10.0.0.1``, what a dual-stack socket reports) counts
    as IPv4, and a zone (``fe80::1%eth0``) is left out: it means nothing to another machine.

    Raises:
        ValueError: ``ip`` is not a numeric address.
    """
    address: IPv4Address | IPv6Address = ip_address(ip)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.packed
    return address.packed


def host_bytes(ip: str, port: int) -> bytes:
    """The 8 (IPv4) or 20 (IPv6) bytes of an address.

    Raises:
        ValueError: ``ip`` is not a numeric address, or ``port`` is not in 0..65535.
    """
    if not 0 <= port <= 0xFFFF:
        raise ValueError(f"port {port} of host {ip} is not in 0..65535")
    return ip_bytes(ip) + port.to_bytes(4, "big")


@lru_cache(maxsize=1024)
def ip_text(packed: bytes) -> str:
    """The address of 4 or 16 bytes, an IPv6 one in its short form."""
    return str(ip_address(packed))


def host_of(packed: bytes) -> tuple[str, int]:
    """``(ip, port)`` of the 8 or 20 bytes of an address.

    The port is the stored 32 bits, unsigned: what is on disk is shown as it is.
    """
    return ip_text(packed[:-4]), int.from_bytes(packed[-4:], "big")
