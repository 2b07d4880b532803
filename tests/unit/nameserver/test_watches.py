"""Which connections are notified about which topic."""

from __future__ import annotations

import pytest

from nameserver.routes import LimitError, Watches


def test_only_subscribers_of_a_topic_are_notified() -> None:
    watches = Watches[str]()
    watches.set("c1", ["a", "b"])
    watches.set("c2", ["b"])
    assert set(watches.concerned(["b", "x"])) == {("c1", "b"), ("c2", "b")}
    assert len(watches) == 3


def test_a_later_subscription_replaces_the_former() -> None:
    watches = Watches[str]()
    watches.set("c", ["a"])
    watches.set("c", ["b", "b"])
    assert list(watches.concerned(["a", "b"])) == [("c", "b")]
    watches.set("c", [])
    assert len(watches) == 0


def test_a_closed_connection_is_not_notified() -> None:
    watches = Watches[str]()
    watches.set("c", ["a"])
    watches.forget("c")
    watches.forget("c")
    assert not list(watches.concerned(["a"]))


def test_subscriptions_are_bounded_and_a_refused_one_changes_nothing() -> None:
    watches = Watches[str](max_topics=2, max_watches=3)
    watches.set("c1", ["a", "b"])
    with pytest.raises(LimitError, match="3 topics are more than the 2"):
        watches.set("c1", ["a", "b", "c"])
    with pytest.raises(LimitError, match="3 topics are watched already"):
        watches.set("c2", ["a", "b"])
    assert list(watches.concerned(["a"])) == [("c1", "a")]
    watches.set("c1", ["c", "d"])
    watches.set("c2", ["a"])
    assert len(watches) == 3


def test_names_that_no_topic_has_are_not_kept():
    watches = Watches[str]()
    watches.set("c", ["a", "x" * 256])
    assert len(watches) == 1
