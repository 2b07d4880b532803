"""A group's first commits of a topic, of which Apache's brokers may lose all but one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from client.network.routes import Route
from remoting.protocol.headers.pull import UpdateConsumerOffsetRequestHeader
from remoting.protocol.queue import MessageQueue
from spark_connector.options import ConnectionOptions
from spark_connector.requests import Request
from spark_connector.source.brokers import Brokers

QUEUES = [MessageQueue(topic, "a", number) for topic in ("T", "U") for number in range(3)]
ROUTES = {
    topic: Route(topic, (), (), brokers={"a": {0: "127.0.0.1:10911"}}) for topic in ("T", "U")
}


class Together:
    """Records which commits run at the same time."""

    def __init__(self) -> None:
        self.made: list[list[tuple[str | None, int | None]]] = []

    def many(self, _: str, commands: Sequence[Request], *__: Any, **___: Any) -> None:
        headers = [command().read(UpdateConsumerOffsetRequestHeader) for command in commands]
        self.made.append([(header.topic, header.queue_id) for header in headers])


def test_the_first_commit_of_each_topic_goes_alone_and_later_ones_together():
    brokers = Brokers(ConnectionOptions(name_servers=("127.0.0.1:9876",)))
    together: Any = Together()
    brokers.calls = together
    brokers.commit(ROUTES, "g", dict.fromkeys(QUEUES, 5))
    first, others = together.made
    assert sorted(topic for topic, _ in first) == ["T", "U"]
    assert sorted(first + others) == sorted((queue.topic, queue.queue_id) for queue in QUEUES)
    together.made.clear()
    brokers.commit(ROUTES, "g", dict.fromkeys(QUEUES, 6))
    assert [len(at_once) for at_once in together.made] == [6]
