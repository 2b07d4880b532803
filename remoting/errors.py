"""Errors of connections and requests, as raised to callers.

Each error has its facts as attributes, and its text includes advice. All errors can be pickled,
because Spark sends a task's error to the driver; that is why the facts are the arguments.
"""

from __future__ import annotations


class RemotingError(Exception):
    """A command could not be sent to a peer, or its answer could not be received.

    ``address`` is the peer's ``host:port``.
    """

    def __init__(self, address: str, *facts: object) -> None:
        super().__init__(address, *facts)
        self.address = address


class ConnectFailed(RemotingError):
    """No connection could be made: nothing was sent."""

    def __init__(self, address: str, reason: str, hint: str = "") -> None:
        super().__init__(address, reason, hint)
        self.reason = reason
        self.hint = hint or "check that it runs, and that the address can be reached from here"

    def __str__(self) -> str:
        return f"can't connect to {self.address}: {self.reason}; {self.hint}"


class ConnectionLost(RemotingError):
    """The connection ended before the answer arrived: the request may have been processed."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"connection to {self.address} ended: {self.reason}"


class AnswerTimeout(RemotingError):
    """No answer within ``timeout`` seconds: the request may have been processed."""

    def __init__(self, address: str, code: int, timeout: float) -> None:
        super().__init__(address, code, timeout)
        self.code = code
        self.timeout = timeout

    def __str__(self) -> str:
        return (
            f"{self.address} did not answer request {self.code} within {self.timeout:g} s; "
            "it may still have done it: raise the timeout, or check the load of that server"
        )


class TooManyRequests(RemotingError):
    """The connection's own limit is reached: nothing was sent."""

    def __init__(self, address: str, what: str, limit: int) -> None:
        super().__init__(address, what, limit)
        self.what = what
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.limit} {self.what} wait on the connection to {self.address} already; "
            "await some of them before sending more"
        )


class CommandTooLarge(ValueError):
    """A command has more bytes than the frame limit allows: nothing was sent."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(size, limit)
        self.size = size
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"a command of {self.size} bytes is above the frame limit of {self.limit}: send or "
            "ask for less at once"
        )


class BindFailed(RemotingError):
    """A server could not listen on its address; ``errno`` is the operating system's error code."""

    def __init__(self, address: str, errno: int, reason: str, hint: str) -> None:
        super().__init__(address, errno, reason, hint)
        self.errno = errno
        self.reason = reason
        self.hint = hint

    def __str__(self) -> str:
        return f"can't listen on {self.address}: {self.reason}; {self.hint}"
