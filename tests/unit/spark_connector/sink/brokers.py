"""Simulated brokers and name servers, and a clock that moves only by sleeping."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from remoting.errors import AnswerTimeout, ConnectFailed, ConnectionLost
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.route import BrokerData, ClusterInfo, QueueData, TopicRouteData
from remoting.protocol.bodies.stats import TopicList
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.send import SendMessageRequestHeaderV2
from remoting.protocol.own_codes import RETRY_AFTER

NAME_SERVER = "names:9876"
DOWN = "down"
"""An outcome: the connection ends without an answer."""
SILENT = "silent"
"""An outcome: there is no answer."""

Outcome = int | str


class World:
    """Some brokers with a script of outcomes each, and a name server that lists them.

    Attributes:
        stored: what was acknowledged, or came one way: address, queue, request's body.
        outcomes: of the next requests to an address; when there are none, they succeed.
        unreachable: addresses nobody can connect to at the moment.
        topics: queues of each topic at each broker.
        slept: the pauses that were made.
        lost_requests: requests to brokers, other than sends, that end the connection.
        wait_ms: the time to wait that failures name; 0 for none.
        lives: raised by one, it ends all connections that nothing is asked of.
    """

    def __init__(self, *brokers: str) -> None:
        self.brokers = list(brokers) or ["a"]
        self.topics = {"flights": 2}
        self.template = True
        self.version = 407
        self.recalls = False
        self.stored: list[tuple[str, int, bytes]] = []
        self.outcomes: dict[str, deque[Outcome]] = {self.at(name): deque() for name in self.brokers}
        self.unreachable: set[str] = set()
        self.headers: list[SendMessageRequestHeaderV2] = []
        self.slept: list[float] = []
        self.asked: list[str] = []
        self.most_in_flight = 0
        self.closed_after_error = 0
        self.now = 1000.0
        self.lives = 0
        self.lost_requests = 0
        self.wait_ms = 0
        self.on_sleep: Callable[[], None] = lambda: None

    @staticmethod
    def at(broker: str) -> str:
        return f"{broker}:10911"

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        self.on_sleep()

    @contextmanager
    def lease(self, address: str) -> Iterator[Any]:
        if address in self.unreachable:
            raise ConnectFailed(address, "refused")
        try:
            yield Line(self, address)
        except BaseException:
            self.closed_after_error += 1
            raise

    def answer(self, address: str, command: Command) -> Command:
        """Return a name server's answer, or a broker's to anything but a send."""
        if address != NAME_SERVER:
            reply = self._reply(command, version=self.version)
            if command.code == RequestCode.RECALL_MESSAGE and not self.recalls:
                reply.code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            return reply
        topic = str(getattr(command.header, "topic", ""))
        self.asked.append(topic)
        if command.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            return self._reply(command, encode(TopicList(topic_list=list(self.topics))))
        if command.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            table = {name: self._broker(name) for name in self.brokers}
            return self._reply(command, encode(ClusterInfo(broker_addr_table=table)))
        count = self.topics.get(topic, 8 if topic == "TBW102" and self.template else 0)
        if not count:
            return command.reply(ResponseCode.TOPIC_NOT_EXIST, "none")
        route = TopicRouteData(
            queue_datas=[
                QueueData(broker_name=name, read_queue_nums=count, write_queue_nums=count, perm=6)
                for name in self.brokers
            ],
            broker_datas=[self._broker(name) for name in self.brokers],
        )
        return self._reply(command, encode(route))

    def _broker(self, name: str) -> BrokerData:
        return BrokerData(cluster="c", broker_name=name, broker_addrs={0: self.at(name)})

    @staticmethod
    def _reply(command: Command, body: bytes = b"", version: int = 407) -> Command:
        reply = command.reply(body=body)
        reply.version = version
        return reply


class Line:
    """The sink's view of a ``BlockingConnection``."""

    def __init__(self, world: World, address: str) -> None:
        self._world = world
        self._address = address
        self._waiting: deque[Command] = deque()
        self._opaque = 0
        self._opened = world.lives

    @property
    def usable(self) -> bool:
        return not self._waiting and self._opened == self._world.lives

    def request(self, command: Command, *, timeout: float) -> Command:
        del timeout
        if self._address != NAME_SERVER and self._world.lost_requests:
            self._world.lost_requests -= 1
            raise ConnectionLost(self._address, "gone")
        return self._world.answer(self._address, command)

    def submit(self, command: Command, *, timeout: float) -> int:
        del timeout
        self._opaque += 1
        command.opaque = self._opaque
        self._waiting.append(command)
        if self._address != NAME_SERVER:
            self._world.most_in_flight = max(self._world.most_in_flight, len(self._waiting))
        return self._opaque

    def send_oneway(self, command: Command, *, timeout: float) -> None:
        del timeout
        script = self._world.outcomes[self._address]
        if script and script.popleft() == DOWN:
            raise ConnectionLost(self._address, "gone")
        self._store(command)

    def receive(self, *, timeout: float) -> Command:
        command = self._waiting.popleft()
        if self._address == NAME_SERVER:
            answer = self._world.answer(self._address, command)
            answer.opaque = command.opaque
            return answer
        script = self._world.outcomes[self._address]
        outcome = script.popleft() if script else ResponseCode.SUCCESS
        if outcome == DOWN:
            raise ConnectionLost(self._address, "gone")
        if outcome == SILENT:
            self._world.now += timeout
            raise AnswerTimeout(self._address, command.code, timeout)
        if outcome in {ResponseCode.SUCCESS, ResponseCode.FLUSH_DISK_TIMEOUT}:
            self._store(command)
        extra = {RETRY_AFTER: str(self._world.wait_ms)} if self._world.wait_ms else {}
        return command.reply(int(outcome), "as scripted", extra=extra)

    def _store(self, command: Command) -> None:
        header = command.header
        assert isinstance(header, SendMessageRequestHeaderV2)
        self._world.headers.append(header)
        self._world.stored.append((self._address, header.queue_id, bytes(command.body)))
