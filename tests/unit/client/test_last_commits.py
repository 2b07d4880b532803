"""What a queue's last commit waits for: commits in flight, and a broker that is down."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from client import serde
from client.consumer.assigned_queue import AssignedQueue, AssignedQueues
from client.consumer.fetcher import Fetcher
from client.consumer.offset_store import OffsetCommits, commit_last
from client.consumer.options import PushOptions
from client.consumer.process_queue import ProcessQueue
from client.errors import Unavailable
from client.events import Start
from client.limits import CARRIED_COMMIT, FIRST_COMMIT_TRIES, LAST_COMMIT_TIMEOUT
from client.offsets import Offsets
from remoting.protocol.codes import RequestCode, ResponseCode
from remoting.protocol.queue import MessageQueue
from remoting.runtime.tasks import Supervisor
from tests.support.virtual_time import virtual
from tests.unit.client.consuming import ALL, QUEUE, Alone, Shelf


class Away(Shelf):
    """A broker that refuses commits until a time of the loop's clock."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.until = asyncio.get_running_loop().time() + seconds

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        if asyncio.get_running_loop().time() < self.until:
            raise Unavailable("it restarts", queue=queue)
        await super().commit(queue, offset)


class Slow(Shelf):
    """A broker that may store the newer of two commits first."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses = [0.5, 0.1]

    async def commit(self, queue: MessageQueue, offset: int) -> None:
        await asyncio.sleep(self.pauses.pop(0))
        await super().commit(queue, offset)


class Pulls:
    """An instance whose pulls the test answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        route = SimpleNamespace(address=lambda *_: "a:10911")
        self.heartbeats = self
        self.closed = False
        self.routes = SimpleNamespace(to_read=self._route)
        self.remote = SimpleNamespace(request=lambda _, header: header)
        self._found = route

    async def _route(self, _: str) -> Any:
        return self._found

    def connected(self, _: str) -> Any:
        return self

    async def request(self, *_: Any, timeout: float) -> Any:
        self.asked.set()
        return await self.answer


def fetcher(pulls: Any, *, commit: int | None) -> Fetcher[bytes, ProcessQueue[Any]]:
    sink: ProcessQueue[Any] = ProcessQueue(QUEUE, max_messages=100, max_bytes=10_000)
    sink.start(7)
    pulls.offset_to_commit = lambda: commit
    return Fetcher(pulls, "g", sink, ALL, PushOptions(), serde.raw, pulls)


def assigned(tasks: Supervisor, store: Shelf, start: Start) -> AssignedQueue[bytes]:
    """A queue that is read, but of which no pull is answered."""
    alone: Any = Alone([])
    queues: AssignedQueues[bytes] = AssignedQueues(
        alone, alone, PushOptions(), serde.raw, tasks, store, lambda _: None
    )
    queues.serve(lambda: None)
    return queues.gain(QUEUE, start)


@virtual
async def test_a_broker_that_is_down_briefly_gets_the_last_commit() -> None:
    store = Away(LAST_COMMIT_TIMEOUT / 2)
    await commit_last(store, QUEUE, 5)
    assert store.offsets == {QUEUE: 5}


@virtual
async def test_a_broker_that_stays_away_is_given_up() -> None:
    began = asyncio.get_running_loop().time()
    with pytest.raises(Unavailable, match="it restarts"):
        await commit_last(Away(3600), QUEUE, 5)
    assert asyncio.get_running_loop().time() - began <= LAST_COMMIT_TIMEOUT


@virtual
async def test_commits_of_a_queue_are_made_one_after_the_other() -> None:
    tasks, store = Supervisor("test"), Slow()
    held = assigned(tasks, store, Start(0, "stored", ""))
    held.process_queue.put((), 0, 10)
    older = asyncio.create_task(held.commit())
    await asyncio.sleep(0)
    held.process_queue.put((), 0, 20)
    await held.commit_last()
    await older
    assert store.offsets == {QUEUE: 20}
    await tasks.close()


