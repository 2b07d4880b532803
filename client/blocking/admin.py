"""``client.Admin`` for threads."""

from __future__ import annotations

from types import TracebackType
from typing import Self, Unpack

from client import admin as waiting
from client.blocking.thread import Blocking, LoopThread, ThreadOwner
from client.config import Addresses, ClientArguments


class Admin(ThreadOwner):
    """See ``client.Admin``: every method is the same and blocks."""

    def __init__(
        self, nameservers: Addresses | None = None, **options: Unpack[ClientArguments]
    ) -> None:
        self._inner = waiting.Admin(nameservers, **options)
        self._thread: LoopThread | None = None
        self._owns_thread = True

    @classmethod
    def _of(cls, inner: waiting.Admin, thread: LoopThread) -> Self:
        admin = cls.__new__(cls)
        admin._inner = inner
        admin._thread = thread
        admin._owns_thread = False
        return admin

    @property
    def _part(self) -> waiting.Admin:
        return self._inner

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close its connections, if they are its own."""
        self._close(self._inner.close())

    create_topic = Blocking(waiting.Admin.create_topic)
    update_topic = Blocking(waiting.Admin.update_topic)
    delete_topic = Blocking(waiting.Admin.delete_topic)
    topics = Blocking(waiting.Admin.topics)
    topic_config = Blocking(waiting.Admin.topic_config)
    topic_configs = Blocking(waiting.Admin.topic_configs)
    topic_route = Blocking(waiting.Admin.topic_route)
    topic_stats = Blocking(waiting.Admin.topic_stats)
    system_topics = Blocking(waiting.Admin.system_topics)

    create_group = Blocking(waiting.Admin.create_group)
    delete_group = Blocking(waiting.Admin.delete_group)
    groups = Blocking(waiting.Admin.groups)
    group_config = Blocking(waiting.Admin.group_config)
    group_configs = Blocking(waiting.Admin.group_configs)
    groups_of = Blocking(waiting.Admin.groups_of)
    consumer_connections = Blocking(waiting.Admin.consumer_connections)
    producer_connections = Blocking(waiting.Admin.producer_connections)
    consume_stats = Blocking(waiting.Admin.consume_stats)
    describe_group = Blocking(waiting.Admin.describe_group)
    members = Blocking(waiting.Admin.members)
    owners = Blocking(waiting.Admin.owners)
    running_info = Blocking(waiting.Admin.running_info)
    lag = Blocking(waiting.Admin.lag)
    reset = Blocking(waiting.Admin.reset)
    skip = Blocking(waiting.Admin.skip)
    dead_letters = Blocking(waiting.Admin.dead_letters)
    redrive = Blocking(waiting.Admin.redrive)
    message = Blocking(waiting.Admin.message)
    find_messages = Blocking(waiting.Admin.find_messages)

    queues = Blocking(waiting.Admin.queues)
    min_offset = Blocking(waiting.Admin.min_offset)
    max_offset = Blocking(waiting.Admin.max_offset)
    search_offset = Blocking(waiting.Admin.search_offset)
    earliest_stored_at = Blocking(waiting.Admin.earliest_stored_at)
    committed = Blocking(waiting.Admin.committed)
    commit = Blocking(waiting.Admin.commit)
    all_offsets = Blocking(waiting.Admin.all_offsets)

    cluster = Blocking(waiting.Admin.cluster)
    brokers = Blocking(waiting.Admin.brokers)
    broker_runtime = Blocking(waiting.Admin.broker_runtime)
    broker_config = Blocking(waiting.Admin.broker_config)
    wipe_write_permission = Blocking(waiting.Admin.wipe_write_permission)
    add_write_permission = Blocking(waiting.Admin.add_write_permission)
    put_kv = Blocking(waiting.Admin.put_kv)
    get_kv = Blocking(waiting.Admin.get_kv)
    delete_kv = Blocking(waiting.Admin.delete_kv)
    kv = Blocking(waiting.Admin.kv)
