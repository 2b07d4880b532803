"""The worker tasks that call the handler, handler time-outs, and the circuit breaker.

A worker drives the handler's coroutine itself: it takes the first step with ``send(None)``, so a
handler that returns without waiting needs neither a task nor an event loop iteration. A handler
that waits is awaited in the worker's task, which ``asyncio.current_task`` returns there, so that
``asyncio.timeout`` and task groups work in handlers. Workers are started as needed, one more than
handlers are waiting, up to ``concurrency``; each lives as long as the consumer. A worker that has
not waited for ``SLICE`` seconds yields to the event loop.

After ``consume_timeout`` a handler's messages are retried. Its coroutine is cancelled; a thread
can't be. What the handler does afterwards has no effect on the messages.

The circuit breaker counts consecutive messages whose handler raised the same exception type at the
same line. A handler that returns, or sets an outcome (``RetryLater``, ``DeadLetter``, a method of
the message), resets the count. At the limit consumption pauses; messages that fail from then until
``resume`` stay at this consumer, unsettled.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import coroutine
from typing import Any, Generic, NamedTuple, TypeVar

from client.consumer.assigned_queue import AssignedQueue, AssignedQueues
from client.consumer.handler import MessageHandler
from client.consumer.outcome import (
    DONE,
    OPEN,
    TAKEN_BACK,
    TIMED_OUT,
    Decision,
    MessageOutcome,
    outcome_of,
)
from client.consumer.process_queue import Run
from client.consumer.received import ReceivedMessage
from client.errors import ConsumerStopped
from client.events import ConsumptionPaused, HandlerTimedOut, LoopBlocked
from client.limits import BLOCKED_LOOP, CANCEL_GRACE, KEPT_PAUSE, REPORT_PERIOD, SLICE
from remoting.runtime.log import Log

T = TypeVar("T")

_log = Log("client")

Origin = tuple[type[BaseException], str, int]
"""The type of an exception, and the file and line that raised it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlingLimits:
    """Time limits of message handling, in seconds.

    Attributes:
        blocked_loop: a handler that blocks the event loop for this long is reported.
        kept_pause: delay until a message that could not be sent back is handled again.
    """

    blocked_loop: float = BLOCKED_LOOP
    kept_pause: float = KEPT_PAUSE


@coroutine
def resume_coroutine(
    work: Coroutine[Any, Any, object], waits_for: object
) -> Generator[Any, Any, object]:
    """Await a coroutine whose first step, ``send(None)``, yielded ``waits_for``."""
    while True:
        try:
            answer = yield waits_for
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001 - thrown into the coroutine
            failure: BaseException | None = error
            answer = None
        else:
            failure = None
        try:
            waits_for = work.send(answer) if failure is None else work.throw(failure)
        except StopIteration as end:
            return end.value


class _Call(NamedTuple, Generic[T]):
    """A handler call in progress: its queue, start time and worker task."""

    assigned: AssignedQueue[T]
    began: float
    task: asyncio.Task[Any] | None


