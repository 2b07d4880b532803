"""A broker's processors over a real store in a directory, without sockets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any

from broker.config import BrokerConfig
from broker.filters.table import ConsumerFilters
from broker.groups.offsets import ConsumerOffsets
from broker.groups.subscriptions import SubscriptionGroups
from broker.processors.permissions import permissions
from broker.processors.table import Processors, RequestDispatcher
from broker.state import BrokerState
from broker.store.config import RetentionConfig
from broker.store.engine import MessageStore, StoreConfig
from broker.store.os_files import Files
from broker.topics.table import TopicTable
from remoting.access.file import AclFile
from remoting.access.guard import Guard
from remoting.endpoint import Handler
from remoting.errors import AnswerTimeout, ConnectionLost
from remoting.protocol.bodies import encode
from remoting.protocol.bodies.heartbeat import (
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from remoting.protocol.bodies.topic import TopicConfig
from remoting.protocol.codes import Language, RequestCode
from remoting.protocol.command import Command
from remoting.protocol.headers.pull import PullMessageRequestHeader
from remoting.protocol.headers.send import SendMessageRequestHeaderV2
from remoting.protocol.message.record import host_bytes
from remoting.protocol.message.tags import tags_code
from tests.support.clock import ManualClock

HOST = ("127.0.0.1", 20911)


class FakeConnection:
    """A connection that records what is sent on it."""

    def __init__(self, port: int = 5555, outgoing: list[Command] | None = None) -> None:
        self.remote = ("10.0.0.7", port)
        self.remote_text = f"10.0.0.7:{port}"
        self.closed = False
        self.flushes = 0
        self.sent: list[Command] = []
        self.pushed: list[Command] = []
        self.outgoing: list[Command] = [] if outgoing is None else outgoing
        """What was pushed and asked, in order; connections may share the list."""
        self.answers: dict[int, Command] = {}
        """What the peer answers to requests, by their codes; none to others."""
        self.asked: list[Command] = []

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def send_with_body(self, command: Command, body: Sequence[memoryview]) -> None:
        command.body = b"".join(body)
        self.sent.append(command)

    def flush(self) -> None:
        self.flushes += 1

    async def drain(self) -> None:
        if self.closed:
            raise ConnectionLost(self.remote_text, "closed")

    def send_oneway(self, command: Command) -> None:
        if self.closed:
            raise ConnectionLost(self.remote_text, "closed")
        self.pushed.append(command)
        self.outgoing.append(command)

    async def request(self, command: Command, *, timeout: float) -> Command:
        self.asked.append(command)
        self.outgoing.append(command)
        if self.closed:
            raise ConnectionLost(self.remote_text, "closed")
        if command.code not in self.answers:
            raise AnswerTimeout(self.remote_text, command.code, timeout)
        return self.answers[command.code]

    def close(self) -> None:
        self.closed = True


class RecordedChanges:
    """Accepts changes, and reports each as saved or failed, as the test chooses."""

    def __init__(self) -> None:
        self.topics: list[tuple[list[str] | None, bool]] = []
        self.groups = 0
        self.settings: list[dict[str, str]] = []
        self.saves = True
        self.delay_offsets: dict[int, int] | None = None
        self.pending: dict[str, Awaitable[bool]] = {}
        """Topics that aren't on the disk yet."""

    def topics_changed(self, names: Sequence[str] | None, *, paced: bool) -> Awaitable[bool]:
        self.topics.append((None if names is None else list(names), paced))
        return _Done(self.saves)

    def topic_pending(self, name: str) -> Awaitable[bool] | None:
        return self.pending.get(name)

    def topic_dropped(self) -> Awaitable[bool]:
        return _Done(self.saves)

    def settings_changed(self, values: Mapping[str, str]) -> Awaitable[bool]:
        self.settings.append(dict(values))
        return _Done(self.saves)

    def groups_changed(self) -> Awaitable[bool]:
        self.groups += 1
        return _Done(self.saves)


class _Done:
    def __init__(self, result: bool) -> None:
        self._result = result

    def __await__(self) -> Any:
        yield from ()
        return self._result


