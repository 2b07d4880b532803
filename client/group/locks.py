"""Queue locks at the brokers (LOCK_BATCH_MQ, UNLOCK_BATCH_MQ).

``Leases`` holds the state and does no I/O: which locks are held, and when which request is due. A
lock is renewed every 20 s. It counts as lost when the broker refuses it, or when it could not be
renewed for 30 s; the broker keeps it for 60 s, so no other member can get it earlier. A missing
lock is requested every 100 ms while its owner may be finishing, then every second.
(cf. RebalanceImpl.lockAll, ProcessQueue.isLockExpired)

One task per broker sends everything that is due in one request. Masters manage locks. While a
broker has no master, unordered queues are locked at a slave, from which they are read then; a slave
knows nothing of the master's locks, so those of ordered queues keep their state until they expire.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Protocol

from client.errors import NoRoute, PocketMQError, remote_error
from client.limits import (
    HANDOVER_TIMEOUT,
    LOCK_LIFE,
    LOCK_RENEWAL_PERIOD,
    LOCK_RETRY,
    LOCK_RETRY_SLOW,
    LOCK_TIMEOUT,
    UNLOCK_TIMEOUT,
)
from client.network.context import ClientContext
from client.network.remote import try_for, unavailable
from remoting.errors import RemotingError
from remoting.protocol.bodies import decode, encode
from remoting.protocol.bodies.group import (
    LockBatchRequestBody,
    LockBatchResponseBody,
)
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.errors import BodyError
from remoting.protocol.own_codes import TAKE_LOCKS
from remoting.protocol.queue import MessageQueue
from remoting.runtime.log import Log
from remoting.runtime.tasks import Supervisor, wait_at_most


@dataclass(slots=True)
class _Lease:
    """One wanted lock; times in monotonic seconds.

    Attributes:
        wanted_since: when it was wanted, or lost last.
        due: when the next request is due.
        taken_at: when the last successful request was made.
    """

    wanted_since: float
    due: float
    held: bool = False
    taken_at: float = float("-inf")


class Leases:
    """The wanted locks at one broker; times in monotonic seconds."""

    def __init__(self) -> None:
        self._leases: dict[MessageQueue, _Lease] = {}

    def __len__(self) -> int:
        return len(self._leases)

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._leases

    def want(self, queue: MessageQueue, now: float) -> None:
        """Start to request a lock."""
        self._leases.setdefault(queue, _Lease(wanted_since=now, due=now))

    def drop(self, queue: MessageQueue) -> None:
        """Stop requesting and renewing a lock."""
        self._leases.pop(queue, None)

    def holds(self, queue: MessageQueue, now: float) -> bool:
        """Return whether a lock is certainly held."""
        lease = self._leases.get(queue)
        return lease is not None and lease.held and now < lease.taken_at + LOCK_LIFE

    def due(self, now: float) -> list[MessageQueue]:
        """Return the locks to request now; if one renewal is due, all held locks are included."""
        if not any(lease.due <= now for lease in self._leases.values()):
            return []
        renew = any(lease.held and lease.due <= now for lease in self._leases.values())
        return [
            queue
            for queue, lease in self._leases.items()
            if lease.due <= now or (renew and lease.held)
        ]

    def probe(self, now: float) -> None:
        """Make all locks due now, because the broker may have lost them."""
        for lease in self._leases.values():
            lease.due = now

    def answered(
        self, asked: Iterable[MessageQueue], granted: Collection[MessageQueue], now: float
    ) -> dict[MessageQueue, bool]:
        """Process the broker's response to a request made at ``now``.

        Returns:
            For each queue whose lock was taken or lost, whether it is held.
        """
        changes: dict[MessageQueue, bool] = {}
        for queue in asked:
            lease = self._leases.get(queue)
            if lease is None:
                continue
            if queue in granted:
                if not lease.held:
                    changes[queue] = lease.held = True
                lease.taken_at = now
                lease.due = now + LOCK_RENEWAL_PERIOD
            else:
                if lease.held:
                    changes[queue] = False
                    self._lose(lease, now)
                lease.due = now + self._pause(lease, now)
        return changes

    def failed(self, asked: Iterable[MessageQueue], now: float) -> None:
        """Schedule a retry after a failed request; held locks stay held until they expire."""
        for queue in asked:
            lease = self._leases.get(queue)
            if lease is not None:
                lease.due = now + (LOCK_RETRY_SLOW if lease.held else self._pause(lease, now))

    def expire(self, now: float) -> list[MessageQueue]:
        """Mark locks as lost that could not be renewed for too long, and return them."""
        expired = [
            queue
            for queue, lease in self._leases.items()
            if lease.held and now >= lease.taken_at + LOCK_LIFE
        ]
        for queue in expired:
            self._lose(self._leases[queue], now)
        return expired

    def next_due(self) -> float:
        """Return when the next request or expiry is due; infinity: never."""
        times = [
            min(lease.due, lease.taken_at + LOCK_LIFE) if lease.held else lease.due
            for lease in self._leases.values()
        ]
        return min(times, default=float("inf"))

    @staticmethod
    def _lose(lease: _Lease, now: float) -> None:
        lease.held = False
        lease.wanted_since = lease.due = now

    @staticmethod
    def _pause(lease: _Lease, now: float) -> float:
        drains = now - lease.wanted_since < HANDOVER_TIMEOUT
        return LOCK_RETRY if drains else LOCK_RETRY_SLOW


_log = Log("client")


class _Broker:
    """The locks at one broker and their task.

    Attributes:
        disturbed_at: when a request last failed or the broker was reconnected to; event loop time.
        asked: the queues of the lock request in flight.
        answered: set while no lock request is in flight.
    """

    def __init__(self) -> None:
        self.disturbed_at = float("-inf")
        self.leases = Leases()
        self.wake = asyncio.Event()
        self.task: asyncio.Task[None] | None = None
        self.asked: frozenset[MessageQueue] = frozenset()
        self.answered = asyncio.Event()
        self.answered.set()


class LockListener(Protocol):
    """Callbacks of ``LockKeeper``."""

    def lock_changed(self, queue: MessageQueue, held: bool) -> None:
        """Handle that a queue's lock was taken or lost."""

    def waits(self, queue: MessageQueue, error: PocketMQError) -> None:
        """Handle that a queue must wait, because its lock can't be requested from the broker."""


