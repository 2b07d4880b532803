"""Queues and their order."""

from __future__ import annotations

from remoting.protocol.queue import MessageQueue


def test_queues_sort_by_topic_then_broker_then_number() -> None:
    queues = [
        MessageQueue("a", "b", 10),
        MessageQueue("a", "a", 2),
        MessageQueue("b", "a", 0),
        MessageQueue("a", "b", 9),
    ]
    assert [str(queue) for queue in sorted(queues)] == ["a/a/2", "a/b/9", "a/b/10", "b/a/0"]


def test_equal_queues_are_one_key() -> None:
    assert len({MessageQueue("a", "b", 1), MessageQueue("a", "b", 1)}) == 1
