"""Members of one consumer group at a test bench, and the broker's findings about it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from structlog.typing import EventDict

from remoting.protocol.bodies import decode
from remoting.protocol.bodies.description import GroupDescriptionBody
from remoting.protocol.bodies.heartbeat import ConsumerData, SubscriptionData
from remoting.protocol.codes import RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.group import ConsumerGroupRequestHeader
from remoting.protocol.headers.pull import UpdateConsumerOffsetRequestHeader
from remoting.protocol.message.tags import tags_code
from remoting.protocol.own_codes import ON_CONFLICT, OwnRequestCode
from tests.unit.broker.harness import Bench, FakeConnection, heartbeat, pull_command


class Consumer:
    """A member with its own connection."""

    ports = iter(range(6000, 60_000))

    def __init__(self, bench: Bench, client_id: str, **topics: str) -> None:
        self.bench = bench
        self.client_id = client_id
        self.connection = FakeConnection(next(Consumer.ports))
        self.topics = topics
        self.fields: dict[str, str] = {}
        self.data: dict[str, Any] = {}

    def beat(self, **changes: Any) -> Command:
        self.data |= changes
        consumer = ConsumerData(
            group_name="g",
            subscription_data_set=[
                SubscriptionData(
                    topic=topic,
                    sub_string=text,
                    tags_set=[] if text == "*" else [tag.strip() for tag in text.split("||")],
                    code_set=[] if text == "*" else [tags_code(tag) for tag in text.split("||")],
                    sub_version=self.bench.clock.now_ms(),
                )
                for topic, text in self.topics.items()
            ],
            **self.data,
        )
        command = heartbeat(self.client_id, consumers=[consumer])
        command.pairs = tuple(self.fields.items())
        return self.bench.must(command, self.connection)

    def pull(self, topic: str = "T", queue_id: int = 0) -> None:
        self.bench.ask(pull_command(topic, queue_id=queue_id), self.connection)

    def close(self) -> None:
        self.bench.processors.clients.closed(self.connection)


def ours(bench: Bench, client_id: str, policy: str = "reject", **topics: str) -> Consumer:
    consumer = Consumer(bench, client_id, **topics)
    consumer.fields[ON_CONFLICT] = policy
    return consumer


def describe(bench: Bench, group: str = "g") -> GroupDescriptionBody:
    header = ConsumerGroupRequestHeader(consumer_group=group)
    reply = bench.must(Command.request(OwnRequestCode.DESCRIBE_CONSUMER_GROUP, header))
    assert reply.code == 0
    return decode(GroupDescriptionBody, reply.body)


def kinds(bench: Bench) -> list[str]:
    description = describe(bench)
    return [finding.kind for finding in description.conflicts + description.warnings]


def commit(bench: Bench, offset: int, queue_id: int = 0) -> None:
    header = UpdateConsumerOffsetRequestHeader(
        consumer_group="g", topic="T", queue_id=queue_id, commit_offset=offset
    )
    bench.must(Command.request(RequestCode.UPDATE_CONSUMER_OFFSET, header))


def later(bench: Bench, seconds: float, *consumers: Consumer) -> None:
    """Advance the time while members send heartbeats."""
    while seconds > 0:
        step = min(seconds, 10.0)
        bench.clock.advance(step)
        seconds -= step
        for consumer in consumers:
            consumer.beat()
        bench.processors.monitor.check("g")


def warnings(logs: Sequence[EventDict]) -> list[EventDict]:
    """Return the logged lines above level info."""
    return [line for line in logs if line["log_level"] != "info"]
