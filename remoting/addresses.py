"""Addresses as text: ``host:port``, as in route tables and options."""

from __future__ import annotations

import ipaddress

from remoting.errors import ConnectFailed

_MAX_PORT = 0xFFFF


def address_text(address: tuple[str, int]) -> str:
    """Return ``host:port``, or ``[ip]:port`` for IPv6."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[ipv6]:port`` into host and port.

    Raises:
        ConnectFailed: the text is neither.
    """
    host, _, port = address.strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not (port.isascii() and port.isdigit()) or int(port) > _MAX_PORT:
        raise ConnectFailed(address, "this is not host:port", "correct the address")
    return host, int(port)


def is_loopback(host: str) -> bool:
    """Return whether a server that listens on ``host`` is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
