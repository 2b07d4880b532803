"""Types of the compiled module; what is public is told here."""

from typing import Any

def encode_columns(bodies: list[bytes], texts: list[bytes], /) -> bytes:
    """See ``remoting.protocol.message.batch``."""

class Maker:
    """Makes messages of a class that has the slots of ``ReceivedMessage``, without calling it.

    Raises:
        TypeError: a slot is lacking.
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
        """Make messages of records as long as they are usual ones.

        Args:
            answer: that they belong to.
            name: of their topic.
            data: the answer's bytes.
            topic: the name with its length before it, as it stands in records.
            tags: of the messages wanted; None for all.
            position: of the first record.
            limit: where the answer ends.
            messages: gets them.

        Returns:
            Where the first other record begins, or the answer ends.
        """
