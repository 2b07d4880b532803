"""Tables at a terminal, tabs in a pipe, JSON on request."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Iterator, Sequence
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pocketmq import output

ROWS: list[output.Row] = [
    {"topic": "a\tb", "queues": 1200, "tags": ["x", "y"]},
    {"topic": None, "queues": 8},
]


def test_a_pipe_gets_one_line_per_row_without_a_header(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_rows(ROWS, ["topic", "queues", "tags"], as_json=False)
    assert capsys.readouterr().out == "a b\t1200\tx,y\n-\t8\t-\n"


def test_what_cannot_be_printed_is_an_escape(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"body": "a\x1b]0;title\x07b \u202etext é ☕"}
    output.show_rows([row], ["body"], as_json=False)
    output.show_facts(row, as_json=False)
    shown = "a\\x1b]0;title\\x07b \\u202etext é ☕"
    assert capsys.readouterr().out == f"{shown}\nbody\t{shown}\n"


def test_json_is_one_document_with_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_rows(ROWS, ["topic"], as_json=True)
    assert json.loads(capsys.readouterr().out) == ROWS
    output.show_facts({"a": 1}, as_json=True)
    output.done("text", {"b": True}, as_json=True)
    assert capsys.readouterr().out == '{"a":1}\n{"b":true}\n'


class Terminal(io.StringIO):
    """Records the output to a terminal."""

    def isatty(self) -> bool:
        return True


@contextlib.contextmanager
def terminal_of(width: int) -> Iterator[tuple[Terminal, Terminal]]:
    """Stdout and stderr at a terminal without colours, so lines are as long as they look."""
    settings = {"COLUMNS": str(width), "TERM": "dumb", "LINES": "24"}
    with (
        mock.patch.dict(os.environ, settings),
        contextlib.redirect_stdout(Terminal()) as out,
        contextlib.redirect_stderr(Terminal()) as err,
    ):
        yield out, err


def test_a_terminal_gets_a_table_with_titles() -> None:
    with contextlib.redirect_stdout(Terminal()) as out:
        output.show_rows(ROWS, ["topic", "queues"], as_json=False)
        output.show_facts({"broker_memory": 1200}, as_json=False)
    shown = out.getvalue()
    assert "queues" in shown
    assert "1,200" in shown
    assert "broker memory" in shown


LETTERS: list[output.Row] = [
    {
        "broker": "broker-a",
        "id": "7F00000100002A139A55000000000001",
        "died_at": "2026-01-31T12:00:00.000+00:00",
        "why": "the account of this order does not exist any more",
        "owner": "192.168.117.201@4711#1234567890",
        "keys": ["o-1", "o-2"],
    }
]


def lines_at(width: int, columns: Sequence[str], spare: Sequence[str] = ()) -> list[str]:
    """Return the lines of the output at a terminal of this width."""
    with terminal_of(width) as (out, _):
        output.show_rows(LETTERS, columns, as_json=False, spare=spare)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_a_terminal_breaks_sentences_and_never_ids_and_times() -> None:
    lines = lines_at(80, ["id", "died_at", "why"])
    assert lines[0].split() == ["id", "died", "at", "why"]
    assert "7F00000100002A139A55000000000001  2026-01-31T12:00:00Z  the account" in lines[1]
    assert len(lines) > 2
    assert max(map(len, lines)) <= 80


def test_a_narrow_terminal_omits_columns_in_a_fixed_order() -> None:
    columns = ["broker", "id", "died_at", "owner", "keys"]
    assert lines_at(120, columns, ["owner", "broker"])[0].split()[0] == "broker"
    titles = lines_at(80, columns, ["owner", "broker"])[0].split()
    assert titles == ["broker", "id", "died", "at", "keys"]


def test_a_very_narrow_terminal_gets_one_line_per_value() -> None:
    lines = lines_at(60, ["id", "died_at", "owner"])
    assert lines == [
        "id: 7F00000100002A139A55000000000001",
        "died at: 2026-01-31T12:00:00Z",
        "owner: 192.168.117.201@4711#1234567890",
    ]


def test_an_omitted_column_is_named() -> None:
    columns, spare = ["id", "died_at", "owner"], ["died_at", "owner"]
    with terminal_of(60) as (_, err):
        output.show_rows(LETTERS, columns, as_json=False, spare=spare)
    result = err.getvalue()
    assert max(map(len, result.splitlines())) <= 60
    assert " ".join(result.split()) == (
        "not shown: died at, owner; a wider terminal or --json shows them"
    )


@given(
    cells=st.lists(
        st.lists(st.text("abc 123-", max_size=40), min_size=3, max_size=3), min_size=1, max_size=4
    ),
    width=st.integers(20, 160),
)
def test_no_line_is_wider_than_the_terminal_and_no_word_is_broken(
    cells: list[list[str]], width: int
) -> None:
    rows = [dict(zip("abc", row, strict=True)) for row in cells]
    with terminal_of(width) as (printed, _):
        output.show_rows(rows, ["a", "b", "c"], as_json=False)
    words = [[word for row in cells for word in row[column].split()] for column in range(3)]
    least = sum(max(map(len, column), default=1) for column in words) + len("    ")
    lines = printed.getvalue().splitlines()
    if least <= width:
        assert max(map(len, lines)) <= width
        assert lines[0].split() == ["a", "b", "c"]
    assert {word for column in words for word in column} <= set(printed.getvalue().split())


@pytest.mark.parametrize(("number", "text"), [(0, "0 queues"), (1, "1 queue"), (2, "2 queues")])
def test_a_noun_agrees_with_its_number(number: int, text: str) -> None:
    assert output.count(number, "queue") == text


def test_facts_in_a_pipe_are_names_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_facts({"a": 1.50, "b": False, "c": "x\ny"}, as_json=False)
    output.done("made it", {}, as_json=False)
    assert capsys.readouterr().out == "a\t1.5\nb\tno\nc\tx y\nmade it\n"


def test_a_bar_is_drawn_at_a_terminal_only(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress("sending", 10) as advance:
        advance(10)
    assert capsys.readouterr().err == ""
    with contextlib.redirect_stderr(Terminal()) as err, output.progress("sending", 10) as advance:
        advance(10)
    assert "10/10" in err.getvalue()
    with contextlib.redirect_stderr(Terminal()) as err:
        with output.progress("sending", 10, shown=False) as advance:
            advance(10)
        assert err.getvalue() == ""
