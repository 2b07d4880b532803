"""Which half messages are open, beside a set; what op messages contain."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.delivery.half_messages import HalfMessages, op_message, op_offsets

Step = tuple[str, int]
steps = st.lists(st.tuples(st.sampled_from(["end", "move", "advance"]), st.integers(0, 40)))


@given(begin=st.integers(0, 5), steps=steps)
def test_it_is_a_set_of_open_offsets(begin: int, steps: list[Step]) -> None:
    half = HalfMessages(begin, 0, max_moved=1000)
    end = begin + 20
    model = set(range(begin, end))
    now = {offset: offset for offset in model}
    ops: list[int] = []
    for kind, number in steps:
        offset = begin + number % (end - begin)
        if kind == "advance":
            before = half.op_begin
            half.advance(begin)
            assert half.begin == min(model, default=end) or half.begin not in model
            # No op message is passed of a half message that is not.
            assert all(of < half.begin for of in ops[before : half.op_begin])
        elif offset in model and kind == "end":
            half.op_stored((offset,))
            ops.append(offset)
            model.discard(offset)
        elif offset in model:
            half.moved(offset, end)
            half.op_stored((offset,))
            ops.append(offset)
            model.discard(offset)
            model.add(end)
            now = {old: end if to == offset else to for old, to in now.items()} | {end: end}
            end += 1
        assert half.count_open(end) == len(model)
        assert {one for one in range(end) if half.is_open(one)} == model
        for one in range(begin, end):
            assert half.next_open(one) == min((n for n in model if n >= one), default=end)
        for old, to in now.items():
            assert half.open_offset(old) == (to if to in model else None)


def test_former_offsets_are_forgotten_by_the_half_message() -> None:
    half = HalfMessages(0, 0, max_moved=2)
    for before, now in ((0, 10), (10, 11), (1, 12)):
        half.moved(before, now)
        half.op_stored((before,))
    assert [half.open_offset(old) for old in (0, 10, 1)] == [None, None, 12]
    assert half.is_open(11), "its producer is asked once more"


def test_what_retention_has_taken_is_passed() -> None:
    half = HalfMessages(0, 0, max_moved=2)
    half.op_stored((7,))
    assert half.advance(5)
    assert (half.begin, half.op_begin, half.count_open(10)) == (5, 0, 4)


@given(st.integers(0, 2**63 - 1))
def test_an_op_message_is_read_back(offset: int) -> None:
    assert op_offsets(op_message(offset, 1).body) == ([offset] if offset < 10**18 else [])


@given(st.binary(max_size=50))
def test_any_body_is_read(body: bytes) -> None:
    assert all(0 <= offset < 10**18 for offset in op_offsets(body))


def test_several_offsets_of_5_x() -> None:
    assert op_offsets(b"3,1,x,,-2,007") == [3, 1, 7]