class HandlerPool(Generic[T]):
    """The workers of one consumer, the handler calls in progress, and the circuit breaker.

    Args:
        handler: None: the application iterates over the messages.
        handle_some: handles some messages of a queue; returns whether it waited for anything.
        give_up: carries out the outcome of a run that has timed out.

    Attributes:
        breaker: pauses consumption when the handler keeps failing in the same manner.
    """

    def __init__(
        self,
        queues: AssignedQueues[T],
        handler: MessageHandler | None,
        limits: HandlingLimits,
        *,
        handle_some: Callable[[AssignedQueue[T]], Awaitable[bool]],
        give_up: Callable[
            [AssignedQueue[T], Run[ReceivedMessage[T]], MessageOutcome], Coroutine[Any, Any, None]
        ],
    ) -> None:
        options = queues.options
        self._queues = queues
        self._tasks = queues.tasks
        self._group = queues.group
        self._size = options.concurrency
        self._timeout = options.consume_timeout
        self._blocked_loop = limits.blocked_loop
        self._cancels = handler is None or handler.cancels
        self._manual = options.order is not None and not options.order.auto_commit
        self._handle_some = handle_some
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._workers: set[asyncio.Task[None]] = set()
        self._parked: deque[asyncio.Future[None]] = deque()
        self._context = contextvars.copy_context()
        self._calls: dict[Run[ReceivedMessage[T]], _Call[T]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._return_value_reported = False
        self._blocking_reported_at = float("-inf")
        self.breaker = Breaker(queues)

    # Workers

    @property
    def inside(self) -> bool:
        """Whether the caller runs in a worker, that is in an ``async`` handler."""
        try:
            return asyncio.current_task() in self._workers
        except RuntimeError:
            return False  # another thread

    def wake(self) -> None:
        """Wake an idle worker, or start one if there are fewer than ``concurrency``."""
        while self._parked:
            parked = self._parked.popleft()
            if not parked.done():
                parked.set_result(None)
                return
        if len(self._workers) < self._size:
            number = len(self._workers) + 1
            # A worker that woke this one runs in the context of its handler.
            worker = self._context.run(self._tasks.spawn, self._work(), f"worker {number}")
            worker.add_done_callback(self._worker_ended)
            self._workers.add(worker)

    async def _work(self) -> None:
        """Handle messages until cancelled.

        Raises:
            ConsumerStopped: a handler raised a BaseException such as SystemExit.
        """
        now = self._loop.time
        queues, handle_some = self._queues, self._handle_some
        since = began = now()
        try:
            while True:
                assigned = queues.next()
                if assigned is None:
                    parked: asyncio.Future[None] = self._loop.create_future()
                    self._parked.append(parked)
                    await parked
                    since = began = now()
                    continue
                waited = await handle_some(assigned)
                ended = now()
                assigned.worked(began, ended)
                if waited:
                    since = ended
                elif ended - since > SLICE:
                    await asyncio.sleep(0)
                    since = ended = now()
                began = ended
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            # Ctrl-C must end the whole program, not only this consumer.
            main = threading.current_thread() is threading.main_thread()
            if main and isinstance(error, KeyboardInterrupt):
                raise
            # Raised unchanged from a task, SystemExit would stop the whole event loop.
            raise self._ended_by(error) from error

    def _ended_by(self, error: BaseException) -> ConsumerStopped:
        return ConsumerStopped(
            f"a handler ended its worker with {error!r}",
            group=self._group,
            hint="raise an Exception to have the message again, or call stop()",
        )

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        if task.cancelled() and not self._tasks.closed:
            # When a program ends, asyncio cancels all tasks, waits for them, which may take long,
            # and closes the loop. If other tasks than workers still run after the delay, only the
            # worker was cancelled.
            self._loop.call_later(CANCEL_GRACE, self._lost_one)

    def _lost_one(self) -> None:
        if not self._tasks.closed and len(self._tasks) > len(self._workers):
            self._tasks.spawn(self._fail(asyncio.CancelledError()), "the end of a worker")

    async def _fail(self, error: BaseException) -> None:
        raise self._ended_by(error) from error

    # Calls

    async def finish(
        self,
        assigned: AssignedQueue[T],
        run: Run[ReceivedMessage[T]],
        work: Coroutine[Any, Any, object],
        waits_for: object,
    ) -> MessageOutcome | None:
        """Await a handler that has taken its first step.

        Returns:
            The outcome of its messages; None: the run was abandoned, the result is ignored.
        """
        task = asyncio.current_task()
        assert task is not None
        self.call_began(assigned, run, task)
        outcome: MessageOutcome | None = None
        try:
            outcome = self.outcome_of_result(await resume_coroutine(work, waits_for))
        except asyncio.CancelledError as error:
            # One of the task's cancellation requests may be ours, made by ``_abandon``. Any other
            # one must end the worker.
            if task.cancelling() > (run.abandoned and self._cancels):
                raise
            outcome = outcome_of(error)
        except Exception as error:  # noqa: BLE001 - the handler's failure is the outcome
            outcome = outcome_of(error)
        finally:
            self._calls.pop(run, None)
            if run.abandoned or outcome is None:  # outcome is None: the worker ends
                assigned.end(run)
            if run.abandoned and self._cancels:
                task.uncancel()
        return None if run.abandoned else outcome

    def call_began(
        self,
        assigned: AssignedQueue[T],
        run: Run[ReceivedMessage[T]],
        task: asyncio.Task[Any] | None = None,
    ) -> None:
        """Record that a handler or an iteration got a run; its time-out starts now."""
        began = self._loop.time()
        self._calls[run] = _Call(assigned, began, task)
        if self._alarm is None:
            self._alarm = self._loop.call_at(began + self._timeout, self._give_up_late_calls)

    def call_ended(self, run: Run[ReceivedMessage[T]]) -> None:
        """Record that a run is settled; cancels its time-out."""
        self._calls.pop(run, None)

    def outcome_of_result(self, value: object) -> MessageOutcome:
        """Return the outcome of a handler that returned ``value``.

        That is ``DONE``; with ``auto_commit=False`` it depends on the value.
        """
        if self._manual and isinstance(value, Decision):
            return DONE if value is Decision.COMMIT else TAKEN_BACK
        if value is not None and not self._return_value_reported:
            self._return_value_reported = True
            _log.warning(
                "the handler's return value is ignored, its messages are done; raise an exception"
                " to have them retried",
                group=self._group,
                returned=repr(value)[:200],
            )
        return OPEN if self._manual else DONE

    def report_blocking(self, seconds: float) -> None:
        """Report a handler that blocked the event loop for ``seconds``, if that is too long."""
        now = self._loop.time()
        if seconds < self._blocked_loop or now - self._blocking_reported_at < REPORT_PERIOD:
            return
        self._blocking_reported_at = now
        _log.warning(
            "the handler blocks the event loop; make it a plain def, which runs in a thread",
            group=self._group,
            seconds=round(seconds, 3),
        )
        self._queues.tell(LoopBlocked(self._group, seconds))

    def _give_up_late_calls(self) -> None:
        """Time out the calls that took too long; ``_calls`` is in order of their start."""
        self._alarm = None
        now = self._loop.time()
        while self._calls:
            run, call = next(iter(self._calls.items()))
            if call.began + self._timeout > now:
                self._alarm = self._loop.call_at(
                    call.began + self._timeout, self._give_up_late_calls
                )
                return
            self._abandon(run, call)
            seconds = now - call.began
            _log.warning(
                "handler took too long, its messages are retried",
                group=self._group,
                queue=str(call.assigned.queue),
                offset=run.offset,
                seconds=round(seconds, 3),
            )
            self._queues.tell(HandlerTimedOut(call.assigned.queue, run.offset, len(run), seconds))
            self._tasks.spawn(self._give_up(call.assigned, run, TIMED_OUT), "giving up a message")

    def close(self) -> None:
        """Cancel the time-outs: the event loop would keep the consumer until they end."""
        if self._alarm is not None:
            self._alarm.cancel()

    def _abandon(self, run: Run[ReceivedMessage[T]], call: _Call[T]) -> None:
        del self._calls[run]
        run.abandoned = True
        if call.task is not None and self._cancels:
            call.task.cancel()

    def abandon(self, assigned: AssignedQueue[T]) -> int:
        """Abandon the calls of a lost queue. Returns their number."""
        calls = [(run, call) for run, call in self._calls.items() if call.assigned is assigned]
        for run, call in calls:
            self._abandon(run, call)
        return len(calls)


class Breaker:
    """The circuit breaker: counts the failures of one consumer's handler.

    Args:
        queues: the queues to pause; the limit is in their options.

    Attributes:
        paused: the event with which the breaker paused consumption; None: it is not paused.
    """

    def __init__(self, queues: AssignedQueues[Any]) -> None:
        self.paused: ConsumptionPaused | None = None
        self._queues = queues
        self._group = queues.group
        self._limit = queues.options.breaker
        self._origin: Origin | None = None
        self._failed: set[str] = set()

    def succeeded(self) -> None:
        """Reset the count after the handler returned or set an outcome."""
        if self._failed:
            self._failed.clear()

    def reset(self) -> None:
        """Reset the breaker after the application resumed consumption."""
        self.paused = None
        self._failed.clear()

    def count(self, outcomes: Iterable[tuple[ReceivedMessage[Any], MessageOutcome]]) -> set[int]:
        """Count the outcomes of one handler call.

        Of a batch only the first failed message counts. A message counts once, however often it is
        retried.

        Returns:
            The offsets of the failed messages to keep at this consumer, because consumption is
            paused.
        """
        failed = []
        for message, outcome in outcomes:
            if outcome.error is not None:
                failed.append((message, outcome.error))
            elif outcome is not TIMED_OUT:
                self.succeeded()
        if failed and self._limit is not None and self.paused is None:
            self._count_failure(*failed[0], self._limit)
        return set() if self.paused is None else {message.offset for message, _ in failed}

    def _count_failure(
        self, message: ReceivedMessage[Any], error: BaseException, limit: int
    ) -> None:
        step = error.__traceback__
        while step is not None and step.tb_next is not None:
            step = step.tb_next
        file, line = ("", 0) if step is None else (step.tb_frame.f_code.co_filename, step.tb_lineno)
        origin = type(error), file, line
        if origin != self._origin:
            self._origin = origin
            self._failed.clear()
        self._failed.add(message.id)
        if len(self._failed) < limit:
            return
        where = f"{Path(file).name}:{line}" if file else "an unknown line"
        self.paused = ConsumptionPaused(
            self._group,
            len(self._failed),
            error,
            f"the handler failed for {len(self._failed)} messages in a row with"
            f" {type(error).__name__} at {where}: {error}",
        )
        _log.error(
            "consumption is paused: fix the handler, then resume()",
            group=self._group,
            why=self.paused.reason,
            docs=ConsumptionPaused.docs,
            exc_info=error,
        )
        self._queues.suspend()
        self._queues.tell(self.paused)
