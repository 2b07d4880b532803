"""What can go wrong for a Spark query, in one family.

Spark shows an error's text amid stack traces of two languages, often only its first line. So the
first line of each says what happened, to which topic, queue, group or broker, and what to do next.
"""

from __future__ import annotations


class ConnectorError(Exception):
    """Base of all errors the connector raises.

    Args:
        what: what happened and to what, without a full stop.
        hint: what to do next.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what, hint)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}; {self.hint}" if self.hint else self.what


class OptionError(ConnectorError, ValueError):
    """An option, or options together, or a schema, is wrong: nothing was asked of any broker."""


class UnknownTopicError(ConnectorError):
    """No name server knows a topic, or one of its brokers or queues."""


class BrokerError(ConnectorError):
    """A broker or name server could not be reached, did not answer in time or refused."""


class DataLossError(ConnectorError):
    """Messages that the query wants are gone, or a topic is not the one it was."""


class DecodeError(ConnectorError):
    """A message can't be understood."""
