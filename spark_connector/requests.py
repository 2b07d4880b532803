"""Requests of the driver and of writing tasks: over kept connections, with deadlines and attempts.

Everything asked here may be asked twice, so a request without an answer is sent again, after a
pause that doubles. A refusal by a broker is an error at once.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final, ParamSpec, TypeVar

from client.errors import remote_error
from client.remote import name_of
from client.wire.backoff import Backoff
from remoting.errors import RemotingError
from remoting.protocol.bodies import decode
from remoting.protocol.bodies.route import ClusterInfo, TopicRouteData
from remoting.protocol.bodies.stats import TopicList
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command, Extra, Header
from remoting.protocol.errors import BodyError, HeaderError, RecordError
from remoting.protocol.headers.admin import GetRouteInfoRequestHeader
from spark_connector.connections import Lease, leasing
from spark_connector.errors import BrokerError
from spark_connector.options import ConnectionOptions

P = ParamSpec("P")
T = TypeVar("T")

IN_FLIGHT: Final = 64
"""Requests sent ahead of their answers on one connection."""

LONGEST_PAUSE: Final = 5.0
SUCCESS: Final = frozenset({int(ResponseCode.SUCCESS)})
FOUND_OR_NO_TOPIC: Final = frozenset({int(ResponseCode.SUCCESS), int(ResponseCode.TOPIC_NOT_EXIST)})

Request = Callable[[], Command]
"""Makes a request anew for each attempt: a command is sent once."""


def request(code: RequestCode, header: Header | None = None, *, extra: Extra = ()) -> Request:
    """A request that can be sent several times."""
    return lambda: Command.request(code, header, extra=extra)


class Calls:
    """Requests to any peer.

    Args:
        options: timeouts and attempts.
        lease: connections; the process's own unless given.
        sleep: waits between attempts.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        *,
        lease: Lease | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.options = options
        timeout = min(options.request_timeout, 3.0)
        self._lease = lease or leasing(options.connection_idle, connect_timeout=timeout)
        self.sleep = sleep
        self._random = random.Random()  # noqa: S311 - spreads load

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
            address: the peer.
            commands: make the requests.
            what: what they ask for, for errors: ``offsets of topic orders``.
            accept: codes of answers that are no error.
            retries: attempts after the first; by the options unless given.

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
                    answer.code, answer.remark, name_of(command().code), broker=address
                )
                raise BrokerError(f"{address} gives no {what}: {refusal}")
        return answers

    def attempt(self, address: str, commands: Sequence[Request]) -> list[Command]:
        """The answers to one attempt. Raises RemotingError."""
        timeout = self.options.request_timeout
        answers: dict[int, Command] = {}
        order: list[int] = []
        with self._lease(address) as connection:

            def take_one() -> None:
                answer = connection.receive(timeout=timeout)
                # The connection receives into the same memory again.
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
        """The pauses between the attempts of one request."""
        return Backoff(self._random, first=self.options.retry_interval, most=LONGEST_PAUSE)


def understand(address: str, read: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
    """What a function reads of an answer. Raises BrokerError when it can't be read."""
    try:
        return read(*args, **named)
    except (HeaderError, BodyError, RecordError) as error:
        raise BrokerError(f"an answer of {address} can't be understood: {error}") from error


class NameServerCalls:
    """Requests to name servers: the first one that answers is asked first from then on."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._addresses = list(calls.options.name_servers)

    @property
    def address(self) -> str:
        """The one that is asked first."""
        return self._addresses[0]

    def route(self, topic: str) -> TopicRouteData | None:
        """The route of a topic; None when it doesn't exist. Raises BrokerError."""
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
        """The names of all topics. Raises BrokerError."""
        answer = self._ask(request(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER), "all topics")
        return understand(self.address, decode, TopicList, answer.body).topic_list

    def has_brokers(self) -> bool:
        """Whether a broker has registered. Raises BrokerError."""
        answer = self._ask(request(RequestCode.GET_BROKER_CLUSTER_INFO), "the list of brokers")
        try:
            return bool(decode(ClusterInfo, answer.body).broker_addr_table)
        except BodyError:
            return False

    def _ask(self, command: Request, what: str, accept: frozenset[int] = SUCCESS) -> Command:
        """The answer of the first name server that gives one, in some rounds over all of them."""
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
