"""Noticing new messages without asking for them: one parked pull per queue.

A pull at the end of a queue is held by its broker until a message comes or its time is over, so an
idle query costs each queue one request in twenty seconds and still hears of a message at once. The
answers are only a sign: what they bring is dropped, and the queues' ends are asked for afterwards.

Whatever goes wrong here is no error: without the watch a query polls.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from client.offsets import pull_header
from remoting.blocking import BlockingConnection
from remoting.errors import RemotingError, RequestTimeout
from remoting.log import Log
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.message.tags import SUBSCRIBE_ALL
from remoting.protocol.queue import MessageQueue

SUSPEND_MS: Final = 20_000
"""How long a broker holds a pull (cf. DefaultMQPullConsumer.brokerSuspendMaxTimeMillis)."""

MAX_WATCHED: Final = 32
"""Queues watched at most: more would cost a broker more requests than polling does."""

SUBMIT_TIMEOUT: Final = 1.0
REST: Final = 5.0
"""Seconds that a broker which can't be watched is left alone."""

_log = Log("spark")


class _Watched:
    """The parked pulls at one broker."""

    def __init__(self, address: str) -> None:
        self.connection = BlockingConnection(address, connect_timeout=SUBMIT_TIMEOUT)
        self.queues: dict[int, tuple[MessageQueue, int]] = {}

    def park(self, group: str, queue: MessageQueue, offset: int) -> None:
        header = pull_header(
            queue,
            group,
            offset,
            messages=1,
            suspend_ms=SUSPEND_MS,
            expression=SUBSCRIBE_ALL,
        )
        command = Command.request(RequestCode.PULL_MESSAGE, header)
        opaque = self.connection.submit(command, timeout=SUBMIT_TIMEOUT)
        self.queues[opaque] = (queue, offset)


class ArrivalWatch:
    """Waits for messages behind known ends of queues.

    Args:
        group: named by the pulls.
    """

    def __init__(self, group: str) -> None:
        self._group = group
        self._brokers: dict[str, _Watched] = {}
        self._resting: dict[str, float] = {}

    @property
    def resting(self) -> bool:
        """Whether a broker was left alone by the last wait, so that nothing is heard of it."""
        return any(until > time.monotonic() for until in self._resting.values())

    def wait(self, ends: Mapping[str, Mapping[MessageQueue, int]], timeout: float) -> bool:
        """Wait until a queue may have more than its known end; False when the time is over.

        Args:
            ends: address of a broker -> its queues and their ends.
            timeout: in seconds.
        """
        deadline = time.monotonic() + timeout
        if sum(map(len, ends.values())) > MAX_WATCHED:
            self.close()
            time.sleep(timeout)
            return False
        for address in self._brokers.keys() - ends.keys():
            self._drop(address)
        awake = {
            address: queues
            for address, queues in ends.items()
            if self._resting.get(address, 0.0) < time.monotonic()
        }
        for left, (address, queues) in zip(range(len(awake), 0, -1), awake.items(), strict=True):
            share = (deadline - time.monotonic()) / left
            if self._wait_at(address, queues, time.monotonic() + max(share, 0.0)):
                return True
        time.sleep(max(0.0, deadline - time.monotonic()))
        return False

    def close(self) -> None:
        """Give up all pulls."""
        for address in list(self._brokers):
            self._drop(address)

    def _wait_at(self, address: str, ends: Mapping[MessageQueue, int], deadline: float) -> bool:
        try:
            watched = self._watched(address, ends)
            while True:
                answer = watched.connection.receive(timeout=max(0.0, deadline - time.monotonic()))
                queue, offset = watched.queues.pop(answer.opaque)
                if answer.code == ResponseCode.PULL_NOT_FOUND:
                    watched.park(self._group, queue, ends.get(queue, offset))
                elif offset == ends.get(queue):
                    return True
                elif queue in ends:
                    # It tells of a message that is known by now.
                    watched.park(self._group, queue, ends[queue])
        except RequestTimeout:
            return False
        except (RemotingError, ValueError) as error:
            _log.debug("a broker's queues can't be watched", broker=address, reason=error)
            self._resting[address] = time.monotonic() + REST
            self._drop(address)
            return False

    def _watched(self, address: str, ends: Mapping[MessageQueue, int]) -> _Watched:
        watched = self._brokers.get(address)
        if watched is None:
            watched = self._brokers[address] = _Watched(address)
        parked = {queue for queue, _ in watched.queues.values()}
        for queue, end in ends.items():
            if queue not in parked:
                watched.park(self._group, queue, end)
        return watched

    def _drop(self, address: str) -> None:
        watched = self._brokers.pop(address, None)
        if watched is not None:
            watched.connection.close()