@virtual
async def test_a_commit_that_waits_for_the_last_one_passes_no_message_that_is_not_done() -> None:
    tasks, store = Supervisor("test"), Slow()
    held = assigned(tasks, store, Start(0, "stored", ""))
    held.process_queue.put([SimpleNamespace(offset=5)], 10, 6)
    held.process_queue.take(1)

    async def lose() -> None:
        await held.commit_last()
        held.revoke()

    losing = asyncio.create_task(lose())
    await asyncio.sleep(0)
    await held.commit()
    await losing
    assert store.offsets == {QUEUE: 5}
    await tasks.close()


@virtual
async def test_the_last_commit_does_not_overtake_one_that_a_pull_carries() -> None:
    pulls = Pulls()
    reading = fetcher(pulls, commit=7)
    running = asyncio.create_task(reading.run())
    await pulls.asked.wait()
    asked = asyncio.get_running_loop().time()
    assert reading.commit_in_flight
    await reading.wait_for_commit()
    assert asyncio.get_running_loop().time() - asked == pytest.approx(CARRIED_COMMIT)
    assert not reading.commit_in_flight
    assert reading.has_committed
    running.cancel()


@virtual
async def test_an_answer_confirms_the_commit_of_its_pull() -> None:
    pulls = Pulls()
    reading = fetcher(pulls, commit=7)
    running = asyncio.create_task(reading.run())
    await pulls.asked.wait()
    asked = asyncio.get_running_loop().time()
    reading.sink.drop()
    waiting = asyncio.create_task(reading.wait_for_commit())
    await asyncio.sleep(0.01)
    pulls.answer.set_exception(Unavailable("enough", queue=QUEUE))
    await waiting
    assert asyncio.get_running_loop().time() - asked == pytest.approx(0.01)
    running.cancel()


@virtual
async def test_a_pull_without_a_commit_is_not_waited_for() -> None:
    pulls = Pulls()
    reading = fetcher(pulls, commit=None)
    running = asyncio.create_task(reading.run())
    await pulls.asked.wait()
    assert not reading.commit_in_flight
    assert not reading.has_committed
    running.cancel()


class Table:
    """A broker's table of offsets, which many threads write.

    Args:
        pauses: seconds that the next commits take.
        forgets: how many commits it answers and forgets.
        none: the answer when it has nothing; None: that it has nothing.
    """

    def __init__(
        self, *, pauses: Sequence[float] = (), forgets: int = 0, none: int | None = None
    ) -> None:
        self.offsets: dict[int, int] = {}
        self.commits = 0
        self.queries = 0
        self.now = 0
        self.most = 0
        self.remote = self
        self.routes = self
        self._pauses = list(pauses)
        self._forgets = forgets
        self._none = none

    async def to_read(self, _: str) -> Any:
        return SimpleNamespace(address=lambda *_: "a:10911")

    async def call(self, _: str, code: int, header: Any, **__: Any) -> Any:
        if code == RequestCode.QUERY_CONSUMER_OFFSET:
            self.queries += 1
            offset = self.offsets.get(header.queue_id, self._none)
            found = SimpleNamespace(offset=offset)
            status = ResponseCode.QUERY_NOT_FOUND if offset is None else ResponseCode.SUCCESS
            return SimpleNamespace(code=status, read=lambda _: found)
        self.commits += 1
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(self._pauses.pop(0) if self._pauses else 0.1)
        self.now -= 1
        if self.commits > self._forgets:
            self.offsets[header.queue_id] = header.commit_offset
        return SimpleNamespace(remark=None)


@virtual
async def test_the_first_commits_of_a_topic_wait_for_each_other() -> None:
    table: Any = Table()
    offsets = Offsets(table)
    queues = [MessageQueue("T", "a", number) for number in range(4)]
    await asyncio.gather(*(offsets.commit(queue, "g", 5) for queue in queues))
    assert table.most == 1
    await asyncio.gather(*(offsets.commit(queue, "g", 6) for queue in queues))
    assert table.most == 4


