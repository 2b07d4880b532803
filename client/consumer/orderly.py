"""Handling each queue's messages in order, one at a time (cf. ConsumeMessageOrderlyService).

Among the members of a group the queue's lock ensures order: no handler starts without it. Within a
member the queue's lane does: while a worker has a queue, no other takes from it. A lane is open
while nobody handles its next message, no failed message makes it wait, and its lock is held.

A message that fails is not sent back, because others would overtake it; its queue waits and the
message is handled again. After ``max_retries`` it is dead-lettered, or stops the consumer, or
blocks its queue, as ``Orderly`` configures. From the third failure the queue counts as blocked and
is reported. A consumer that lost a lock and regained it asks the offset store for the group's
progress, and continues there if another member has moved it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

from client.consumer.concurrent import ALL_DONE, FAILURES
from client.consumer.crew import AsyncHandler, HandlerPool
from client.consumer.intake import AssignedQueue, AssignedQueues
from client.consumer.offset_store import Store
from client.consumer.options import Orderly, PushOptions
from client.consumer.outcome import (
    DONE,
    OPEN,
    TAKEN_BACK,
    TIMED_OUT,
    MessageOutcome,
    OutcomeKind,
    outcome_of,
)
from client.consumer.process_queue import Run
from client.consumer.received import ReceivedMessage
from client.consumer.send_back import Returns
from client.errors import ConsumerStopped, PocketMQError
from client.events import QueueBlocked
from client.limits import KEPT_PAUSE, LOCK_RETRY, MAX_TURN, RUN_MESSAGES, WARN_FAILURES
from remoting.log import Log
from remoting.protocol.bodies.description import BlockedQueue
from remoting.protocol.queue import MessageQueue
from remoting.tasks import Supervisor

T = TypeVar("T")

_log = Log("client")


class QueueLane(Generic[T]):
    """One queue's state beside what is held of it.

    Attributes:
        taken: somebody has its next message.
        resting: a message failed; it comes again when the rest is over.
        locked: its lock is held.
        open: handled, but not committed yet (``auto_commit=False``).
        blocked: how it is blocked; None: it isn't.
        since_ms: since when.
    """

    __slots__ = ("blocked", "locked", "open", "regaining", "resting", "since_ms", "taken")

    def __init__(self) -> None:
        self.taken = False
        self.resting = False
        self.locked = True
        self.regaining = False
        self.since_ms = 0
        self.open: list[Run[ReceivedMessage[T]]] = []
        self.blocked: QueueBlocked | None = None


class QueueLanes(Generic[T]):
    """The lanes of one consumer.

    Args:
        tasks: owns what asks the store.
        store: where offsets are.
        holds_lock: whether a queue's lock is surely held.
    """

    def __init__(
        self,
        intake: AssignedQueues[T],
        tasks: Supervisor,
        store: Store,
        holds_lock: Callable[[MessageQueue], bool],
    ) -> None:
        self._intake = intake
        self._tasks = tasks
        self._store = store
        self._holds_lock = holds_lock
        self._lanes: dict[AssignedQueue[T], QueueLane[T]] = {}
        self._loop = asyncio.get_running_loop()

    def __iter__(self) -> Iterator[QueueLane[T]]:
        return iter(self._lanes.values())

    def gained(self, held: AssignedQueue[T]) -> None:
        """A queue has come, with its lock."""
        self._lanes[held] = QueueLane()

    def lost(self, held: AssignedQueue[T]) -> None:
        """A queue has gone."""
        self._lanes.pop(held, None)

    def find(self, held: AssignedQueue[T]) -> QueueLane[T] | None:
        """The lane of a queue that is still here."""
        return self._lanes.get(held)

    # Turns and rests

    def take(self, held: AssignedQueue[T]) -> QueueLane[T] | None:
        """Have the queue to oneself until ``release``; None: it may not be handled now."""
        lane = self._lanes.get(held)
        if lane is None or lane.taken or lane.resting or not self.may_start(held, lane):
            return None
        lane.taken = True
        held.shut = True
        return lane

    def release(self, held: AssignedQueue[T]) -> None:
        """Let the queue's next message be taken."""
        lane = self._lanes.get(held)
        if lane is not None:
            lane.taken = False
            self._refresh(held, lane)

    def rest(self, held: AssignedQueue[T], lane: QueueLane[T], seconds: float) -> None:
        """Hand out nothing of the queue for so long."""
        lane.resting = True
        self._refresh(held, lane)
        self._loop.call_later(seconds, self._rested, held, lane)

    def _rested(self, held: AssignedQueue[T], lane: QueueLane[T]) -> None:
        lane.resting = False
        if self._lanes.get(held) is lane:
            self._refresh(held, lane)

    def _refresh(self, held: AssignedQueue[T], lane: QueueLane[T]) -> None:
        held.shut = lane.taken or lane.resting or not lane.locked
        self._intake.offer(held)

    # Locks

    def may_start(self, held: AssignedQueue[T], lane: QueueLane[T]) -> bool:
        """Whether a handler may start: the queue is still here, and its lock held."""
        if held.queue.dropped:
            return False
        if lane.locked and not self._holds_lock(held.queue.queue):
            self._unlocked(held, lane)
        return lane.locked

    def locked(self, held: AssignedQueue[T], holds: bool) -> None:
        """The lock of a queue was lost, or got again."""
        lane = self._lanes.get(held)
        if lane is None:
            return
        if not holds:
            self._unlocked(held, lane)
        elif not lane.locked and not lane.regaining:
            lane.regaining = True
            self._tasks.spawn(self._regain(held, lane), f"going on with {held.queue.queue}")

    def _unlocked(self, held: AssignedQueue[T], lane: QueueLane[T]) -> None:
        if lane.locked:
            lane.locked = False
            held.committing = False
            self._refresh(held, lane)
            self._loop.call_later(LOCK_RETRY, self._look, held, lane)

    def _look(self, held: AssignedQueue[T], lane: QueueLane[T]) -> None:
        if lane.locked or self._lanes.get(held) is not lane:
            return
        if self._holds_lock(held.queue.queue):
            self.locked(held, True)
        else:
            self._loop.call_later(LOCK_RETRY, self._look, held, lane)

    async def _regain(self, held: AssignedQueue[T], lane: QueueLane[T]) -> None:
        queue = held.queue.queue
        stored: int | None = None
        try:
            stored = await self._store.stored(queue)
        except PocketMQError as error:
            _log.warning("locked queue waits", queue=str(queue), error=str(error))
            holds = False
        else:
            holds = self._holds_lock(queue)
        lane.regaining = False
        if self._lanes.get(held) is not lane or held.queue.dropped:
            return
        if not holds:
            self._loop.call_later(LOCK_RETRY, self._look, held, lane)
            return
        point = held.queue.commit_point
        if stored is not None and (point is None or stored > point):
            _log.info("queue was moved by another", queue=str(queue), here=point, stored=stored)
            self._intake.restart(held, stored)
            lane.open.clear()
        lane.locked = True
        held.committing = True
        self._refresh(held, lane)


