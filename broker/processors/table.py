"""The request handlers by request code, and the dispatcher that calls them.

``RequestDispatcher`` is the handler of the broker's connections. It turns exceptions of handlers
into error responses, so a failing request neither closes its connection nor stays unanswered,
unless it is oneway.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from broker.errors import LimitReached, RequestRefused
from broker.group_monitor import CallLater, GroupMonitor, GroupNotifier, call_later
from broker.processors.client_callbacks import ClientCallbackProcessor
from broker.processors.clients import ClientProcessor
from broker.processors.groups import GroupProcessor
from broker.processors.offload import Answer, Handler, Offload
from broker.processors.offsets import OffsetProcessor
from broker.processors.pull import PullProcessor
from broker.processors.queries import QueryProcessor
from broker.processors.replies import ReplyProcessor
from broker.processors.send import SendProcessor
from broker.processors.send_back import SendBackProcessor
from broker.processors.settings import SettingsProcessor
from broker.processors.stats import StatsProcessor
from broker.processors.timers import TimerProcessor
from broker.processors.topics import TopicProcessor
from broker.processors.transactions import TransactionProcessor
from broker.sampler import Sampler
from broker.state import BrokerState
from broker.store.results import StoreBusy, StoreError
from broker.traffic.quotas import Quotas
from remoting.access.guard import Guard
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import ProtocolError
from remoting.protocol.own_codes import OwnRequestCode
from remoting.runtime.log import RateLimitedLog

if TYPE_CHECKING:
    from remoting.connection import Connection

_log = structlog.get_logger("broker")


@dataclass(slots=True)
class Processors:
    """The processors of one broker."""

    offload: Offload
    quotas: Quotas
    send: SendProcessor
    send_back: SendBackProcessor
    replies: ReplyProcessor
    transactions: TransactionProcessor
    timers: TimerProcessor
    pull: PullProcessor
    clients: ClientProcessor
    callbacks: ClientCallbackProcessor
    offsets: OffsetProcessor
    topics: TopicProcessor
    groups: GroupProcessor
    settings: SettingsProcessor
    stats: StatsProcessor
    queries: QueryProcessor
    monitor: GroupMonitor
    sampler: Sampler

    @classmethod
    def of(
        cls,
        state: BrokerState,
        call_later: CallLater = call_later,
        guard: Guard | None = None,
    ) -> Processors:
        """Create the processors for ``state``.

        Args:
            state: what they work on.
            call_later: schedules their notifications.
            guard: checks what accounts may do; None: everybody may do everything.
        """
        account_of = None if guard is None else guard.account_of
        quotas = Quotas(lambda: state.config.rates, state.clock, account_of)
        monitor = GroupMonitor(state)
        offload = Offload(state.store, state.config.limits.reads_per_request)
        sampler = Sampler(state, offload.read)
        offsets = OffsetProcessor(state, monitor, offload)
        timers = TimerProcessor(state)
        sends = SendProcessor(state, timers, quotas)
        pulls = PullProcessor(state, offsets, quotas, guard)
        callbacks = ClientCallbackProcessor(state, offload)
        return cls(
            offload,
            quotas,
            sends,
            SendBackProcessor(state, quotas),
            ReplyProcessor(state, sends),
            TransactionProcessor(state, guard),
            timers,
            pulls,
            ClientProcessor(state, monitor, GroupNotifier(state, monitor, call_later), account_of),
            callbacks,
            offsets,
            TopicProcessor(state, offload, pulls, callbacks),
            GroupProcessor(state, offload, monitor),
            SettingsProcessor(state),
            StatsProcessor(state, offload, quotas, sampler.rates),
            QueryProcessor(state, offload),
            monitor,
            sampler,
        )

    def table(self) -> dict[int, Handler]:
        """Return the handlers of all requests that are served, by code.

        Handlers wrapped in ``offload`` read old messages: their disk reads run in a thread, so that
        they don't block the event loop.
        """
        offload = self.offload.wrap
        return self._own_table() | {
            RequestCode.SEND_MESSAGE: self.send.send,
            RequestCode.SEND_MESSAGE_V2: self.send.send,
            RequestCode.SEND_BATCH_MESSAGE: self.send.send,
            RequestCode.CONSUMER_SEND_MSG_BACK: self.send_back.send_back,
            RequestCode.SEND_REPLY_MESSAGE: self.replies.reply,
            RequestCode.SEND_REPLY_MESSAGE_V2: self.replies.reply,
            RequestCode.RECALL_MESSAGE: self.timers.recall,
            RequestCode.GET_TIMER_CHECK_POINT: self.timers.check_point,
            RequestCode.END_TRANSACTION: self.transactions.end,
            RequestCode.RESUME_CHECK_HALF_MESSAGE: self.transactions.resume,
            RequestCode.PULL_MESSAGE: self.pull.pull,
            RequestCode.LITE_PULL_MESSAGE: self.pull.pull,
            RequestCode.HEART_BEAT: self.clients.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.clients.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.clients.consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self.clients.check_config,
            RequestCode.QUERY_CONSUMER_OFFSET: self.offsets.query,
            RequestCode.UPDATE_CONSUMER_OFFSET: self.offsets.update,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: offload(self.offsets.search),
            RequestCode.GET_MAX_OFFSET: self.offsets.maximum,
            RequestCode.GET_MIN_OFFSET: self.offsets.minimum,
            RequestCode.GET_EARLIEST_MSG_STORETIME: offload(self.offsets.earliest),
            RequestCode.GET_ALL_CONSUMER_OFFSET: self.offsets.all_offsets,
            RequestCode.QUERY_CORRECTION_OFFSET: self.offsets.correction,
            RequestCode.LOCK_BATCH_MQ: self.offsets.lock,
            RequestCode.UNLOCK_BATCH_MQ: self.offsets.unlock,
            RequestCode.UPDATE_AND_CREATE_TOPIC: self.topics.create,
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: self.topics.create_list,
            RequestCode.DELETE_TOPIC_IN_BROKER: self.topics.delete,
            RequestCode.GET_ALL_TOPIC_CONFIG: self.topics.all_topics,
            RequestCode.GET_TOPIC_CONFIG: self.topics.config,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: self.topics.system_topics,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: self.groups.put,
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: self.groups.put_list,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.groups.all_groups,
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: self.groups.config,
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: self.groups.request_modes,
            RequestCode.DELETE_SUBSCRIPTIONGROUP: self.groups.delete,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self.groups.consumer_connections,
            RequestCode.GET_PRODUCER_CONNECTION_LIST: self.groups.producer_connections,
            RequestCode.GET_ALL_PRODUCER_INFO: self.groups.all_producers,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self.groups.consumed_by,
            RequestCode.QUERY_TOPICS_BY_CONSUMER: self.groups.topics_of,
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: self.groups.subscription_of,
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: self.groups.forbidden,
            RequestCode.UPDATE_BROKER_CONFIG: self.settings.update,
            RequestCode.GET_BROKER_CONFIG: self.settings.get,
            RequestCode.GET_BROKER_RUNTIME_INFO: offload(self.stats.runtime),
            RequestCode.GET_ALL_DELAY_OFFSET: self.stats.delay_offsets,
            RequestCode.GET_TOPIC_STATS_INFO: offload(self.stats.topic_stats),
            RequestCode.GET_CONSUME_STATS: offload(self.stats.consume_stats),
            RequestCode.VIEW_BROKER_STATS_DATA: self.stats.view,
            RequestCode.GET_BROKER_CONSUME_STATS: self.stats.all_consume_stats,
            RequestCode.GET_BROKER_HA_STATUS: self.stats.replicas,
            RequestCode.GET_CONSUMER_RUNNING_INFO: self.callbacks.running_info,
            RequestCode.CONSUME_MESSAGE_DIRECTLY: self.callbacks.consume_directly,
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: self.callbacks.consumer_status,
            RequestCode.QUERY_MESSAGE: self.queries.by_key,
            RequestCode.VIEW_MESSAGE_BY_ID: self.queries.by_id,
            RequestCode.QUERY_CONSUME_TIME_SPAN: offload(self.queries.time_span),
            RequestCode.QUERY_CONSUME_QUEUE: self.queries.entries,
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: self.callbacks.reset,
            RequestCode.CLONE_GROUP_OFFSET: self.callbacks.clone,
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: self.topics.delete_old,
            RequestCode.CLEAN_UNUSED_TOPIC: self.topics.clean_topics,
            RequestCode.DELETE_EXPIRED_COMMITLOG: self.topics.delete_old,
        }

    def _own_table(self) -> dict[int, Handler]:
        return {
            OwnRequestCode.DESCRIBE_CONSUMER_GROUP: self.groups.describe,
            OwnRequestCode.GET_GROUP_PROGRESS: self.stats.group_progress,
            OwnRequestCode.LIST_CONNECTIONS: self.clients.list_connections,
            OwnRequestCode.GET_REPLICATION_TOKEN: self.stats.replication_token,
        }


class RequestDispatcher:
    """Calls the handler of each request, and turns exceptions into error responses."""

    __slots__ = ("_failures", "_state", "_table")

    def __init__(self, state: BrokerState, table: dict[int, Handler]) -> None:
        self._state = state
        self._table = table
        self._failures = RateLimitedLog(state.clock, _log.error, burst=1)

    def __call__(self, command: Command, connection: Connection) -> Answer:
        """Handle one request."""
        handler = self._table.get(command.code)
        if handler is None:
            self._state.counters.requests_not_supported += 1
            return _unless_oneway(
                command,
                command.reply(
                    ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                    f" request type {command.code} not supported",
                ),
            )
        try:
            answer = handler(command, connection)
        except Exception as error:  # noqa: BLE001 - every failure must be answered
            return _unless_oneway(command, self._failure(command, error))
        if answer is None or isinstance(answer, Command):
            return _unless_oneway(command, answer)
        # Futures of handlers never fail, so they need no task that handles exceptions.
        return answer if isinstance(answer, asyncio.Future) else self._later(command, answer)

    async def _later(self, command: Command, answer: Awaitable[Command | None]) -> Command | None:
        try:
            return _unless_oneway(command, await answer)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # noqa: BLE001 - as above
            return _unless_oneway(command, self._failure(command, error))

    def _failure(self, command: Command, error: Exception) -> Command:
        if isinstance(error, RequestRefused):
            return command.reply(error.code, error.remark, extra=error.extra)
        if isinstance(error, StoreBusy):
            return command.reply(ResponseCode.SYSTEM_BUSY, str(error))
        if isinstance(error, (ProtocolError, LimitReached, StoreError)):
            return command.reply(ResponseCode.SYSTEM_ERROR, str(error))
        self._failures.write("request failed", code=command.code, exc_info=error)
        return command.reply(
            ResponseCode.SYSTEM_ERROR,
            f"the broker failed to serve request {command.code}: {type(error).__name__}; "
            "its log says more",
        )


def _unless_oneway(command: Command, answer: Command | None) -> Command | None:
    return None if command.is_oneway else answer
