"""The errors of the Spark connector.

Spark shows an error's text between Python and Java stack traces, often only its first line. So the
first line of each states what happened, to which topic, queue, group or broker, and what to do.
"""

from __future__ import annotations


class ConnectorError(Exception):
    """Base class of all errors of the connector.

    Args:
        what: what happened and to which object, without a full stop.
        hint: what to do next.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what, hint)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}; {self.hint}" if self.hint else self.what


class OptionError(ConnectorError, ValueError):
    """An option, a combination of options or a schema is wrong."""


class UnknownTopicError(ConnectorError):
    """A topic, or one of its brokers or queues, is not registered at any name server."""


class BrokerError(ConnectorError):
    """A broker or name server could not be reached, did not answer in time or refused a request."""


class DataLossError(ConnectorError):
    """Messages that a query has to read were deleted, or its topic was deleted and recreated."""


class DecodeError(ConnectorError):
    """A message can't be decoded."""
