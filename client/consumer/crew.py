"""Who calls the handler: a few workers, each a task for as long as the consumer lives.

A handler that is a coroutine function is driven by the worker itself: the first step is taken with
``send(None)``, and one that returns at once has cost no task and no turn of the event loop. Only
one that waits is awaited, in the worker's task, which is what ``asyncio.current_task`` gives it,
so that ``asyncio.timeout`` and task groups work within. There are as many workers as handlers that
wait at the moment and one more, up to ``concurrency``; after a slice of time without waiting a
worker lets the rest of the program run.

A handler gets ``consume_timeout``. Then its messages are given up without it; a coroutine is
cancelled, a thread can't be. What either does afterwards no longer counts.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from types import coroutine
from typing import Any, Generic, NamedTuple, TypeVar, cast

from client.consumer.intake import AssignedQueue, AssignedQueues
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
from client.consumer.threads import HandlerThreads
from client.errors import ConsumerStopped
from client.events import HandlerTimedOut, LoopBlocked
from client.interceptors import Interceptor, around_handler
from client.limits import BLOCKED_LOOP, CANCEL_GRACE, COMPLAINT_PERIOD, SLICE
from remoting.log import Log
from remoting.tasks import Supervisor

T = TypeVar("T")

_log = Log("client")

AsyncHandler = Callable[[Any], Coroutine[Any, Any, object]]


@coroutine
def resume_coroutine(
    work: Coroutine[Any, Any, object], waits_for: object
) -> Generator[Any, Any, object]:
    """Await a coroutine that was started by hand and has come to wait for ``waits_for``."""
    while True:
        try:
            answer = yield waits_for
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, it is for the coroutine
            failure: BaseException | None = error
            answer = None
        else:
            failure = None
        try:
            waits_for = work.send(answer) if failure is None else work.throw(failure)
        except StopIteration as end:
            return end.value


def is_async(handler: Callable[..., object]) -> bool:
    """Whether a handler is a coroutine function, or an object that is called as one."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - its kind is asked for, not whether
    )


def as_async(
    handler: Callable[..., object],
    threads: HandlerThreads | None,
    interceptors: Sequence[Interceptor],
    *,
    batches: bool,
) -> AsyncHandler:
    """A handler with its interceptors as a coroutine function; a plain one runs in a thread."""
    call: Any = handler
    if threads is not None:
        call = _in_thread(handler, threads)
    return cast(AsyncHandler, around_handler(call, interceptors, batches=batches))


def _in_thread(handler: Callable[..., object], threads: HandlerThreads) -> AsyncHandler:
    async def call(argument: Any) -> object:
        result = await threads.call(handler, argument)
        return await result if inspect.isawaitable(result) else result

    return call


class _Call(NamedTuple, Generic[T]):
    """A handler that waits: since when, in which worker."""

    held: AssignedQueue[T]
    began: float
    task: asyncio.Task[Any] | None


