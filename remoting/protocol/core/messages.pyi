"""Types and documentation of the compiled module."""

from typing import Any

def encode_columns(bodies: list[bytes], texts: list[bytes], /) -> bytes:
    """See ``remoting.protocol.message.batch``."""

class Maker:
    """Makes messages of a class that has the slots of ``ReceivedMessage``, without calling it.

    Raises:
        TypeError: the class lacks one of the slots.
    """

    def __init__(self, made: type, /) -> None: ...
    def walk(
        self,
        answer: object,
        name: str,
        data: bytes,
        topic: bytes,
        tags: frozenset[str] | None,
        position: int,
        limit: int,
        messages: list[Any],
        /,
    ) -> int:
        """Make messages of records up to the first that is not ordinary.

        Ordinary records are v1, not compressed, with IPv4 hosts, and of the given topic.

        Args:
            answer: the answer that the messages belong to.
            name: their topic.
            data: the answer's bytes.
            topic: the name with its length before it, as stored in records.
            tags: make only messages with one of these tags; None for all.
            position: the position of the first record.
            limit: the end of the records.
            messages: the list to append to.

        Returns:
            The position of the first other record, or ``limit``.
        """
