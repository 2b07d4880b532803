"""Under any operations, a store behaves like lists of messages."""

from __future__ import annotations

import shutil
import tempfile
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from broker.store.engine import GetStatus, MessageStore, PutStatus
from remoting.protocol.message.tags import tags_code
from remoting.protocol.message.view import iter_records
from tests.support.clock import ManualClock
from tests.support.sizes import size
from tests.unit.broker.store.crashes import forget
from tests.unit.broker.store.stores import message, small_config

QUEUES = st.tuples(st.sampled_from(["A", "B%x"]), st.integers(0, 1))
BODIES = st.integers(0, 3000).map(lambda size: b"%d " % size + b"x" * size)
TAGS = st.sampled_from(["", "red", "blue"])

Message = tuple[bytes, str, int]


class StoreModel(RuleBasedStateMachine):
    """A store of tiny files, compared with lists of body, tag and store time."""

    @initialize(sync=st.booleans())
    def begin(self, sync: bool) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="store-model-"))
        self.number = count()
        self.clock = ManualClock()
        self.sync = sync
        self.queues: dict[tuple[str, int], list[Message]] = {}
        self.visible: dict[tuple[str, int], int] = {}
        self.open_at(self.directory / "first")

    def open_at(self, root: Path) -> None:
        config = small_config(root, flush_disk_type="SYNC_FLUSH" if self.sync else "ASYNC_FLUSH")
        config.max_open_files = 16
        self.store = MessageStore(config, clock=self.clock)
        self.report = self.store.open()
        self.show()

    def show(self) -> None:
        self.visible = {queue: len(messages) for queue, messages in self.queues.items()}

    def stored(self, queue: tuple[str, int], added: list[Message]) -> None:
        self.queues.setdefault(queue, []).extend(added)
        if not self.sync:
            self.show()

    @rule(queue=QUEUES, body=BODIES, tag=TAGS)
    def put(self, queue: tuple[str, int], body: bytes, tag: str) -> None:
        before = len(self.queues.get(queue, []))
        result = self.store.put(message(body, topic=queue[0], queue_id=queue[1], tag=tag))
        assert (result.status, result.queue_offset) == (PutStatus.OK, before)
        self.stored(queue, [(body, tag, result.store_timestamp_ms)])

    @rule(queue=QUEUES, batch=st.lists(st.tuples(BODIES, TAGS), min_size=1, max_size=5))
    def put_batch(self, queue: tuple[str, int], batch: list[tuple[bytes, str]]) -> None:
        before = len(self.queues.get(queue, []))
        result = self.store.put_batch(
            [message(body, topic=queue[0], queue_id=queue[1], tag=tag) for body, tag in batch]
        )
        assert (result.status, result.queue_offset) == (PutStatus.OK, before)
        assert len(result.physical_offsets) == len(batch)
        self.stored(queue, [(body, tag, result.store_timestamp_ms) for body, tag in batch])

    @rule(queue=QUEUES, kind=st.sampled_from([4, 12]))
    def put_half(self, queue: tuple[str, int], kind: int) -> None:
        half = message(b"half", topic=queue[0], queue_id=queue[1], sys_flag=kind)
        assert self.store.put(half).queue_offset == 0

    @rule(milliseconds=st.integers(1, 1000))
    def wait(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1000)

    @rule()
    def flush(self) -> None:
        assert self.store.flush()
        self.show()

    @rule(loses=st.booleans())
    def stop_and_start(self, loses: bool) -> None:
        root = self.store.paths.root
        self.store.close()
        if loses:
            forget(self.store.paths.own_checkpoint, "stop")
        self.open_at(root)
        assert self.report.clean
        # A store without any queue has no directory to stamp.
        assert self.report.quick == (not loses and self.report.queues > 0)
        assert (self.report.cut_bytes, self.report.cut_entries) == (0, 0)

    @rule()
    def kill_and_start(self) -> None:
        root = self.directory / f"killed-{next(self.number)}"
        shutil.copytree(self.store.paths.root, root)
        self.store.close()
        self.open_at(root)
        assert not self.report.clean

    @rule(
        queue=QUEUES,
        offset=st.integers(-1, 60),
        wanted=st.integers(1, 20),
        tag=st.none() | TAGS,
    )
    def get(self, queue: tuple[str, int], offset: int, wanted: int, tag: str | None) -> None:
        messages = self.queues.get(queue, [])[: self.visible.get(queue, 0)]
        codes = None if tag is None else frozenset({tags_code(tag)})
        result = self.store.get(*queue, offset, wanted, codes=codes)
        assert result.max_offset == len(messages)
        if not messages:
            assert result.status is GetStatus.NO_MESSAGE_IN_QUEUE
            return
        if not 0 <= offset < len(messages):
            assert result.count == 0
            assert 0 <= result.next_offset <= len(messages)
            return
        found = [record for run in result.records for record in iter_records(run)]
        asked = messages[offset : result.next_offset]
        chosen = [body for body, of, _ in asked if tag is None or of == tag]
        assert [record.body for record in found] == chosen
        assert len(found) == result.count <= wanted
        assert result.next_offset > offset

    @rule(queue=QUEUES, back=st.integers(-2000, 10_000))
    def search_by_time(self, queue: tuple[str, int], back: int) -> None:
        messages = self.queues.get(queue, [])[: self.visible.get(queue, 0)]
        moment = self.clock.now_ms() - back
        found = self.store.queries.offset_by_time(*queue, moment)
        if not messages:
            assert found == 0
            return
        distances = [abs(time - moment) for _, _, time in messages]
        assert distances[found] == min(distances)

    @invariant()
    def bounds_are_right(self) -> None:
        for queue, shown in self.visible.items():
            assert self.store.queries.max_offset(*queue) == shown
            assert self.store.queries.min_offset(*queue) == 0

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.store.close()
            shutil.rmtree(self.directory)


TestStoreModel = StoreModel.TestCase
TestStoreModel.settings = settings(
    max_examples=size(test=12, ci=25, soak=1000), stateful_step_count=40
)
TestStoreModel = pytest.mark.timeout(120)(TestStoreModel)