@virtual
@pytest.mark.parametrize("none", [None, 0])
async def test_a_lost_first_commit_of_a_topic_is_repeated(none: int | None) -> None:
    table: Any = Table(forgets=2, none=none)
    offsets = Offsets(table)
    await offsets.commit(MessageQueue("T", "a", 0), "g", 5)
    assert table.offsets == {0: 5}
    assert table.commits == 3
    await offsets.commit(MessageQueue("T", "a", 1), "g", 5)
    assert (table.commits, table.queries) == (4, 3)


@virtual
async def test_a_first_commit_that_stays_invisible_is_not_repeated_forever() -> None:
    table: Any = Table(none=0)
    await Offsets(table).commit(QUEUE, "g", 0)
    assert table.commits == 1
    table = Table(forgets=1000)
    await Offsets(table).commit(QUEUE, "g", 5)
    assert table.commits == FIRST_COMMIT_TRIES


@virtual
async def test_a_first_commit_that_was_never_seen_is_logged_and_checked_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table: Any = Table(forgets=FIRST_COMMIT_TRIES)
    offsets = Offsets(table)
    await offsets.commit(QUEUE, "g", 5)
    assert "check that the group exists there" in caplog.text
    assert f"queue={QUEUE}" in caplog.text
    assert table.offsets == {}
    await offsets.commit(QUEUE, "g", 6)
    assert (table.offsets, table.queries) == ({QUEUE.queue_id: 6}, FIRST_COMMIT_TRIES + 1)
    await offsets.commit(QUEUE, "g", 7)
    assert table.queries == FIRST_COMMIT_TRIES + 1


@virtual
async def test_finished_commits_leave_no_locks() -> None:
    table: Any = Table()
    offsets = Offsets(table)

    def locks() -> int:
        gc.collect()
        return sum(isinstance(one, asyncio.Lock) for one in gc.get_objects())

    before = locks()
    queues = [MessageQueue(f"T{number % 10}", "a", number) for number in range(100)]
    await asyncio.gather(*(offsets.commit(queue, "g", 5) for queue in queues))
    assert locks() == before


@virtual
async def test_the_first_commits_that_are_remembered_are_limited() -> None:
    table: Any = Table()
    offsets = Offsets(table, max_first_commits=3)
    for number in range(4):
        await offsets.commit(MessageQueue(f"T{number}", "a", 0), "g", 5)
    assert table.queries == 4
    await offsets.commit(MessageQueue("T3", "a", 0), "g", 6)
    assert table.queries == 4
    await offsets.commit(MessageQueue("T0", "a", 0), "g", 6)
    assert (table.queries, table.commits) == (5, 6)


@virtual
async def test_a_queues_commits_are_made_in_their_order() -> None:
    table: Any = Table(pauses=[0.1, 0.5, 0.1])
    offsets = Offsets(table)
    await offsets.commit(QUEUE, "g", 5)
    await asyncio.gather(offsets.commit(QUEUE, "g", 6), offsets.commit(QUEUE, "g", 7))
    assert table.offsets == {QUEUE.queue_id: 7}


@virtual
async def test_the_last_commit_follows_an_automatic_one_in_flight() -> None:
    settled = {QUEUE: 5}
    table: Any = Table(pauses=[0.5, 0.1])
    reader: Any = SimpleNamespace(settled=lambda: dict(settled))
    commits = OffsetCommits(Offsets(table), reader, "g")
    by_time = asyncio.create_task(commits.by_time(1.0))
    await asyncio.sleep(1.2)
    assert table.now == 1
    settled[QUEUE] = 7
    await commits.settled_last()
    await asyncio.sleep(5)
    assert table.offsets == {QUEUE.queue_id: 7}
    assert table.commits == 2
    by_time.cancel()


@virtual
async def test_no_pull_carries_a_queues_first_commit() -> None:
    tasks, store = Supervisor("test"), Shelf()
    held = assigned(tasks, store, Start(0, "end", ""))
    held.process_queue.put((), 0, 10)
    assert held.offset_to_commit() is None
    await held.commit()
    held.process_queue.put((), 0, 20)
    assert held.offset_to_commit() == 20
    await tasks.close()
