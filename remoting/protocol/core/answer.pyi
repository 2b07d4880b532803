class AnswerTemplate:
    """The header of an answer: constant pieces, and numbers to be filled in between them."""

    def __init__(
        self, codec: int, literals: list[bytes], holes: list[int], id_prefix: bytes
    ) -> None:
        """See ``answer.pyx``."""
    def fill(
        self, opaque: int, first: int, second: int, third: int, *, body_length: int = 0
    ) -> bytes:
        """Return the frame without its body."""
