"""Requests of the driver and of writing tasks, with pooled connections, timeouts and retries.

All requests sent from here are idempotent: a request without an answer is sent again, after a pause
that doubles with each attempt. A refusal by a broker is raised at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec, TypeVar

from client.errors import remote_error
from client.network.remote import name_of
from client.wire.backoff import Backoff
from remoting.errors import RemotingError
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.route import ClusterInfo, TopicRouteData
from remoting.protocol.bodies.stats import TopicList
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command, Extra, Header
from remoting.protocol.errors import BodyError, HeaderError, RecordError
from remoting.protocol.headers.admin import GetRouteInfoRequestHeader
from remoting.security.credentials import account_of
from spark_connector.connections import Lease
from spark_connector.errors import BrokerError
from spark_connector.limits import CONNECT_TIMEOUT
from spark_connector.options import ConnectionOptions

P = ParamSpec("P")
T = TypeVar("T")

IN_FLIGHT: Final = 64
"""The most unanswered requests on one connection."""

LONGEST_PAUSE: Final = 5.0
"""The longest pause between two attempts, in seconds."""

SUCCESS: Final = frozenset({int(ResponseCode.SUCCESS)})
FOUND_OR_NO_TOPIC: Final = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.TOPIC_NOT_EXIST)})

Request = Callable[[], Command]
"""Creates the command of one attempt: a ``Command`` can be sent only once."""


def request(
    code: RequestCode, header: Header | None = None, *, extra: Extra = (), body: bytes = b""
) -> Request:
    """Return a request that can be sent several times."""
    return lambda: Command.request(code, header, extra=extra, body=body)


class Calls:
    """Sends requests to name servers and brokers.

    Args:
        options: timeouts and numbers of attempts.
        lease: leases connections; by default from this process's cache.
        sleep: sleeps for seconds, between attempts.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        *,
        lease: Lease | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.options = options
        timeout = min(options.request_timeout, CONNECT_TIMEOUT)
        self._lease = lease or options.lease(connect_timeout=timeout)
        self.sleep = sleep
        self._random = random.Random()  # noqa: S311 - spreads load

    def one(
        self, address: str, command: Request, what: str, *, accept: frozenset[int] = SUCCESS
    ) -> Command:
        """Send one request and return its answer; see ``many``."""
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
        """Send several requests, pipelined, and return their answers in the same order.

        Args:
            address: the peer, ``host:port``.
            commands: the requests.
            what: what is requested, for errors, such as ``offsets of topic orders``.
            accept: response codes that are no error.
            retries: attempts after the first one; by default those of the options.

        Raises:
            BrokerError: no answer after all attempts, or an answer with another code.
        """
        retries = self.options.retries if retries is None else retries
        backoff = self.backoff()
        answers: list[Command] | None = None
        attempt = 0
        while answers is None:
            attempt += 1
            try:
                answers = self.attempt(address, commands)
            except RemotingError as error:
                if attempt > retries:
                    raise BrokerError(
                        f"{address} could not be asked for {what}: {error}",
                        f"this was attempt {attempt} (fetchOffset.numRetries)",
                    ) from error
                self.sleep(backoff.next())
        for command, answer in zip(commands, answers, strict=True):
            if answer.code not in accept:
                refusal = remote_error(
                    answer.code,
                    answer.remark,
                    name_of(command().code),
                    broker=address,
                    account=account_of(self.options.credentials),
                )
                raise BrokerError(f"{address} gives no {what}: {refusal}")
        return answers

    def attempt(self, address: str, commands: Sequence[Request]) -> list[Command]:
        """Send several requests once and return their answers in order. Raises RemotingError."""
        timeout = self.options.request_timeout
        answers: dict[int, Command] = {}
        order: list[int] = []
        with self._lease(address) as connection:

            def take_one() -> None:
                answer = connection.receive(timeout=timeout)
                # The connection reuses the memory of the body for the next answer.
                answer.body = bytes(answer.body)
                answers[answer.opaque] = answer

            for command in commands:
                if len(order) - len(answers) >= IN_FLIGHT:
                    take_one()
                order.append(connection.submit(command(), timeout=timeout))
            while len(answers) < len(order):
                take_one()
        return [answers[opaque] for opaque in order]

    def backoff(self) -> Backoff:
        """Return the pauses between the attempts of one request."""
        return Backoff(self._random, first=self.options.retry_interval, most=LONGEST_PAUSE)


def understand(address: str, read: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """Parse an answer with a function. Raises BrokerError if the answer can't be parsed.

    Args:
        address: the peer that sent the answer, for errors.
        read: the function that parses it.
        args, named: the arguments of the function.
    """
    try:
        return read(*args, **named)
    except (HeaderError, BodyError, RecordError) as error:
        raise BrokerError(f"an answer from {address} can't be decoded: {error}") from error


class NameServerCalls:
    """Sends requests to name servers; the one that answered last is tried first."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._addresses = list(calls.options.name_servers)

    @property
    def address(self) -> str:
        """The name server that is tried first."""
        return self._addresses[0]

    def route(self, topic: str) -> TopicRouteData | None:
        """Return the route of a topic, or None if it doesn't exist. Raises BrokerError."""
        header = GetRouteInfoRequestHeader(topic=topic, accept_standard_json_only=True)
        command = request(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
        answer = self._ask(command, f"the route of topic {topic}", FOUND_OR_NO_TOPIC)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        try:
            return decode(TopicRouteData, answer.body)
        except BodyError as error:
            raise BrokerError(
                f"the name server's answer about topic {topic} can't be read: {error}",
                "is the address in nameServer that of a name server?",
            ) from error

    def topics(self) -> list[str]:
        """Return the names of all topics. Raises BrokerError."""
        answer = self._ask(request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), "all topics")
        return understand(self.address, decode, TopicList, answer.body).topic_list

    def cluster(self) -> ClusterInfo:
        """Return the registered brokers and clusters. Raises BrokerError."""
        answer = self._ask(request(RequestCode.GET_BROKER_CLUSTER_INFO), "the list of brokers")
        try:
            return decode(ClusterInfo, answer.body)
        except BodyError:
            return ClusterInfo()

    def _ask(self, command: Request, what: str, accept: frozenset[int] = SUCCESS) -> Command:
        """Return the first accepted answer, trying all name servers once per attempt."""
        backoff = self._calls.backoff()
        retries = self._calls.options.retries
        failures: list[str] = []
        for attempt in range(retries + 1):
            failures = []
            for address in list(self._addresses):
                try:
                    (answer,) = self._calls.attempt(address, [command])
                except RemotingError as error:
                    failures.append(f"{address} could not be asked for {what}: {error}")
                else:
                    if answer.code in accept:
                        return answer
                    failures.append(f"{address} answered code {answer.code}: {answer.remark}")
                self._addresses.append(self._addresses.pop(0))
            if attempt < retries:
                self._calls.sleep(backoff.next())
        raise BrokerError(
            f"no name server answers: {'; '.join(failures)}",
            f"this was attempt {retries + 1} (fetchOffset.numRetries); check the option nameServer",
        )