class Bench:
    """One broker's state with its dispatcher."""

    def __init__(
        self, root: Path, *, files: Files | None = None, rules: str = "", **settings: Any
    ) -> None:
        self.config = BrokerConfig(
            **{
                "broker_name": "broker-a",
                "store_path_root_dir": root,
                "acl_enable": bool(rules),
                **settings,
            }
        )
        self.clock = ManualClock()
        self.changes = RecordedChanges()
        self.store = MessageStore(
            StoreConfig(
                root=root,
                mapped_file_size_commit_log=1 << 20,
                mapped_file_size_consume_queue=20_000,
                max_hash_slots=1000,  # in few pages, which a test touches quickly
                max_message_size=self.config.max_message_size,
                flush_disk_type="SYNC_FLUSH" if self.config.sync_flush else "ASYNC_FLUSH",
                store_host=HOST,
                limits=self.config.store_limits,
                sync_flush_timeout_ms=self.config.sync_flush_timeout_ms,
                # Files are deleted by age, however full this machine's disk is.
                retention=RetentionConfig(forcibly=False),
            ),
            files=files,
            clock=self.clock,
        )
        self.store.open()
        self.state = BrokerState(
            config=self.config,
            host="127.0.0.1",
            packed_host=host_bytes(*HOST),
            store=self.store,
            clock=self.clock,
            random=Random(7),
            changes=self.changes,
            topics=TopicTable(self.config),
            groups=SubscriptionGroups(
                auto_create=self.config.auto_create_subscription_group,
                client_limit=self.config.max_groups,
            ),
            offsets=ConsumerOffsets(),
            filters=ConsumerFilters(self.config.limits),
        )
        self.guard = self._guard(root / "plain_acl.yml", rules) if rules else None
        self.processors = Processors.of(self.state, _call_later, self.guard)
        self.table = self.processors.table()
        self.dispatch = RequestDispatcher(self.state, self.table)
        self.guarded: Handler = self.guard.wrap(self.dispatch) if self.guard else self.dispatch
        self.connection = FakeConnection()

    def _guard(self, path: Path, rules: str) -> Guard:
        path.write_text(rules)
        file = AclFile(path)
        file.open()
        return Guard(file, permissions(self.state), self.clock)

    def close(self) -> None:
        self.store.close()

    def ask(self, command: Command, connection: FakeConnection | None = None) -> Command | None:
        """Return the answer to a request, returned or sent; None if there is none."""
        connection = connection or self.connection
        before = len(connection.sent)
        answer = self.answer(command, connection)
        if answer is None and len(connection.sent) > before:
            return connection.sent.pop()
        return answer

    def answer(
        self, command: Command, connection: Any, handler: Handler | None = None
    ) -> Command | None:
        """What the handler of a request returns; None also when the answer was sent."""
        answer = (handler or self.dispatch)(command, connection)
        if answer is None or isinstance(answer, Command):
            return answer
        return _finish(answer)

    def must(self, command: Command, connection: FakeConnection | None = None) -> Command:
        answer = self.ask(command, connection)
        assert answer is not None
        return answer

    # what tests need again and again

    def topic(self, name: str, queues: int = 1, perm: int = 6, **fields: Any) -> TopicConfig:
        config = TopicConfig(
            topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm, **fields
        )
        self.state.topics.put(config, 1)
        return config

    def send(self, topic: str, body: bytes = b"x", **fields: Any) -> Command:
        return self.must(send_command(topic, body, **fields))

    def subscribe(
        self,
        group: str,
        topic: str,
        expression: str = "*",
        *,
        connection: FakeConnection | None = None,
        version: int = 1,
        **fields: Any,
    ) -> Command:
        tags = [] if expression == "*" else [tag.strip() for tag in expression.split("||")]
        expression_type = fields.pop("expression_type", "TAG")
        subscription = SubscriptionData(
            topic=topic,
            sub_string=expression,
            tags_set=tags,
            code_set=[tags_code(tag) for tag in tags],
            sub_version=version,
            expression_type=expression_type,
        )
        consumer = ConsumerData(group_name=group, subscription_data_set=[subscription], **fields)
        return self.must(heartbeat(consumers=[consumer]), connection)


def _call_later(delay: float, action: Callable[[], None]) -> None:
    """Call immediately, because no loop runs."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        action()
    else:
        loop.call_later(delay, action)


def _finish(answer: Awaitable[Command | None]) -> Command | None:
    """Run an awaitable that never suspends."""
    steps = answer.__await__()
    try:
        next(steps)
    except StopIteration as end:
        return end.value
    raise AssertionError("the answer has to wait")


def fields_of(command: Command) -> dict[str, str]:
    """Return the ext fields of a command built here."""
    return dict(command.all_pairs() or ())


def send_header(topic: str, **fields: Any) -> SendMessageRequestHeaderV2:
    return SendMessageRequestHeaderV2(
        **{
            "producer_group": "pg",
            "topic": topic,
            "default_topic": "TBW102",
            "default_topic_queue_nums": 4,
            "queue_id": 0,
            "sys_flag": 0,
            "born_timestamp": 1_700_000_000_123,
            "flag": 0,
            **fields,
        }
    )


def send_command(
    topic: str,
    body: bytes = b"x",
    *,
    code: int = RequestCode.SEND_MESSAGE_V2,
    oneway: bool = False,
    version: int = 407,
    **fields: Any,
) -> Command:
    command = Command.request(code, send_header(topic, **fields), body=body, oneway=oneway)
    command.version = version
    return command


def pull_command(topic: str, *, code: int = RequestCode.PULL_MESSAGE, **fields: Any) -> Command:
    header = PullMessageRequestHeader(
        **{
            "consumer_group": "g",
            "topic": topic,
            "queue_id": 0,
            "queue_offset": 0,
            "max_msg_nums": 32,
            "sys_flag": 4,
            "commit_offset": 0,
            "suspend_timeout_millis": 0,
            "sub_version": 0,
            "subscription": "*",
            **fields,
        }
    )
    return Command.request(code, header)


def heartbeat(
    client_id: str = "client-1",
    *,
    consumers: list[ConsumerData] | None = None,
    producers: list[str] | None = None,
) -> Command:
    body = HeartbeatData(
        client_id=client_id,
        producer_data_set=[ProducerData(group_name=name) for name in producers or []],
        consumer_data_set=consumers or [],
    )
    command = Command.request(RequestCode.HEART_BEAT, body=encode(body))
    command.language = Language.JAVA
    return command


async def answer_of(bench: Bench, command: Command) -> Command | None:
    """Return the answer to a request that may have to wait."""
    answer = bench.dispatch(command, bench.connection)
    if answer is None or isinstance(answer, Command):
        return answer
    return await asyncio.wait_for(answer, 10)