class LockKeeper:
    """Acquires, renews and releases the queue locks of one member.

    Args:
        tasks: owns the tasks that send the requests.
        listener: called when locks are taken or lost, or can't be requested.
        at_slaves: whether a slave may lock queues while there is no master.
    """

    def __init__(
        self,
        context: ClientContext,
        group: str,
        tasks: Supervisor,
        listener: LockListener,
        *,
        at_slaves: bool,
    ) -> None:
        self._at_slaves = at_slaves
        self._context = context
        self._group = group
        self._tasks = tasks
        self._listener = listener
        self._brokers: dict[str, _Broker] = {}
        self._waiting: dict[MessageQueue, asyncio.Future[None]] = {}
        self._loop = asyncio.get_running_loop()

    def holds(self, queue: MessageQueue) -> bool:
        """Return whether this member certainly holds the queue's lock."""
        broker = self._brokers.get(queue.broker_name)
        return broker is not None and broker.leases.holds(queue, self._loop.time())

    async def acquire(self, queue: MessageQueue, patience: float | None) -> bool:
        """Request a queue's lock until ``release``, and wait until it is held.

        The wait restarts when the broker was unreachable, because the previous owner can't learn
        during that time that it has lost the queue.

        Args:
            patience: seconds to wait; None: without limit.

        Returns:
            Whether the lock is held. If not, it is still being requested in the background.
        """
        began = self._loop.time()
        broker = self._brokers.setdefault(queue.broker_name, _Broker())
        broker.leases.want(queue, self._loop.time())
        if broker.leases.holds(queue, self._loop.time()):
            return True
        broker.wake.set()
        if broker.task is None or broker.task.done():
            broker.task = self._tasks.spawn(
                self._hold(broker), f"queue locks at {queue.broker_name}"
            )
        waiter = self._waiting.setdefault(queue, self._loop.create_future())
        try:
            while patience is not None:
                until = max(began, broker.disturbed_at) + patience
                await asyncio.wait((waiter,), timeout=until - self._loop.time())
                if waiter.done():
                    return not waiter.cancelled()
                if self._loop.time() >= max(began, broker.disturbed_at) + patience:
                    return False
            await asyncio.shield(waiter)
        finally:
            if self._waiting.get(queue) is waiter:
                del self._waiting[queue]
                waiter.cancel()
        return True

    async def take(self, queue: MessageQueue) -> None:
        """Take a lock by force from a holder that does not release it; PocketMQ's brokers allow it.

        Thus the member that reads a queue holds its lock, and the next owner waits for that member.
        """
        broker = self._brokers.setdefault(queue.broker_name, _Broker())
        now = self._loop.time()
        try:
            granted = await self._lock([queue], by_force=True)
        except PocketMQError as error:
            _log.info("lock not taken", group=self._group, queue=str(queue), error=str(error))
            return
        for changed, held in broker.leases.answered([queue], granted, now).items():
            self._tell(changed, held=held)
        broker.wake.set()

    async def release(self, queues: Iterable[MessageQueue]) -> None:
        """Release locks; a broker that can't be reached keeps them for a minute.

        First wait for a lock request in flight: Apache's brokers process requests in many threads
        and could execute the lock after the unlock, leaving the lock with this member.
        """
        by_broker: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            broker = self._brokers.get(queue.broker_name)
            if broker is not None and queue in broker.leases:
                self.forget(queue)
                by_broker.setdefault(queue.broker_name, []).append(queue)
        await asyncio.gather(*(self._give_back(name, some) for name, some in by_broker.items()))

    async def _give_back(self, name: str, queues: list[MessageQueue]) -> None:
        broker = self._brokers[name]
        while not broker.asked.isdisjoint(queues):
            await broker.answered.wait()
        await self._unlock(queues)

    def forget(self, queue: MessageQueue) -> None:
        """Stop renewing a lock without releasing it."""
        broker = self._brokers.get(queue.broker_name)
        if broker is not None:
            broker.leases.drop(queue)
            broker.wake.set()

    def probe(self, address: str) -> None:
        """Request the locks at a reconnected broker now: it may have restarted and lost them."""
        table = self._context.routes.table.brokers()
        for name, broker in self._brokers.items():
            if len(broker.leases) and address in table.get(name, {}).values():
                broker.disturbed_at = self._loop.time()
                broker.leases.probe(self._loop.time())
                broker.wake.set()

    async def _hold(self, broker: _Broker) -> None:
        while len(broker.leases):
            now = self._loop.time()
            for queue in broker.leases.expire(now):
                self._tell(queue, held=False)
            due = broker.leases.due(now)
            if due:
                await self._ask_for(broker, due, now)
            pause = broker.leases.next_due() - self._loop.time()
            await wait_at_most(None if pause == float("inf") else pause, broker.wake)
            broker.wake.clear()

    async def _ask_for(self, broker: _Broker, queues: list[MessageQueue], now: float) -> None:
        broker.asked = frozenset(queues)
        broker.answered.clear()
        try:
            granted = await self._lock(queues)
        except PocketMQError as error:
            broker.disturbed_at = self._loop.time()
            broker.leases.failed(queues, self._loop.time())
            for queue in queues:
                if not broker.leases.holds(queue, self._loop.time()):
                    self._listener.waits(queue, error)
            return
        finally:
            broker.asked = frozenset()
            broker.answered.set()
        for queue, held in broker.leases.answered(queues, granted, now).items():
            self._tell(queue, held=held)

    def _tell(self, queue: MessageQueue, *, held: bool) -> None:
        waiter = self._waiting.get(queue)
        if held and waiter is not None and not waiter.done():
            waiter.set_result(None)
        self._listener.lock_changed(queue, held)

    async def _lock(
        self, queues: list[MessageQueue], *, by_force: bool = False
    ) -> frozenset[MessageQueue]:
        body = LockBatchRequestBody(
            consumer_group=self._group, client_id=self._context.client_id, mq_set=queues
        )
        address = await self._keeper(queues)
        try:
            # Connecting sends a heartbeat: a restarted broker must know the member before it grants
            # it locks.
            await self._context.heartbeats.connect(address, LOCK_TIMEOUT)
        except RemotingError as error:
            raise unavailable(error, address, queue=queues[0], group=self._group) from error
        answer = await self._context.remote.call(
            address,
            RequestCode.LOCK_BATCH_MQ,
            body=encode(body),
            extra=((TAKE_LOCKS, "true"),) if by_force else (),
            timeout=LOCK_TIMEOUT,
            queue=queues[0],
            group=self._group,
        )
        try:
            return frozenset(decode(LockBatchResponseBody, answer.body).lock_ok_mq_set)
        except BodyError as error:
            raise remote_error(
                ResponseCode.SYSTEM_ERROR,
                str(error),
                "the answer to LOCK_BATCH_MQ",
                queue=queues[0],
                group=self._group,
            ) from error

    async def _unlock(self, queues: list[MessageQueue]) -> None:
        body = LockBatchRequestBody(
            consumer_group=self._group, client_id=self._context.client_id, mq_set=queues
        )

        async def unlock() -> None:
            await self._context.remote.call(
                await self._keeper(queues),
                RequestCode.UNLOCK_BATCH_MQ,
                body=encode(body),
                timeout=LOCK_TIMEOUT,
                group=self._group,
            )

        try:
            await try_for(UNLOCK_TIMEOUT, unlock)
        except PocketMQError as error:
            _log.warning(
                "queue not unlocked, its next owner waits up to a minute",
                group=self._group,
                queues=", ".join(map(str, queues)),
                error=str(error),
            )

    async def _keeper(self, queues: list[MessageQueue]) -> str:
        """Return who locks the queues, from the first of their topics with a route."""
        failure: PocketMQError | None = None
        for queue in {queue.topic: queue for queue in queues}.values():
            try:
                route = await self._context.routes.to_read(queue.topic)
            except PocketMQError as error:
                failure = failure or error
                continue
            address = route.master(queue.broker_name)
            if address is None and self._at_slaves:
                address = route.address(queue.broker_name)
            if address is not None:
                return address
        raise failure or NoRoute(
            "the queue's broker has no master to hold its lock",
            queue=queues[0],
            broker=queues[0].broker_name,
            hint="check that it runs and registers at the name server",
        )