class HandlerPool(Generic[T]):
    """The workers of one consumer, and the calls that are waiting.

    Args:
        size: workers at most.
        timeout: seconds a call gets.
        cancels: whether a call that takes too long can be cancelled.
        manual: handlers commit by what they return (``Decision``).
        turn: handle some messages of a queue; True when that waited for anything.
        give_up: carry out an outcome for a run whose time is over.
    """

    def __init__(
        self,
        intake: AssignedQueues[T],
        tasks: Supervisor,
        group: str,
        *,
        size: int,
        timeout: float,
        cancels: bool,
        manual: bool = False,
        turn: Callable[[AssignedQueue[T]], Awaitable[bool]],
        give_up: Callable[
            [AssignedQueue[T], Run[ReceivedMessage[T]], MessageOutcome], Coroutine[Any, Any, None]
        ],
    ) -> None:
        self._intake = intake
        self._tasks = tasks
        self._group = group
        self._size = size
        self._timeout = timeout
        self._cancels = cancels
        self._manual = manual
        self._turn = turn
        self._give_up = give_up
        self._loop = asyncio.get_running_loop()
        self._workers: set[asyncio.Task[None]] = set()
        self._parked: deque[asyncio.Future[None]] = deque()
        self._calls: dict[Run[ReceivedMessage[T]], _Call[T]] = {}
        self._alarm: asyncio.TimerHandle | None = None
        self._nonsense_told = False
        self._blocking_told = float("-inf")

    # Workers

    @property
    def inside(self) -> bool:
        """Whether this runs within a handler."""
        try:
            return asyncio.current_task() in self._workers
        except RuntimeError:
            return False  # another thread

    def wake(self) -> None:
        """There is something to handle."""
        while self._parked:
            parked = self._parked.popleft()
            if not parked.done():
                parked.set_result(None)
                return
        if len(self._workers) < self._size:
            number = len(self._workers) + 1
            worker = self._tasks.spawn(self._work(), f"worker {number}")
            worker.add_done_callback(self._worker_ended)
            self._workers.add(worker)

    async def _work(self) -> None:
        """Handle messages for ever. Raises ConsumerStopped for what no handler may raise."""
        now = self._loop.time
        intake, turn = self._intake, self._turn
        since = now()
        try:
            while True:
                held = intake.next()
                if held is None:
                    parked: asyncio.Future[None] = self._loop.create_future()
                    self._parked.append(parked)
                    await parked
                    since = now()
                elif await turn(held):
                    since = now()
                elif now() - since > SLICE:
                    await asyncio.sleep(0)
                    since = now()
        except (Exception, asyncio.CancelledError):
            raise
        except BaseException as error:
            # Ctrl-C is for the whole program, not for this consumer alone.
            main = threading.current_thread() is threading.main_thread()
            if main and isinstance(error, KeyboardInterrupt):
                raise
            # Raised as it is, SystemExit would end the loop under everybody else's feet.
            raise self._ended_by(error) from error

    def _ended_by(self, error: BaseException) -> ConsumerStopped:
        return ConsumerStopped(
            f"a handler ended its worker with {error!r}",
            group=self._group,
            hint="raise an Exception to have the message again, or call stop()",
        )

    def _worker_ended(self, task: asyncio.Task[None]) -> None:
        self._workers.discard(task)
        if task.cancelled():
            # At the end of a program all tasks are cancelled, and soon there is no loop: only
            # after a moment it is certain that this worker alone was.
            self._loop.call_later(CANCEL_GRACE, self._lost_one)

    def _lost_one(self) -> None:
        if not self._tasks.closed:
            self._tasks.spawn(self._fail(asyncio.CancelledError()), "the end of a worker")

    async def _fail(self, error: BaseException) -> None:
        raise self._ended_by(error) from error

    # Calls

    async def finish(
        self,
        held: AssignedQueue[T],
        run: Run[ReceivedMessage[T]],
        work: Coroutine[Any, Any, object],
        waits_for: object,
    ) -> MessageOutcome | None:
        """Await a handler that has begun. None: its time was over, its messages are settled."""
        task = asyncio.current_task()
        assert task is not None
        self.began(held, run, task)
        outcome: MessageOutcome | None = None
        try:
            outcome = self.returned(await resume_coroutine(work, waits_for))
        except asyncio.CancelledError as error:
            # Of the requests to cancel this task one may be ours; any other is to end the worker.
            if task.cancelling() > (run.over and self._cancels):
                raise
            outcome = outcome_of(error)
        except Exception as error:  # noqa: BLE001 - the handler's, and its message's fate
            outcome = outcome_of(error)
        finally:
            self._calls.pop(run, None)
            if run.over or outcome is None:  # without an outcome its worker ends
                held.handling.discard(run)
                held.changed()
            if run.over and self._cancels:
                task.uncancel()
        return None if run.over else outcome

    def began(
        self,
        held: AssignedQueue[T],
        run: Run[ReceivedMessage[T]],
        task: asyncio.Task[Any] | None = None,
    ) -> None:
        """Somebody has these messages now; their time runs."""
        began = self._loop.time()
        self._calls[run] = _Call(held, began, task)
        if self._alarm is None:
            self._alarm = self._loop.call_at(began + self._timeout, self._look)

    def ended(self, run: Run[ReceivedMessage[T]]) -> None:
        """Nobody has them any more."""
        self._calls.pop(run, None)

    def returned(self, value: object) -> MessageOutcome:
        """What it means that a handler returned this: its messages are done, unless it decides."""
        if self._manual and isinstance(value, Decision):
            return DONE if value is Decision.COMMIT else TAKEN_BACK
        if value is not None and not self._nonsense_told:
            self._nonsense_told = True
            _log.warning(
                "what the handler returns means nothing, its messages are done; it raises to have"
                " them again",
                group=self._group,
                returned=repr(value)[:200],
            )
        return OPEN if self._manual else DONE

    def kept_loop(self, seconds: float) -> None:
        """A handler ran so long without waiting."""
        now = self._loop.time()
        if seconds < BLOCKED_LOOP or now - self._blocking_told < COMPLAINT_PERIOD:
            return
        self._blocking_told = now
        _log.warning(
            "the handler blocks the event loop; make it a plain def, which runs in a thread",
            group=self._group,
            seconds=round(seconds, 3),
        )
        self._intake.tell(LoopBlocked(self._group, seconds))

    def _look(self) -> None:
        """Give up the calls whose time is over; the oldest stands first."""
        self._alarm = None
        now = self._loop.time()
        while self._calls:
            run, call = next(iter(self._calls.items()))
            if call.began + self._timeout > now:
                self._alarm = self._loop.call_at(call.began + self._timeout, self._look)
                return
            self._abandon(run, call)
            seconds = now - call.began
            _log.warning(
                "handler took too long, its messages are retried",
                group=self._group,
                queue=str(call.held.queue.queue),
                offset=run.offset,
                seconds=round(seconds, 3),
            )
            self._intake.tell(HandlerTimedOut(call.held.queue.queue, run.offset, len(run), seconds))
            self._tasks.spawn(self._give_up(call.held, run, TIMED_OUT), "giving up a message")

    def _abandon(self, run: Run[ReceivedMessage[T]], call: _Call[T]) -> None:
        del self._calls[run]
        run.over = True
        if call.task is not None and self._cancels:
            call.task.cancel()

    def abandon(self, held: AssignedQueue[T]) -> int:
        """The queue is lost: give up its calls. Returns how many there were."""
        mine = [(run, call) for run, call in self._calls.items() if call.held is held]
        for run, call in mine:
            self._abandon(run, call)
        return len(mine)
