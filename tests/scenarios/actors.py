"""The participants: members that are our push consumers, and foreign clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

import client
from client.events import (
    LockLost,
    MembersDiffer,
    NoQueues,
    QueueLost,
    QueueResumed,
    QueueWaiting,
    SubscriptionUnstable,
)
from remoting.connection import Connection
from remoting.pool import ConnectionPool
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from remoting.protocol.bodies.stats import GetConsumerListByGroupResponseBody
from remoting.protocol.codes import Language, RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.headers.group import (
    ConsumerGroupRequestHeader,
    UnregisterClientRequestHeader,
)
from remoting.protocol.headers.pull import PullMessageRequestHeader
from remoting.protocol.names import retry_topic
from tests.scenarios.journal import Journal
from tests.scenarios.loops import Actor

NO_SUSPEND = 0
TIMEOUT = 5.0

COMMIT_PERIOD = 1.0
"""Seconds; scenarios in real time should be short."""


class Member:
    """A push consumer of ours, in its own process or in another member's."""

    def __init__(self, name: str, actor: Actor, nameserver: str) -> None:
        self.name = name
        self.actor = actor
        self.events: list[str] = []
        self.waiting: set[client.MessageQueue] = set()
        """Its queues that it can't read at the moment."""
        self.client_id = ""
        self.joined = False
        self._nameserver = nameserver
        self._free = asyncio.Event()
        self._free.set()

    async def make(self) -> None:
        """Create its instance, and with it its client id."""
        with self.actor.acting():
            self._instance = client.Instance(self._nameserver, ip=self.actor.ip)
            await self._instance.start()
        self.client_id = self._instance.client_id

    async def join(
        self,
        group: str,
        subscribe: Mapping[str, str],
        journal: Journal,
        *,
        name_of: Callable[[str], str],
        **options: Any,
    ) -> None:
        """Join a group."""
        self._name_of = name_of
        self._journal = journal
        self._ordered = options.get("order") is not None
        with self.actor.acting():
            self._consumer = self._instance.push_consumer(
                group=group,
                subscribe=subscribe,
                handler=self._handle,
                start_from=client.FIRST,
                on_event=self._told,
                commit_period=COMMIT_PERIOD,
                **options,
            )
            try:
                await self._consumer.start()
            except client.GroupConflict as conflict:
                both = " and ".join(name_of(one) for one in conflict.members)
                self.events.append(f"is refused: {both} differ in {conflict.kind}")
                await self._instance.close()
                return
        self.joined = True

    @property
    def assigned(self) -> list[client.MessageQueue]:
        """Return its queues, without the retry topic's."""
        return [one for one in self._consumer.assigned if not one.topic.startswith("%")]

    def hold(self) -> None:
        """Make its handlers wait from now on."""
        self._free.clear()

    def release(self) -> None:
        """Let its handlers return again."""
        self._free.set()

    async def close(self) -> None:
        """Leave cleanly."""
        self.joined = False
        with self.actor.acting():
            await self._instance.close()

    async def kill(self) -> None:
        """Die; the brokers see its connections end."""
        self.joined = False
        await self.actor.kill()

    async def _handle(self, message: Any) -> None:
        self._journal.begins(self.name, message, ordered=self._ordered)
        try:
            await self._free.wait()
            self._journal.ends(self.name, message, ordered=self._ordered)
        finally:
            self._journal.returned(message)

    def _told(self, event: client.Event) -> None:
        match event:
            case MembersDiffer():
                both = " and ".join(self._name_of(one) for one in event.conflict.members)
                self.events.append(f"is warned: {both} differ in {event.conflict.kind}")
            case NoQueues():
                self.events.append(f"is idle: {event.members} members, {event.queues} queues")
            case LockLost() if not event.queue.topic.startswith("%"):
                self.events.append("loses a lock")
            case SubscriptionUnstable():
                self.events.append("is warned: a broker forgot its subscription twice")
            case QueueWaiting() if not event.queue.topic.startswith("%"):
                self.waiting.add(event.queue)
            case QueueResumed() | QueueLost():
                self.waiting.discard(event.queue)


class Foreign:
    """A foreign client: it sends the requests of a Java client, and accepts any answer."""

    def __init__(self, name: str, actor: Actor, broker: str, client_id: str) -> None:
        self.name = name
        self.actor = actor
        self.client_id = client_id
        self._broker = broker
        self._pool = ConnectionPool(self._handle)
        self._version = 0

    def _handle(self, command: Command, _: Connection) -> None:
        """Ignore notifications."""

    async def heartbeat(self, group: str, subscribe: Mapping[str, str]) -> str:
        """Send a heartbeat with its subscriptions."""
        self._version += 1
        wanted = {**subscribe, retry_topic(group): "*"}
        consumer = ConsumerData(
            group_name=group,
            subscription_data_set=[
                SubscriptionData(topic=topic, sub_string=text, sub_version=self._version)
                for topic, text in wanted.items()
            ],
        )
        body = encode(HeartbeatData(client_id=self.client_id, consumer_data_set=[consumer]))
        return _word(await self._ask(Command.request(RequestCode.HEART_BEAT, body=body)))

    async def pull(self, group: str, topic: str, queue_id: int) -> str:
        """Pull messages."""
        header = PullMessageRequestHeader(
            consumer_group=group,
            topic=topic,
            queue_id=queue_id,
            queue_offset=0,
            max_msg_nums=32,
            sys_flag=NO_SUSPEND,
            commit_offset=0,
            suspend_timeout_millis=0,
            sub_version=self._version,
        )
        return _word(await self._ask(Command.request(RequestCode.PULL_MESSAGE, header)))

    async def members(self, group: str) -> list[str]:
        """Return the client ids of a group's members."""
        header = ConsumerGroupRequestHeader(consumer_group=group)
        command = Command.request(RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        answer = await self._ask(command)
        if answer.code != ResponseCode.SUCCESS:
            return []
        return sorted(decode(GetConsumerListByGroupResponseBody, answer.body).consumer_id_list)

    async def leave(self, group: str) -> str:
        """Leave a group."""
        header = UnregisterClientRequestHeader(client_id=self.client_id, consumer_group=group)
        return _word(await self._ask(Command.request(RequestCode.UNREGISTER_CLIENT, header)))

    async def close(self) -> None:
        """Close its connections."""
        await self._pool.close()

    async def _ask(self, command: Command) -> Command:
        command.language = Language.JAVA
        with self.actor.acting():
            return await self._pool.request(self._broker, command, timeout=TIMEOUT)


def _word(answer: Command) -> str:
    """Return a response code's number and name."""
    return f"{answer.code} {ResponseCode(answer.code).name}"
