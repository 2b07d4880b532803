"""Addresses as text: ``host:port``, as in route tables and options."""

from __future__ import annotations

import ipaddress

from remoting.errors import ConnectFailed

_MAX_PORT = 0xFFFF
_MAX_PORT_DIGITS = 5


def address_text(address: tuple[str, int]) -> str:
    """Return ``host:port``, or ``[ip]:port`` for IPv6."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[ipv6]:port`` into host and port.

    Raises:
        ConnectFailed: the text is neither, or no host can have that name.
    """
    host, _, port = address.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    is_port = port.isascii() and port.isdigit() and len(port) <= _MAX_PORT_DIGITS
    if not host or not is_port or int(port) > _MAX_PORT:
        raise ConnectFailed(address, "this is not host:port", "correct the address")
    try:
        # As the event loop does, which raises what is no OSError.
        is_name = b"\0" not in host.encode("idna")
    except UnicodeError:
        is_name = False
    if not is_name:
        raise ConnectFailed(address, "no host can have this name", "correct the address")
    return host, int(port)


def network_of(host: str) -> str:
    """Return what counts as one address in limits: the first 64 bits of an IPv6 address.

    A host with IPv6 usually has a network of 64 bits to choose its addresses from.
    """
    if ":" not in host:
        return host
    address = ipaddress.IPv6Address(host)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64))


def is_loopback(host: str) -> bool:
    """Return whether a server that listens on ``host`` is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
