"""What the broker refuses, and how it says so."""

from __future__ import annotations


class BrokerError(Exception):
    """The broker can't start or go on; the text is one sentence that says what to do."""


class LimitReached(Exception):
    """A client asks for more than a named limit allows; the text goes back as the remark."""


class Refused(Exception):
    """A request is answered with a code other than success.

    Args:
        code: the response code.
        remark: the sentence that goes with it.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
