"""Proof that what came out is what went in, without keeping it.

Each destination has a chain: the checksum of a body starts from the checksum of the one before it.
Two chains are equal when the same bodies came in the same order. Besides, all bodies' checksums are
added up, whatever their order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from remoting.protocol.accelerated import crc32


@dataclass(slots=True)
class Sum:
    """What is known about a stream of bodies.

    Attributes:
        count: how many there were.
        size: bytes of them all.
        checksum: of all, in any order.
        chains: destination -> the chain of its bodies.
    """

    count: int = 0
    size: int = 0
    checksum: int = 0
    chains: dict[str, int] = field(default_factory=dict)

    def add(self, destination: str, body: bytes) -> None:
        """One more body."""
        self.count += 1
        self.size += len(body)
        self.checksum += crc32(body)
        chains = self.chains
        chains[destination] = crc32(body, chains.get(destination, 0))


def differences(sent: Sum, received: Sum) -> list[str]:
    """What is wrong with what was received, in sentences; nothing when all is well."""
    found = []
    if sent.count != received.count:
        found.append(f"{sent.count} messages were sent, {received.count} received")
    if (sent.size, sent.checksum) != (received.size, received.checksum):
        found.append("the bodies' checksum is another")
    wrong = sorted(
        name
        for name in sent.chains.keys() | received.chains.keys()
        if sent.chains.get(name) != received.chains.get(name)
    )
    if wrong:
        found.append(f"the order is another for {len(wrong)} destinations: {', '.join(wrong[:5])}")
    return found
