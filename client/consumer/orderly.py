"""Orderly consumption: each queue in order, one message at a time.

(cf. ConsumeMessageOrderlyService)

Between the members of a group, the queue's lock ensures the order: no handler starts without it.
Within a member, a worker claims the queue, and no other worker takes messages from a claimed queue.
A queue can be claimed when it is not claimed already, does not rest after a failure, and its lock
is held.

A failed message is not sent back, because later messages would overtake it: its queue rests, then
the message is handled again. After ``max_retries`` it is dead-lettered, stops the consumer or
blocks its queue, as configured in ``Orderly``. From failure number ``WARN_FAILURES`` on, the queue
counts as blocked and is reported. A consumer that regains a lost lock reads the group's stored
offset, and continues there if another member has advanced it.
"""

from __future__ import annotations

from typing import Final, TypeVar

from client.consumer.assigned_queue import AssignedQueue, AssignedQueues
from client.consumer.dispatcher import ALL_DONE, DEFAULT_LIMITS, FAILURES, Dispatcher
from client.consumer.handler import MessageHandler
from client.consumer.handler_pool import HandlingLimits
from client.consumer.options import Orderly
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
from client.consumer.send_back import CarryOut
from client.errors import ConsumerStopped
from client.events import QueueBlocked
from client.limits import MAX_TURN, RUN_MESSAGES, WARN_FAILURES
from remoting.protocol.bodies.description import BlockedQueue
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log

T = TypeVar("T")

_log = Log("client")


MAX_REPORTED_ERROR: Final = 500
"""Characters of an error that a heartbeat contains."""


