"""The judge of histories finds every violation, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.chaos.history import Event, Recorder, Sent, decisions, events
from tests.chaos.history_check import LATE_NS, MS, Judge, Verdict


class History:
    """Events, each one millisecond after the last."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.now = 0

    def add(self, kind: str, *, who: str = "one", ms: int = 1, **fields: int | str) -> History:
        self.now += ms * MS
        self.events.append(Event(self.now, who, kind, **fields))  # type: ignore[arg-type]
        return self

    def send(self, number: int, sent: Sent = Sent(), offset: int = -1, ms: int = 1) -> History:  # noqa: B008
        """An acknowledged send; messages that are not visible at once have no place."""
        self.add("send", number=number, detail=str(sent), ms=ms)
        queue = 0 if offset >= 0 else -1
        return self.add("stored", number=number, queue=queue, offset=offset)

    def read(self, *numbers: int, who: str = "last", first: int = 0, ms: int = 1) -> History:
        for offset, number in enumerate(numbers, first):
            self.add("read", who=who, number=number, queue=0, offset=offset, ms=ms)
        return self

    def judged(self, commits_lag: float = 0.0) -> Verdict:
        return Judge(commits_lag=commits_lag).judge(self.events)

    def problems(self, commits_lag: float = 0.0) -> list[str]:
        """The first word or two of each problem."""
        return [text.partition(":")[0] for text in self.judged(commits_lag).problems]


def sent(*numbers: int, key: str = "") -> History:
    """A history of messages that were acknowledged, at offsets from 0 on."""
    history = History()
    for offset, number in enumerate(numbers):
        history.send(number, Sent(key), offset)
    return history


def test_a_history_without_violations_passes() -> None:
    history = sent(7, 8, 9, key="k").read(7, 8, 9, who="early").read(7, 8, 9)
    assert history.problems() == []


def test_a_lost_message_is_found() -> None:
    assert sent(7, 8, 9).read(7, 8).problems() == ["lost"]


def test_only_the_last_reader_decides_what_is_lost() -> None:
    assert sent(7).read(7, who="early").problems() == ["lost"]


@pytest.mark.parametrize("outcome", [(), ("unknown",)])
def test_a_message_whose_send_is_unknown_may_be_there_or_not(outcome: tuple[str, ...]) -> None:
    history = History().add("send", number=7, detail=str(Sent()))
    for kind in outcome:
        history.add(kind, number=7)
    assert history.problems() == []
    assert history.read(7).problems() == []


def test_a_message_that_nobody_sent_is_found() -> None:
    assert sent(7).read(7, 8).problems() == ["never sent"]


def test_a_message_whose_send_failed_is_found() -> None:
    history = History().add("send", number=7, detail=str(Sent())).add("failed", number=7)
    assert history.problems() == []
    assert history.read(7).problems() == ["never sent"]


def test_a_message_that_is_read_twice_is_counted() -> None:
    verdict = sent(7, 8).read(7, 8, 7).judged()
    assert verdict.problems == []
    assert verdict.counts["copies"] == 1


# --- places


def test_two_readers_that_see_different_messages_at_a_place_are_found() -> None:
    history = sent(7, 8).read(7, 8)
    assert history.read(8, 7, who="slave").problems() == ["two bodies", "two bodies"]


def test_a_message_at_another_place_than_acknowledged_is_found() -> None:
    assert sent(7).send(8, Sent(), 1).read(8, 7).problems() == ["two bodies", "two bodies"]


