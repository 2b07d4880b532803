"""Tables at a terminal, tabs in a pipe, JSON when asked for."""

from __future__ import annotations

import json

import pytest

from pocketmq import output

ROWS: list[output.Row] = [
    {"topic": "a\tb", "queues": 1200, "tags": ["x", "y"]},
    {"topic": None, "queues": 8},
]


def test_a_pipe_gets_a_line_a_row_without_a_title(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_rows(ROWS, ["topic", "queues", "tags"], as_json=False)
    assert capsys.readouterr().out == "a b\t1200\tx,y\n-\t8\t-\n"


def test_json_is_one_document_with_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_rows(ROWS, ["topic"], as_json=True)
    assert json.loads(capsys.readouterr().out) == ROWS
    output.show_facts({"a": 1}, as_json=True)
    output.done("text", {"b": True}, as_json=True)
    assert capsys.readouterr().out == '{"a":1}\n{"b":true}\n'


def test_a_terminal_gets_a_table_with_titles(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    output.show_rows(ROWS, ["topic", "queues"], as_json=False)
    output.show_facts({"broker_memory": 1200}, as_json=False)
    shown = capsys.readouterr().out
    assert "queues" in shown
    assert "1,200" in shown
    assert "broker memory" in shown


def test_facts_in_a_pipe_are_names_and_values(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_facts({"a": 1.50, "b": False, "c": "x\ny"}, as_json=False)
    output.done("made it", {}, as_json=False)
    assert capsys.readouterr().out == "a\t1.5\nb\tno\nc\tx y\nmade it\n"


def test_a_bar_is_drawn_at_a_terminal_only(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with output.progress("sending", 10) as bar:
        bar.advance(10)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with output.progress("sending", 10) as bar:
        bar.advance(10)
    assert "10/10" in capsys.readouterr().err
    with output.progress("sending", 10, shown=False) as bar:
        bar.advance(10)
    assert capsys.readouterr().err == ""
