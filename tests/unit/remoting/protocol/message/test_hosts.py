"""Addresses take 8 or 20 bytes."""

from __future__ import annotations

import pytest

from remoting.protocol.message.record import host_bytes, host_of


@pytest.mark.parametrize(
    ("ip", "port", "packed"),
    [
        ("10.1.2.3", 54321, "0a0102030000d431"),
        ("0.0.0.0", 0, "0000000000000000"),
        ("2001:db8::1", 5, "20010db800000000000000000000000100000005"),
    ],
)
def test_an_address_round_trips(ip: str, port: int, packed: str) -> None:
    assert host_bytes(ip, port).hex() == packed
    assert host_of(bytes.fromhex(packed)) == (ip, port)


def test_ipv4_mapped_ipv6_is_ipv4() -> None:
    assert host_bytes("::ffff:10.1.2.3", 1) == host_bytes("10.1.2.3", 1)


def test_a_zone_is_omitted() -> None:
    assert host_of(host_bytes("fe80::1%eth0", 1)) == ("fe80::1", 1)


def test_a_port_on_disk_is_shown_as_it_is() -> None:
    assert host_of(b"\x7f\0\0\x01\xff\xff\xff\xff") == ("127.0.0.1", 0xFFFFFFFF)


@pytest.mark.parametrize(
    ("ip", "port"), [("localhost", 1), ("", 1), ("1.2.3.4", -1), ("::", 65536)]
)
def test_an_invalid_address_is_refused(ip: str, port: int) -> None:
    with pytest.raises(ValueError, match=r"is not in 0\.\.65535|does not appear to be"):
        host_bytes(ip, port)