MAX_TOLD_ERROR: Final = 500
"""Characters of an error that heartbeats tell."""


class OrderlyDispatcher(Generic[T]):
    """The orderly way of one consumer.

    Args:
        handler: None when messages are iterated over.
        cancels: whether a handler that takes too long can be cancelled.
        returns: where dead letters go.
        lanes: the state of the queues, and their locks.
        now_ms: the wall clock.
        on_blocked: called when a queue becomes blocked.
        kept_pause: seconds a queue rests when a dead letter could not be put aside.
    """

    def __init__(
        self,
        intake: AssignedQueues[T],
        options: PushOptions,
        order: Orderly,
        tasks: Supervisor,
        group: str,
        handler: AsyncHandler | None,
        returns: Returns,
        lanes: QueueLanes[T],
        *,
        cancels: bool,
        now_ms: Callable[[], int],
        on_blocked: Callable[[], None],
        kept_pause: float = KEPT_PAUSE,
    ) -> None:
        self._intake = intake
        self._breaker = intake.breaker
        self._order = order
        self._group = group
        self._handler = handler
        self._returns = returns
        self._lanes = lanes
        self._now_ms = now_ms
        self._on_blocked = on_blocked
        self._kept_pause = kept_pause
        self._loop = asyncio.get_running_loop()
        self._batches = options.batch_size > 1
        alone = self._batches or not order.auto_commit
        self._most = options.batch_size if alone else RUN_MESSAGES
        self.crew: HandlerPool[T] = HandlerPool(
            intake,
            tasks,
            group,
            size=options.concurrency,
            timeout=options.consume_timeout,
            cancels=cancels,
            manual=not order.auto_commit,
            turn=self._whole if alone else self._each,
            give_up=self.give_up if handler is None else self._wait_for_handler,
        )

    def gained(self, held: AssignedQueue[T]) -> None:
        """A queue has come, with its lock."""
        self._lanes.gained(held)

    def lost(self, held: AssignedQueue[T]) -> None:
        """A queue has gone."""
        self._lanes.lost(held)

    def locked(self, held: AssignedQueue[T], holds: bool) -> None:
        """The lock of a queue was lost, or got again."""
        self._lanes.locked(held, holds)

    def take(self, held: AssignedQueue[T]) -> Run[ReceivedMessage[T]] | None:
        """A message for iteration; None: not now. The next has to wait for its outcome."""
        return held.queue.take(1) if self._lanes.take(held) is not None else None

    async def give_up(
        self, held: AssignedQueue[T], run: Run[ReceivedMessage[T]], outcome: MessageOutcome
    ) -> None:
        """Carry out an outcome in iteration, and go on with the queue."""
        await self.conclude(held, run, outcome)
        self._lanes.release(held)

    async def _wait_for_handler(
        self, held: AssignedQueue[T], run: Run[ReceivedMessage[T]], outcome: MessageOutcome
    ) -> None:
        """A handler's time is over: its messages may not come again before it has ended."""

    @property
    def blocked(self) -> list[BlockedQueue]:
        """The queues that a failing message stops, as heartbeats tell of them."""
        return [
            BlockedQueue(
                group=self._group,
                topic=lane.blocked.queue.topic,
                queue_id=lane.blocked.queue.queue_id,
                broker=lane.blocked.queue.broker_name,
                offset=lane.blocked.offset,
                msg_id=lane.blocked.message_id,
                since_ms=lane.since_ms,
                error=repr(lane.blocked.error)[:MAX_TOLD_ERROR],
            )
            for lane in self._lanes
            if lane.blocked is not None
        ]

    def done(self, held: AssignedQueue[T], run: Run[ReceivedMessage[T]]) -> None:
        """A message of iteration is done with."""
        self._breaker.worked()
        lane = self._lanes.find(held)
        if lane is not None:
            self._recovered(held, lane, run.messages[0])
        held.queue.finish(run)
        self._intake.settled(held)
        held.handling.discard(run)
        held.changed()
        self._lanes.release(held)

    # Turns of workers

    async def _each(self, held: AssignedQueue[T]) -> bool:
        lane = self._lanes.take(held)
        if lane is None:
            return False
        waited = await self._one_by_one(held, lane, held.queue.take(self._most))
        self._lanes.release(held)
        return waited

    async def _one_by_one(
        self, held: AssignedQueue[T], lane: QueueLane[T], run: Run[ReceivedMessage[T]]
    ) -> bool:
        queue, waited = held.queue, False
        outcomes, failures = queue.outcomes, queue.failures
        began = since = self._loop.time()
        while run.at < run.end:
            if waited and not self._goes_on(held, lane, run, began):
                self._cut(run)
                queue.give_back(run)
                return True
            work = self._calls(run, outcomes, failures)
            try:
                waits_for = work.send(None)
            except StopIteration as end:
                if end.value is ALL_DONE:
                    break
                outcome = self.crew.returned(end.value)
            except FAILURES as error:
                outcome = outcome_of(error)
            except BaseException:
                # The worker ends; what was handled before is done all the same.
                self._cut(run)
                self._intake.settled(held)
                raise
            else:
                waited = run.waits = True
                self._cut(run)
                self._intake.settled(held)
                self.crew.kept_loop(self._loop.time() - since)
                held.handling.add(run)
                outcome = await self.crew.finish(held, run, work, waits_for) or TIMED_OUT
                since = self._loop.time()
                run.waits = False
                held.handling.discard(run)
                held.changed()
                if outcome is DONE and not outcomes and not failures:
                    run.at += 1
                    continue
            message = run.chunk.messages[run.at]
            if outcome is DONE and outcomes.get(message.offset, DONE) is DONE:
                self._recovered(held, lane, message)
                run.at += 1
                continue
            self._cut(run)
            queue.give_back(run, keep=1)
            await self.conclude(held, run, outcome)
            return True
        self._breaker.worked()
        queue.finish(run)
        self._intake.settled(held)
        self.crew.kept_loop(self._loop.time() - since)
        return waited

    def _cut(self, run: Run[ReceivedMessage[T]]) -> None:
        """The messages before the one at hand are done."""
        if run.at > run.start:
            self._breaker.worked()
            run.queue.cut(run, run.at - run.start)

    async def _calls(
        self,
        run: Run[ReceivedMessage[T]],
        outcomes: dict[int, MessageOutcome],
        failures: dict[int, int],
    ) -> object:
        """Call the handler for the message at hand and those behind it, see ``Concurrent``.

        It ends with ``ALL_DONE``, or at a message that has to be looked at or has waited, with
        what the handler returned for it.
        """
        handler = self._handler
        assert handler is not None
        first = run.at
        for at, message in enumerate(run.chunk.messages[first : run.end], first):
            run.at = at
            value = await handler(message)
            if run.waits or value is not None or outcomes or failures:
                return value
        return ALL_DONE

    def _goes_on(
        self, held: AssignedQueue[T], lane: QueueLane[T], run: Run[ReceivedMessage[T]], began: float
    ) -> bool:
        return (
            run in held.queue.active
            and not held.queue.paused
            and self._lanes.may_start(held, lane)
            and self._loop.time() - began < MAX_TURN
        )

    def _recovered(
        self, held: AssignedQueue[T], lane: QueueLane[T], message: ReceivedMessage[T]
    ) -> None:
        """A message is done, which may have failed before."""
        held.queue.outcomes.pop(message.offset, None)
        if held.queue.failures.pop(message.offset, 0) and lane.blocked is not None:
            _log.info("queue goes on", queue=str(message.queue), offset=message.offset)
            lane.blocked = None

    async def _whole(self, held: AssignedQueue[T]) -> bool:
        """One call for the run as it is: batches, and handlers that commit by themselves."""
        lane, handler, queue = self._lanes.take(held), self._handler, held.queue
        assert handler is not None
        if lane is None:
            return False
        began = self._loop.time()
        run = queue.take(self._most)
        held.handling.add(run)
        waited = False
        try:
            work = handler(list(run.messages) if self._batches else run.messages[0])
            waits_for = work.send(None)
        except StopIteration as end:
            outcome = self.crew.returned(end.value)
        except FAILURES as error:
            outcome = outcome_of(error)
        except BaseException:
            held.handling.discard(run)
            raise
        else:
            waited = True
            outcome = await self.crew.finish(held, run, work, waits_for) or TIMED_OUT
        if not waited:
            self.crew.kept_loop(self._loop.time() - began)
        await self._decided(held, lane, run, outcome)
        self._lanes.release(held)
        return waited

    async def _decided(
        self,
        held: AssignedQueue[T],
        lane: QueueLane[T],
        run: Run[ReceivedMessage[T]],
        outcome: MessageOutcome,
    ) -> None:
        queue = held.queue
        if outcome.error is None and outcome is not TIMED_OUT:
            self._breaker.worked()
        if outcome is OPEN and not queue.outcomes:
            lane.open.append(run)
            held.handling.discard(run)
            if queue.full and not queue.waiting:
                _log.warning(
                    "queue waits for a commit: the handler has to return COMMIT sooner",
                    group=self._group,
                    queue=str(queue.queue),
                    messages=queue.messages,
                )
        elif outcome is TAKEN_BACK:
            for one in (run, *lane.open):
                queue.give_back(one)
            lane.open.clear()
            held.handling.discard(run)
            self._lanes.rest(held, lane, self._order.rest(1))
        else:
            if outcome.verdict is OutcomeKind.DONE:
                for one in lane.open:
                    queue.finish(one)
                lane.open.clear()
            await self.conclude(held, run, outcome)
        held.changed()

    # Outcomes

    async def conclude(
        self, held: AssignedQueue[T], run: Run[ReceivedMessage[T]], shared: MessageOutcome
    ) -> None:
        """Carry out what became of a run's messages.

        Args:
            shared: the outcome of those that weren't settled by themselves.

        Raises:
            ConsumerStopped: ``on_exhausted="stop"``.
        """
        queue, lane = held.queue, self._lanes.find(held)
        if run not in queue.active or lane is None:
            return
        held.handling.add(run)
        try:
            kept, rest = await self._carried_out(held, lane, run, shared)
        finally:
            held.handling.discard(run)
            held.changed()
        if len(kept) == len(run):
            queue.give_back(run)
        else:
            for single in queue.keep_only(run, kept):
                queue.give_back(single)
        self._intake.settled(held)
        if kept:
            self._lanes.rest(held, lane, rest)

    async def _carried_out(
        self,
        held: AssignedQueue[T],
        lane: QueueLane[T],
        run: Run[ReceivedMessage[T]],
        shared: MessageOutcome,
    ) -> tuple[set[int], float]:
        """The offsets that have to come again, and after how many seconds."""
        given = held.queue.outcomes
        outcomes = [(message, given.get(message.offset, shared)) for message in run.messages]
        kept = self._breaker.staying(outcomes)
        rest = 0.0
        for message, outcome in outcomes:
            pause: float | None = None
            if message.offset in kept:
                pause = 0.0
            elif outcome.verdict is not OutcomeKind.DONE:
                pause = await self._failed(held, lane, message, outcome)
            if pause is None:
                self._recovered(held, lane, message)
            else:
                given.pop(message.offset, None)
                kept.add(message.offset)
                rest = max(rest, pause)
        return kept, rest

    async def _failed(
        self,
        held: AssignedQueue[T],
        lane: QueueLane[T],
        message: ReceivedMessage[T],
        outcome: MessageOutcome,
    ) -> float | None:
        """What a failure means: seconds to rest, or None: the message is put aside."""
        order = self._order
        tried = message.retries
        bury = outcome.verdict is OutcomeKind.DEAD_LETTER
        exhausted = order.max_retries is not None and tried >= order.max_retries
        if bury or (exhausted and order.on_exhausted == "dead_letter"):
            given_up = MessageOutcome(OutcomeKind.DEAD_LETTER, None, outcome.reason, outcome.error)
            aside = await self._returns.carry_out(message, given_up)
            return None if aside else self._kept_pause
        failures = held.queue.failures.get(message.offset, 0) + 1
        held.queue.failures[message.offset] = failures
        self._report(lane, message, failures, outcome)
        if exhausted and order.on_exhausted == "stop":
            raise ConsumerStopped(
                f"the message at offset {message.offset} failed {tried + 1} times: "
                f"{outcome.reason}",
                queue=message.queue,
                group=self._group,
                hint="mend the handler, or skip the message with `pocketmq group skip`",
            ) from outcome.error
        return order.rest(failures) if outcome.delay is None else outcome.delay

    def _report(
        self,
        lane: QueueLane[T],
        message: ReceivedMessage[T],
        failures: int,
        outcome: MessageOutcome,
    ) -> None:
        facts = {
            "group": self._group,
            "queue": str(message.queue),
            "offset": message.offset,
            "id": message.id,
            "failures": failures,
            "why": outcome.reason,
        }
        if failures < WARN_FAILURES:
            _log.info("message failed, its queue rests", **facts)
            return
        _log.warning(
            "queue is blocked by a failing message",
            **facts,
            docs=QueueBlocked.docs,
            exc_info=outcome.error,
        )
        first = lane.blocked is None
        if first:
            lane.since_ms = self._now_ms()
        lane.blocked = QueueBlocked(
            message.queue, message.offset, message.id, failures, outcome.error
        )
        self._intake.tell(lane.blocked)
        if first:
            self._on_blocked()
