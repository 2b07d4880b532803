"""The line to one broker: a leased connection and what is on its way over it."""

from __future__ import annotations

from contextlib import AbstractContextManager

from remoting.blocking import BlockingConnection
from remoting.protocol.command import Command
from spark_connector.encode.parcel import Parcel
from spark_connector.sink.delivery import Delivery
from spark_connector.sink.limits import (
    MAX_IN_FLIGHT_BYTES,
    MAX_IN_FLIGHT_MESSAGES,
    MAX_IN_FLIGHT_REQUESTS,
)


class Channel:
    """Requests to one broker, several at a time.

    Args:
        lease: of the connection; it is entered here and left by ``close``.

    Raises:
        ConnectFailed: no connection can be made.
    """

    def __init__(self, address: str, lease: AbstractContextManager[BlockingConnection]) -> None:
        self.address = address
        self._lease = lease
        self._connection = lease.__enter__()
        self._in_flight: dict[int, Delivery] = {}
        self._messages = 0
        self._bytes = 0

    @property
    def idle(self) -> bool:
        """Whether no answer is waited for."""
        return not self._in_flight

    @property
    def stale(self) -> bool:
        """Whether the broker has left while nothing was asked of it, as it may after two minutes
        in which Spark had no rows for us."""
        return self.idle and not self._connection.usable

    def has_room(self, parcel: Parcel) -> bool:
        """Whether the parcel may be sent now. A large one may be when there is nothing else."""
        return self.idle or (
            len(self._in_flight) < MAX_IN_FLIGHT_REQUESTS
            and self._messages + parcel.messages <= MAX_IN_FLIGHT_MESSAGES
            and self._bytes + len(parcel.body) <= MAX_IN_FLIGHT_BYTES
        )

    def send(self, command: Command, delivery: Delivery, *, timeout: float) -> None:
        """Send a parcel's request. Raises RemotingError."""
        if command.is_oneway:
            self._connection.send_oneway(command, timeout=timeout)
            return
        opaque = self._connection.submit(command, timeout=timeout)
        self._in_flight[opaque] = delivery
        self._messages += delivery.parcel.messages
        self._bytes += len(delivery.parcel.body)

    def receive(self, now: float, timeout: float) -> tuple[Delivery, Command]:
        """The next answer; the oldest request has ``timeout`` from when it was sent.

        Raises:
            RemotingError: there is none; all that is in flight is lost.
        """
        oldest = next(iter(self._in_flight.values()))
        answer = self._connection.receive(timeout=max(oldest.sent_at + timeout - now, 0.0))
        delivery = self._in_flight.pop(answer.opaque)
        self._messages -= delivery.parcel.messages
        self._bytes -= len(delivery.parcel.body)
        return delivery, answer

    def request(self, command: Command, *, timeout: float) -> Command:
        """Any other request, while nothing is in flight. Raises RemotingError."""
        return self._connection.request(command, timeout=timeout)

    def close(self, failure: BaseException | None = None) -> list[Delivery]:
        """Give the connection back, for others to use if there was no failure.

        Returns:
            What was in flight, in the order it was sent.
        """
        lost = list(self._in_flight.values())
        self._in_flight.clear()
        self._messages = self._bytes = 0
        self._lease.__exit__(type(failure) if failure else None, failure, None)
        return lost