def test_what_nobody_acknowledged_may_vanish_in_a_crash() -> None:
    history = sent(7).add("send", number=8, detail=str(Sent())).read(7, 8, who="early")
    history.add("crash").send(9, Sent(), 1, ms=LATE_NS // MS).read(9, who="early", first=1)
    verdict = history.read(7, 9).judged()
    assert verdict.problems == []
    assert verdict.counts["vanished"] == 1


def test_what_was_acknowledged_may_not_vanish_in_a_crash() -> None:
    history = sent(7, 8).read(7, 8, who="early").add("crash")
    history.send(9, Sent(), 1, ms=LATE_NS // MS)
    assert history.read(7, 9).problems() == ["lost", "two bodies"]


def test_what_was_read_long_after_the_crash_may_not_vanish() -> None:
    history = sent(7).add("send", number=8, detail=str(Sent())).add("crash")
    history.read(7, 8, who="early", ms=LATE_NS // MS)
    assert "two bodies" in history.send(9, Sent(), 1).read(7, 9).problems()


def test_a_reader_may_go_back_after_a_crash_only() -> None:
    history = sent(7, 8).read(7, 8, who="early")
    assert history.read(8, who="early", first=1).read(7, 8).problems() == ["out of turn"]
    history = sent(7, 8).read(7, 8, who="early").add("crash")
    assert history.read(8, who="early", first=1).read(7, 8).problems() == []


def test_a_reader_that_skips_is_found_also_after_a_crash() -> None:
    history = sent(7, 8, 9).read(7, who="early").add("crash").read(9, who="early", first=2)
    assert history.read(7, 8, 9).problems() == ["out of turn"]


# --- keys


def test_a_reordered_pair_of_a_key_is_found() -> None:
    history = History().send(7, Sent("k"), 1).send(8, Sent("k"), 0)
    # The acknowledgements, and the reader.
    assert history.read(8, 7).problems() == ["order", "order"]


def test_the_order_between_keys_is_free() -> None:
    assert History().send(7, Sent("a"), 1).send(8, Sent("b"), 0).read(8, 7).problems() == []


def test_a_reader_of_a_key_may_get_copies_later_but_not_a_first_one() -> None:
    history = sent(7, 8, key="k").read(7, 8, 7)
    assert history.problems() == []
    history = History()
    for number in (7, 8):
        history.add("send", number=number, detail=str(Sent("k"))).add("stored", number=number)
    assert history.read(8, 7).problems() == ["order"]


def test_a_message_of_a_key_with_an_unknown_outcome_may_come_later() -> None:
    history = History().add("send", number=7, detail=str(Sent("k"))).send(8, Sent("k"), 0)
    assert history.read(8, 7).problems() == []


def test_a_key_in_two_queues_is_found() -> None:
    history = sent(7, key="k").add("send", number=8, detail=str(Sent("k")))
    history.add("stored", number=8, queue=1, offset=0).read(7)
    history.add("read", who="last", number=8, queue=1, offset=0)
    assert history.problems() == ["order"]


# --- transactions


def half(decision: str) -> History:
    history = History().send(7, Sent(half=True))
    return history.add("decided", number=7, detail=decision) if decision else history


def test_a_committed_message_that_is_lost_is_found() -> None:
    assert half("commit").problems() == ["lost"]
    assert half("commit").read(7).problems() == []


def test_a_rolled_back_message_that_is_read_is_found() -> None:
    assert half("rollback").read(7).problems() == ["rolled back"]
    assert half("rollback").problems() == []


def test_a_transaction_that_nobody_decided_may_end_either_way() -> None:
    assert half("").problems() == half("").read(7).problems() == []


# --- delays


@pytest.mark.parametrize(("read_after_ms", "problems"), [(1990, ["too early"]), (2000, [])])
def test_a_delayed_message_that_is_early_is_found(read_after_ms: int, problems: list[str]) -> None:
    history = History().send(7, Sent(delay_ms=2000))
    assert history.read(7, ms=read_after_ms - 1).problems() == problems


def step(history: History, ahead_ms: int) -> History:
    return history.add("clock", detail=str(ahead_ms * MS)).add("clock set")


def test_delays_are_by_the_brokers_clock() -> None:
    history = step(History().send(7, Sent(delay_ms=2000)), 1000)
    assert history.read(7, ms=1100).problems() == []
    history = step(History(), 1000).send(7, Sent(delay_ms=2000))
    assert history.read(7, ms=1100).problems() == ["too early"]
    # Delivered before the clock was set back, and recorded afterwards.
    history = step(step(History(), 1000).send(7, Sent(delay_ms=2000)), 0)
    assert history.read(7, ms=2100).problems() == []
    # Set back while it waits, it may be delivered at once.
    history = step(History().send(7, Sent(delay_ms=9000)), -1000)
    assert history.read(7, ms=100).problems() == []
    # The next one may not.
    history = step(History(), -1000).send(7, Sent(delay_ms=9000))
    assert history.read(7, ms=100).problems() == ["too early"]


# --- committed offsets


def committed(*events_after: tuple[str, int, int]) -> History:
    """Group g commits offset 5 of queue 0; then follow kinds, offsets and pauses in ms."""
    history = History().add("committed", queue=0, offset=5, detail="g")
    for kind, offset, ms in events_after:
        history.add(kind, queue=0, offset=offset, detail="g", ms=ms)
    return history


def test_a_committed_offset_that_went_back_is_found() -> None:
    assert committed(("found", 4, 1)).problems() == ["went back"]
    assert committed(("found", -1, 1)).problems() == ["went back"]
    assert committed(("found", 5, 1), ("found", 9, 1)).problems() == []


def test_a_reset_may_take_it_back() -> None:
    assert committed(("reset", -1, 1), ("found", 2, 1)).problems() == []


def test_a_crash_may_take_the_last_commits_only() -> None:
    lost = committed(("crash", -1, 900), ("found", -1, 1))
    assert lost.problems() == ["went back"]
    assert lost.problems(commits_lag=1.0) == []
    older = committed(("committed", 7, 500), ("crash", -1, 600), ("found", 5, 1))
    assert older.problems() == ["went back"]
    assert older.problems(commits_lag=1.0) == []
    assert committed(("crash", -1, 1100), ("found", 4, 1)).problems(1.0) == ["went back"]


# --- the files


def test_events_survive_their_recorder_and_come_back_in_the_order_of_their_times(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "history"
    one, other = Recorder(folder, "one"), Recorder(folder, "other")
    one.write("send", 7, detail=Sent("k", half=True, delay_ms=5))
    other.write("read", 7, 2, 3)
    one.write("decided", 7, detail="commit")
    with (folder / "other").open("ab") as file:
        file.write(b"99\tread\t7")  # the line that a kill cut off
    one.close()
    other.close()
    found = list(events(folder))
    assert [(e.who, e.kind, e.number, e.queue, e.offset) for e in found] == [
        ("one", "send", 7, -1, -1),
        ("other", "read", 7, 2, 3),
        ("one", "decided", 7, -1, -1),
    ]
    assert Sent.parse(found[0].detail) == Sent("k", half=True, delay_ms=5)
    assert decisions(found) == {7: "commit"}


def test_an_unknown_kind_of_event_is_an_error() -> None:
    with pytest.raises(ValueError, match="no events 'dance'"):
        judge_of([Event(1, "one", "dance")])


def judge_of(history: Iterable[Event]) -> Verdict:
    return Judge().judge(history)