class OrderlyDispatcher(Dispatcher[T]):
    """Dispatches each queue's messages one at a time, in order."""

    ordered = True

    def __init__(
        self,
        queues: AssignedQueues[T],
        order: Orderly,
        handler: MessageHandler | None,
        carry_out: CarryOut,
        limits: HandlingLimits = DEFAULT_LIMITS,
    ) -> None:
        batch_size = queues.options.batch_size
        alone = batch_size > 1 or not order.auto_commit
        super().__init__(
            queues, handler, carry_out, limits, handle_some=self._whole if alone else self._each
        )
        self._order = order
        self._most = batch_size if alone else RUN_MESSAGES

    def locked(self, queue: MessageQueue, held: bool) -> None:
        """See ``AssignmentListener``."""
        assigned = self._queues.find(queue)
        if assigned is not None:
            assigned.lock_changed(held)

    def take(self, assigned: AssignedQueue[T]) -> Run[ReceivedMessage[T]] | None:
        """See ``Dispatcher``; the queue stays claimed until the message's outcome is known."""
        return assigned.process_queue.take(1) if assigned.claim() else None

    async def give_up(
        self, assigned: AssignedQueue[T], run: Run[ReceivedMessage[T]], outcome: MessageOutcome
    ) -> None:
        """See ``Dispatcher``.

        Only iteration is handled here. A timed-out handler still runs, and must end before the
        queue's next message: its worker concludes the run then.
        """
        if self._handler is None and run in assigned.process_queue.active:
            await self.conclude(assigned, run, outcome)
            assigned.release(wake=True)

    def blocked(self) -> list[BlockedQueue]:
        """See ``AssignmentListener``."""
        return [
            BlockedQueue(
                group=self._queues.group,
                topic=assigned.blocked.queue.topic,
                queue_id=assigned.blocked.queue.queue_id,
                broker=assigned.blocked.queue.broker_name,
                offset=assigned.blocked.offset,
                msg_id=assigned.blocked.message_id,
                since_ms=assigned.blocked_since_ms,
                error=repr(assigned.blocked.error)[:MAX_REPORTED_ERROR],
            )
            for assigned in self._queues
            if assigned.blocked is not None
        ]

    def done(self, assigned: AssignedQueue[T], run: Run[ReceivedMessage[T]]) -> None:
        """See ``Dispatcher``."""
        self._breaker.succeeded()
        self._recovered(assigned, run.messages[0])
        assigned.process_queue.finish(run)
        assigned.make_room()
        assigned.end(run)
        assigned.release(wake=True)

    # Called by workers

    async def _each(self, assigned: AssignedQueue[T]) -> bool:
        if not assigned.claim():
            return False
        waited = await self._one_by_one(assigned, assigned.process_queue.take(self._most))
        assigned.release(wake=False)
        return waited

    async def _one_by_one(self, assigned: AssignedQueue[T], run: Run[ReceivedMessage[T]]) -> bool:
        queue, waited = assigned.process_queue, False
        outcomes, failures = queue.outcomes, queue.failures
        began = since = self._loop.time()
        while run.at < run.end:
            if queue.paused or (
                waited
                and (
                    run not in queue.active
                    or not assigned.may_start()
                    or self._loop.time() - began >= MAX_TURN
                )
            ):
                self._cut(run)
                queue.give_back(run)
                return waited
            work = self._calls(run, outcomes, failures)
            try:
                waits_for = work.send(None)
            except StopIteration as end:
                if end.value is ALL_DONE:
                    break
                outcome = self.pool.outcome_of_result(end.value)
            except FAILURES as error:
                outcome = outcome_of(error)
            except BaseException:
                # The worker ends, but the preceding messages are done.
                self._cut(run)
                assigned.make_room()
                raise
            else:
                waited = run.waits = True
                self._cut(run)
                assigned.make_room()
                self.pool.report_blocking(self._loop.time() - since)
                assigned.begin(run)
                outcome = await self.pool.finish(assigned, run, work, waits_for) or TIMED_OUT
                since = self._loop.time()
                run.waits = False
                assigned.end(run)
                if outcome is DONE and not outcomes and not failures:
                    run.at += 1
                    continue
            message = run.chunk.messages[run.at]
            if outcome is DONE and outcomes.get(message.offset, DONE) is DONE:
                self._recovered(assigned, message)
                run.at += 1
                continue
            self._cut(run)
            queue.give_back(run, keep=1)
            await self.conclude(assigned, run, outcome)
            return True
        self._breaker.succeeded()
        queue.finish(run)
        assigned.make_room()
        self.pool.report_blocking(self._loop.time() - since)
        return waited

    def _cut(self, run: Run[ReceivedMessage[T]]) -> None:
        """Settle the messages before the current one as done."""
        if run.at > run.start:
            self._breaker.succeeded()
            run.queue.cut(run, run.at - run.start)

    async def _calls(
        self,
        run: Run[ReceivedMessage[T]],
        outcomes: dict[int, MessageOutcome],
        failures: dict[int, int],
    ) -> object:
        """Call the handler for the current message and those after it, in one coroutine.

        Returns:
            ``ALL_DONE`` if each handler call returned None without waiting, no outcome is recorded,
            and the consumer isn't suspended; otherwise the handler's result for the message
            ``run.at``, where it stopped.
        """
        handler = self._handler
        assert handler is not None
        first = run.at
        for at, message in enumerate(run.chunk.messages[first : run.end], first):
            run.at = at
            value = await handler(message)
            if run.waits or value is not None or outcomes or failures or run.queue.paused:
                return value
        return ALL_DONE

    def _recovered(self, assigned: AssignedQueue[T], message: ReceivedMessage[T]) -> None:
        """Clear the failure state of a message that is done."""
        assigned.process_queue.outcomes.pop(message.offset, None)
        if assigned.process_queue.failures.pop(message.offset, 0) and assigned.blocked is not None:
            _log.info("queue is no longer blocked", queue=str(message.queue), offset=message.offset)
            assigned.unblock()

    async def _whole(self, assigned: AssignedQueue[T]) -> bool:
        """Call the handler once for the whole run: for batches and ``auto_commit=False``."""
        handler, queue = self._handler, assigned.process_queue
        assert handler is not None
        if not assigned.claim():
            return False
        began = self._loop.time()
        run = queue.take(self._most)
        assigned.begin(run)
        waited = False
        try:
            work = handler(list(run.messages) if self._batches else run.messages[0])
            waits_for = work.send(None)
        except StopIteration as end:
            outcome = self.pool.outcome_of_result(end.value)
        except FAILURES as error:
            outcome = outcome_of(error)
        except BaseException:
            assigned.end(run)
            raise
        else:
            waited = True
            outcome = await self.pool.finish(assigned, run, work, waits_for) or TIMED_OUT
        if not waited:
            self.pool.report_blocking(self._loop.time() - began)
        await self._decided(assigned, run, outcome)
        assigned.release(wake=False)
        return waited

    async def _decided(
        self,
        assigned: AssignedQueue[T],
        run: Run[ReceivedMessage[T]],
        outcome: MessageOutcome,
    ) -> None:
        queue = assigned.process_queue
        if outcome.error is None and outcome is not TIMED_OUT:
            self._breaker.succeeded()
        if outcome is OPEN and not queue.outcomes:
            assigned.uncommitted.append(run)
            if queue.full and not queue.waiting:
                _log.warning(
                    "queue waits for a commit: the handler has to return COMMIT sooner",
                    group=self._queues.group,
                    queue=str(queue.queue),
                    messages=queue.messages,
                )
        elif outcome is TAKEN_BACK:
            queue.counts.failed += len(run)
            for handled in (run, *assigned.uncommitted):
                queue.give_back(handled)
            assigned.uncommitted.clear()
            assigned.rest(self._order.rest(1))
        else:
            if outcome.verdict is OutcomeKind.DONE:
                for handled in assigned.uncommitted:
                    queue.finish(handled)
                assigned.uncommitted.clear()
            await self.conclude(assigned, run, outcome)
        assigned.end(run)

    # Outcomes

    async def conclude(
        self, assigned: AssignedQueue[T], run: Run[ReceivedMessage[T]], shared: MessageOutcome
    ) -> None:
        """See ``Dispatcher``.

        Raises:
            ConsumerStopped: ``on_exhausted="stop"``.
        """
        queue = assigned.process_queue
        if run not in queue.active:
            return
        assigned.begin(run)
        try:
            kept, rest = await self._settle_run(assigned, run, shared)
        finally:
            assigned.end(run)
        if len(kept) == len(run):
            queue.give_back(run)
        else:
            for single in queue.keep_only(run, kept):
                queue.give_back(single)
        assigned.make_room()
        if kept:
            assigned.rest(rest)

    async def _settle_run(
        self,
        assigned: AssignedQueue[T],
        run: Run[ReceivedMessage[T]],
        shared: MessageOutcome,
    ) -> tuple[set[int], float]:
        """Carry out the outcomes of a run's messages.

        Returns:
            The offsets of the messages to be handled again, and the seconds to rest before that.
        """
        recorded = assigned.process_queue.outcomes
        outcomes = [(message, recorded.get(message.offset, shared)) for message in run.messages]
        assigned.process_queue.counts.add(outcome for _, outcome in outcomes)
        kept = self._breaker.count(outcomes)
        rest = 0.0
        for message, outcome in outcomes:
            pause: float | None = None
            if message.offset in kept:
                pause = 0.0
            elif outcome.verdict is not OutcomeKind.DONE:
                pause = await self._failed(assigned, message, outcome)
            if pause is None:
                self._recovered(assigned, message)
            else:
                recorded.pop(message.offset, None)
                kept.add(message.offset)
                rest = max(rest, pause)
        return kept, rest

    async def _failed(
        self,
        assigned: AssignedQueue[T],
        message: ReceivedMessage[T],
        outcome: MessageOutcome,
    ) -> float | None:
        """Carry out a failure.

        Returns:
            Seconds to rest before the message is handled again; None: it was dead-lettered.

        Raises:
            ConsumerStopped: ``on_exhausted="stop"`` applies.
        """
        order = self._order
        tried = message.retries
        requested = outcome.verdict is OutcomeKind.DEAD_LETTER
        exhausted = order.max_retries is not None and tried >= order.max_retries
        if requested or (exhausted and order.on_exhausted == "dead_letter"):
            dead = MessageOutcome(OutcomeKind.DEAD_LETTER, None, outcome.reason, outcome.error)
            dead_lettered = await self._carry_out(message, dead)
            return None if dead_lettered else self._kept_pause
        failures = assigned.process_queue.failures.get(message.offset, 0) + 1
        assigned.process_queue.failures[message.offset] = failures
        self._report(assigned, message, failures, outcome)
        if exhausted and order.on_exhausted == "stop":
            raise ConsumerStopped(
                f"the message at offset {message.offset} failed {tried + 1} times: "
                f"{outcome.reason}",
                queue=message.queue,
                group=self._queues.group,
                hint="fix the handler, or skip the message with `pocketmq group skip`",
            ) from outcome.error
        return order.rest(failures) if outcome.delay is None else outcome.delay

    def _report(
        self,
        assigned: AssignedQueue[T],
        message: ReceivedMessage[T],
        failures: int,
        outcome: MessageOutcome,
    ) -> None:
        facts = {
            "group": self._queues.group,
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
        blocked = QueueBlocked(message.queue, message.offset, message.id, failures, outcome.error)
        first = assigned.block(blocked, self._queues.context.clock.now_ms())
        self._queues.tell(blocked)
        if first:
            # The heartbeat reports the blocked queue to the broker, where operators can see it.
            self._queues.context.heartbeat_soon()
