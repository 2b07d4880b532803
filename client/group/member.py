"""One consumer's membership in its group, from joining to leaving.

A rebalance round reads the route of every subscribed topic and the members of the group, and takes
or gives up queues according to the strategy. Rounds run at the start, every 20 s, when a route
changes, and when a broker notifies that the group has changed; notifications during a round cause
one further round. Topics are independent: one that fails keeps its queues and is retried soon.
(cf. RebalanceImpl, RebalanceService)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Mapping

from client.config import GroupOptions, OnConflict
from client.errors import (
    ConsumerStopped,
    NoNameServer,
    NoRoute,
    PocketMQError,
    TopicNotFound,
    Unavailable,
    UsageError,
)
from client.events import MembersDiffer, QueuesUnread, Start, SubscriptionUnstable, TopicDeleted
from client.group.assignment import AssignmentListener, AssignmentManager
from client.group.conflicts import GroupProblemReporter, join
from client.group.rebalancer import Rebalancer, View
from client.group.reports import Reports, consumer_status, running_info, stacks
from client.group.start_offsets import OffsetStore, StartOffsets
from client.group.strategies import Sticky, strategy_named
from client.group.view import GroupMembers, GroupView, Subscribed, check_filter, from_where
from client.limits import MAX_HANDLED_NOW, REBALANCE_PERIOD, REBALANCE_RETRY_FIRST
from client.network.context import ClientContext
from client.network.routes import Route
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.description import BlockedQueue
from remoting.protocol.bodies.group import ResetOffsetBody
from remoting.protocol.bodies.heartbeat import ConsumerData, ConsumeType, MessageModel
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.command import Command
from remoting.protocol.errors import BodyError, RecordError
from remoting.protocol.message.tags import SqlExpression, TagExpression
from remoting.protocol.own_codes import TOPIC_DELETED
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from remoting.runtime.tasks import Supervisor, wait_at_most

_log = Log("client")


class GroupMember:
    """The group membership of one consumer.

    Args:
        context: an open context.
        subscriptions: topic -> tag expression.
        offsets: stores the group's offsets.
        tasks: owns the member's background tasks; ``stop`` closes it. After a task has failed, the
            member must be stopped.
        consume_type: how the consumer consumes; with CONSUME_PASSIVELY (push) and ``shared`` the
            group's retry topic is read too.

    Raises:
        UsageError: an argument is wrong.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        subscriptions: Mapping[str, TagExpression],
        options: GroupOptions,
        offsets: OffsetStore,
        tasks: Supervisor,
        consume_type: ConsumeType,
    ) -> None:
        self.group = group
        self._context = context
        self._options = options
        self._made_ms = context.clock.now_ms()
        self._strategy = strategy_named(options.strategy)
        self._consume_type = consume_type
        self._subscriptions = Subscribed(
            group,
            subscriptions,
            context.clock.now_ms,
            retry=options.shared and consume_type == ConsumeType.CONSUME_PASSIVELY,
        )
        self._tasks = tasks
        self._starts = StartOffsets(context, group, offsets, options)
        self._rebalancer = Rebalancer(
            self._strategy if options.shared else None, context.client_id, group
        )
        self._listener: AssignmentListener
        self._assignments: AssignmentManager
        self._problems: GroupProblemReporter
        self._reports: Reports
        self._heartbeats_asked: dict[str, float] = {}
        self._wake = asyncio.Event()
        self._next_round_over = asyncio.Event()
        self._rounds: asyncio.Task[None] | None = None
        self._joined = False
        self._handled_now = 0

    # Contents of heartbeats

    @property
    def on_conflict(self) -> OnConflict:
        """The policy for joining a group whose members have different settings."""
        return self._options.on_conflict

    def blocked(self) -> list[BlockedQueue]:
        """Return the queues blocked by a failing message."""
        return self._listener.blocked()

    @property
    def strategy_name(self) -> str:
        """The name of the member's allocation strategy."""
        return self._strategy.name

    def consumer_data(self) -> ConsumerData:
        """Return the member's part of a heartbeat."""
        shared = self._options.shared
        model = MessageModel.CLUSTERING if shared else MessageModel.BROADCASTING
        return ConsumerData(
            group_name=self.group,
            consume_type=self._consume_type,
            message_model=model,
            consume_from_where=from_where(self._options.start_from),
            subscription_data_set=self._subscriptions.data(),
        )

    async def heartbeat_broker(self, address: str) -> None:
        """Send a heartbeat to a broker that lacks the group or its subscription (codes 24, 25).

        If that is needed twice within a heartbeat period, another member is overwriting the
        subscription: log it and report ``SubscriptionUnstable``.
        """
        now = asyncio.get_running_loop().time()
        last = self._heartbeats_asked.get(address)
        await self._context.heartbeats.now(address)
        if self._heartbeats_asked.get(address) != last:
            return  # a concurrent call for another queue has sent the same heartbeat
        if last is not None and now - last < self._context.heartbeats.period:
            _log.warning("subscription forgotten again", group=self.group, broker=address)
            self._listener.tell(SubscriptionUnstable(self.group, address))
        self._heartbeats_asked[address] = asyncio.get_running_loop().time()

    # Lifecycle

    async def start(self, listener: AssignmentListener) -> None:
        """Join the group and run the first rebalance.

        Args:
            listener: the consumer, which reads the queues.

        Raises:
            ConsumerStopped: ``stop`` was called meanwhile.
            GroupConflict: another member of the group has settings that must be equal but differ.
            NoNameServer: no name server can be reached.
            UsageError: this client already has a member of the group, or no name server is given.
        """
        options = self._options
        self._listener = listener
        self._assignments = AssignmentManager(
            self._context,
            self.group,
            listener,
            self._tasks,
            self._starts,
            options,
            self.rebalance,
        )
        self._problems = GroupProblemReporter(
            self._context,
            self.group,
            lambda: self._subscriptions.topics,
            listener.tell,
            conflicts=options.on_conflict != "allow",
        )
        self._reports = Reports(
            self.group, self._context.client_id, listener.tell, shared=options.shared
        )
        self._context.members.check_free(self.group)
        addresses = await self._addresses()
        await self._check_filters()
        self._check_open()
        try:
            for conflict in await join(self._context, self, addresses):
                _log.warning("members differ", group=self.group, conflict=str(conflict))
                self._listener.tell(MembersDiffer(self.group, conflict))
            self._check_open()
            self._context.members.join(self)
        except BaseException:
            # Brokers may know the member already.
            await self._context.leave(self)
            raise
        self._joined = True
        well = await self._round()
        self._rounds = self._tasks.spawn(self._run(well), "rebalance")
        self._tasks.spawn(self._problems.run(), "watching the group")

    def _check_open(self) -> None:
        if self._tasks.closed:
            raise ConsumerStopped("the consumer was stopped while it started", group=self.group)

    async def stop(self, *, deadline: float) -> None:
        """Give up all queues and leave the group.

        Args:
            deadline: event loop time until which running handlers may continue.
        """
        if self._rounds is not None:
            self._rounds.cancel()
            await asyncio.wait([self._rounds])
        self._next_round_over.set()
        try:
            await self._assignments.give_up_all(deadline)
        finally:
            await self._tasks.close()
            if self._joined:
                self._joined = False
                await self._context.leave(self)

    async def _addresses(self) -> list[str]:
        """Return the addresses of all brokers in the topics' routes."""
        routes = await asyncio.gather(
            *(self._context.routes.to_read(topic) for topic in self._subscriptions.topics),
            return_exceptions=True,
        )
        addresses: dict[str, None] = {}
        for route in routes:
            if isinstance(route, Route):
                for by_id in route.brokers.values():
                    addresses |= dict.fromkeys(by_id.values())
            elif isinstance(route, NoNameServer | UsageError) or not isinstance(
                route, PocketMQError
            ):
                raise route
        return list(addresses)

    async def _check_filters(self) -> None:
        """Have the brokers check the filters. Raises RemoteError if one refuses a filter."""
        for topic in self._subscriptions.topics:
            expression = self._subscriptions.expression(topic)
            if not isinstance(expression, SqlExpression):
                continue
            try:
                route = await self._context.routes.to_read(topic)
                for name in route.brokers:
                    address = route.master(name)
                    if address is not None:
                        await check_filter(self._context, self.group, topic, expression, address)
            except (Unavailable, NoRoute, TopicNotFound) as error:
                # A fetcher asks again before it reads a queue there.
                _log.warning("filter not checked", group=self.group, topic=topic, error=str(error))

    # Topics

    def subscribe(self, topic: str, expression: TagExpression) -> None:
        """Subscribe to a topic, or change its tag expression, and start a rebalance round.

        Raises:
            UsageError: ``topic`` is not a valid topic name.
        """
        if self._subscriptions.put(topic, expression):
            self._changed()

    def unsubscribe(self, topic: str) -> None:
        """End the subscription to a topic, and start a rebalance round."""
        if self._subscriptions.remove(topic):
            self._changed()

    def expression(self, topic: str) -> TagExpression | None:
        """Return the tag expression of a topic; None: not subscribed."""
        return self._subscriptions.expression(topic)

    def _changed(self) -> None:
        self._context.heartbeat_soon()
        self._wake.set()

    # Requests of brokers, and changes of routes

    def asked(self, command: Command) -> Command | Awaitable[Command] | None:
        """Process a broker's request to the group's members. Returns the response, if any."""
        if command.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            self._wake.set()
        elif command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            self._reset(command)
        elif command.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            return consumer_status(command, self._listener.running())
        elif command.code == RequestCode.GET_CONSUMER_RUNNING_INFO:
            body = running_info(
                self.consumer_data(),
                self._listener.running(),
                self.owned,
                ordered=self._listener.ordered,
                name_servers=self._context.name_servers.addresses,
                started_ms=self._made_ms,
                jstack=stacks() if command.fields.get("jstackEnable") == "true" else None,
            )
            return command.reply(body=body)
        elif command.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
            return self._handle_now(command)
        return None if command.is_oneway else command.reply()

    async def _handle_now(self, command: Command) -> Command:
        """Have the application handle the message of a request, and answer with the outcome."""
        if self._handled_now >= MAX_HANDLED_NOW:
            return command.reply(
                ResponseCode.SYSTEM_BUSY,
                f"the consumer handles {MAX_HANDLED_NOW} messages of administrators already",
            )
        # Copy the body: the receive buffer is reused while the handler runs.
        answer = self._listener.handle_now(
            bytes(command.body), command.fields.get("brokerName") or ""
        )
        if answer is None:
            return command.reply(
                ResponseCode.SYSTEM_ERROR,
                f"the consumer of {self.group} has no handler: its application takes the messages",
            )
        self._handled_now += 1
        try:
            return command.reply(body=encode(await answer))
        except RecordError as error:
            return command.reply(ResponseCode.SYSTEM_ERROR, f"the message can't be read: {error}")
        finally:
            self._handled_now -= 1

    def _reset(self, command: Command) -> None:
        try:
            offsets = decode(ResetOffsetBody, command.body).offset_table
        except BodyError as error:
            _log.warning("reset not understood", group=self.group, error=str(error))
            return
        is_deleted = command.fields.get(TOPIC_DELETED) == "true"
        if is_deleted:
            topic = command.fields.get("topic") or ""
            _log.warning("topic deleted", group=self.group, topic=topic)
            self._listener.tell(TopicDeleted(self.group, topic))
        else:
            _log.info("offsets reset by an administrator", group=self.group, queues=len(offsets))
        self.restart(offsets, "topic deleted" if is_deleted else None)

    def restart(self, offsets: Mapping[MessageQueue, int], why: str | None = None) -> None:
        """Give up queues and take them again at other offsets."""
        self._assignments.restart(
            {
                queue: Start(offset, "reset", why or f"reset to {offset}")
                for queue, offset in offsets.items()
            }
        )

    def route_changed(self, topic: str) -> None:
        """Start a rebalance round after the route of a topic has changed."""
        if self._subscriptions.expression(topic) is not None:
            self._wake.set()

    def connected(self, address: str) -> None:
        """Request the locks again at a broker that was connected to."""
        self._assignments.connected(address)

    # Rounds

    @property
    def owned(self) -> frozenset[MessageQueue]:
        """The queues that the consumer reads."""
        return self._assignments.owned

    def holds_lock(self, queue: MessageQueue) -> bool:
        """Return whether this member certainly holds a queue's lock."""
        return self._assignments.holds_lock(queue)

    async def rebalance(self) -> None:
        """Start a rebalance round and wait until it is over."""
        self._wake.set()
        await self.settled()

    async def settled(self) -> None:
        """Wait for the end of the next round, not of one in progress, or until the member stops."""
        if self._rounds is not None and self._rounds.done():
            return
        await self._next_round_over.wait()

    async def _run(self, well: bool) -> None:
        retry = REBALANCE_RETRY_FIRST
        round_over = asyncio.Event()
        try:
            while True:
                pause = REBALANCE_PERIOD if well else retry
                retry = REBALANCE_RETRY_FIRST if well else min(2 * retry, REBALANCE_PERIOD)
                await wait_at_most(pause, self._wake)
                self._wake.clear()
                # A caller of ``settled`` during this round waits for the next one, because this one
                # may already have read the subscriptions.
                round_over, self._next_round_over = self._next_round_over, asyncio.Event()
                well = await self._round()
                round_over.set()
        finally:
            # No round will follow, for example because the application's strategy has raised: wake
            # the callers of ``settled``.
            round_over.set()
            self._next_round_over.set()

    async def _round(self) -> bool:
        """Rebalance all topics. Returns whether that succeeded for each of them."""
        view = GroupView(self._context, self.group, self._reports.members)
        topics = self._subscriptions.topics
        outcomes = await asyncio.gather(*(self._view(view, topic) for topic in topics))
        self._check_open()
        views: dict[str, View | None] = {}
        failed: dict[str, PocketMQError] = {}
        for topic, outcome in zip(topics, outcomes, strict=True):
            views[topic] = outcome if isinstance(outcome, View) else None
            if isinstance(outcome, PocketMQError):
                failed[topic] = outcome
        difference = self._rebalancer.difference(views, self._assignments.held)
        failed.update(difference.failed)
        self._assignments.change(difference.wanted)
        before = self._reports.members
        self._reports.round_over(views, view.members, difference, failed)
        if view.members is not None:
            balanced = {topic: view for topic, view in views.items() if topic not in failed}
            self._reports.unread(self._unread(view.members, balanced, difference.wanted))
        if self._reports.members != before:
            self._problems.soon()
        return not failed

    def _unread(
        self,
        everybody: GroupMembers,
        views: Mapping[str, View | None],
        own: frozenset[MessageQueue],
    ) -> Iterator[QueuesUnread]:
        """Yield the topics whose queues are shared with members that don't subscribe to them."""
        for topic, members in everybody.unread_shares().items():
            view = views.get(topic)
            theirs = set() if view is None else self._rebalancer.shares_of(members, view)
            queues = tuple(sorted(theirs - own))
            yield QueuesUnread(self.group, topic, members, everybody.foreign, queues)

    async def _view(self, view: GroupView, topic: str) -> View | PocketMQError:
        try:
            route = await self._context.routes.to_read(topic)
            return await view.view(
                route, shared=self._options.shared, owners=isinstance(self._strategy, Sticky)
            )
        except PocketMQError as error:
            return error
