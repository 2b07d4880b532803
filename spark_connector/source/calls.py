"""Requests of the driver: over kept connections, with deadlines, attempts and errors that help.

Everything asked here may be asked twice, so a request without an answer is simply sent again, after
a pause that doubles. What a broker refuses is an error at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from client.errors import remote_error
from client.remote import name_of
from remoting.errors import RemotingError
from remoting.protocol.bodies import Body, decode
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command, Extra
from remoting.protocol.errors import BodyError, HeaderError
from remoting.protocol.headers.base import Header
from spark_connector.errors import BrokerError
from spark_connector.options.common import ConnectionOptions
from spark_connector.reading.connections import lease

H = TypeVar("H", bound=Header)
B = TypeVar("B", bound=Body)

IN_FLIGHT: Final = 64
"""Requests sent ahead of their answers on one connection."""

LONGEST_PAUSE: Final = 5.0
SUCCESS: Final = frozenset({int(ResponseCode.SUCCESS)})

Request = Callable[[], Command]
"""Makes a request anew for each attempt: a command is sent once."""


def request(code: RequestCode, header: Header | None = None, *, extra: Extra = ()) -> Request:
    """A request that can be sent several times."""
    return lambda: Command.request(code, header, extra=extra)


class Calls:
    """Requests to any peer.

    Args:
        options: timeouts and attempts.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options

    def one(
        self, address: str, command: Request, what: str, *, accept: frozenset[int] = SUCCESS
    ) -> Command:
        """One request's answer; see ``many``."""
        return self.many(address, [command], what, accept=accept)[0]

    def many(
        self,
        address: str,
        commands: Sequence[Request],
        what: str,
        *,
        accept: frozenset[int] = SUCCESS,
        retries: int | None = None,
    ) -> list[Command]:
        """The answers to several requests, in their order, pipelined.

        Args:
            address: who is asked.
            commands: make the requests.
            what: they are about, for errors: ``offsets of topic orders``.
            accept: codes of answers that are no error.
            retries: attempts after the first; by the options unless given.

        Raises:
            BrokerError: no answer after all attempts, or an answer with another code.
        """
        retries = self.options.retries if retries is None else retries
        for attempt in range(retries + 1):
            try:
                answers = self._attempt(address, commands)
                break
            except RemotingError as error:
                if attempt == retries:
                    raise BrokerError(
                        f"{address} could not be asked for {what}: {error}",
                        f"this was attempt {attempt + 1} (fetchOffset.numRetries)",
                    ) from error
            time.sleep(self._pause(attempt))
        else:
            raise AssertionError
        for command, answer in zip(commands, answers, strict=True):
            if answer.code not in accept:
                refusal = remote_error(
                    answer.code, answer.remark, name_of(command().code), broker=address
                )
                raise BrokerError(f"{address} gives no {what}: {refusal}")
        return answers

    def _attempt(self, address: str, commands: Sequence[Request]) -> list[Command]:
        timeout = self.options.request_timeout
        answers: dict[int, Command] = {}
        order: list[int] = []
        with lease(
            address,
            idle_timeout=self.options.connection_idle,
            connect_timeout=min(timeout, 3.0),
        ) as connection:
            for command in commands:
                if len(order) - len(answers) >= IN_FLIGHT:
                    _receive(connection.receive(timeout=timeout), answers)
                order.append(connection.submit(command(), timeout=timeout))
            while len(answers) < len(order):
                _receive(connection.receive(timeout=timeout), answers)
        return [answers[opaque] for opaque in order]

    def _pause(self, attempt: int) -> float:
        longest: float = min(self.options.retry_interval * 2.0**attempt, LONGEST_PAUSE)
        return longest * random.uniform(0.5, 1.0)  # noqa: S311 - spreads clients, hides nothing


def _receive(answer: Command, answers: dict[int, Command]) -> None:
    answer.body = bytes(answer.body)
    answers[answer.opaque] = answer


def read_header(answer: Command, kind: type[H], address: str) -> H:
    """An answer's header. Raises BrokerError when it can't be understood."""
    try:
        return answer.read(kind)
    except HeaderError as error:
        raise BrokerError(f"an answer of {address} can't be understood: {error}") from error


def read_body(answer: Command, kind: type[B], address: str) -> B:
    """An answer's body. Raises BrokerError when it can't be understood."""
    try:
        return decode(kind, answer.body)
    except BodyError as error:
        raise BrokerError(f"an answer of {address} can't be understood: {error}") from error
