"""Small files that are complete whenever the process dies."""

from __future__ import annotations

from pathlib import Path

import pytest

from nameserver.state import StateFileError, load, save
from remoting.protocol.errors import BodyError


def number(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise BodyError("it is no number") from None


def load_number(file: Path) -> int:
    return load(file, number, -1, max_bytes=10)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "new" / "state.json"
    save(file, b"1")
    save(file, b"2")
    assert load_number(file) == 2
    assert sorted(entry.name for entry in file.parent.iterdir()) == [
        "state.json",
        "state.json.bak",
    ]


def test_without_a_file_it_is_empty(tmp_path: Path) -> None:
    assert load_number(tmp_path / "state.json") == -1


@pytest.mark.parametrize("damaged", [None, b"", b" \n", b"x", b"12345678901"])
def test_the_backup_is_taken_for_a_missing_empty_or_damaged_file(
    tmp_path: Path, damaged: bytes | None
) -> None:
    file = tmp_path / "state.json"
    (tmp_path / "state.json.bak").write_bytes(b"7")
    if damaged is not None:
        file.write_bytes(damaged)
    assert load_number(file) == 7


def test_a_damaged_file_without_a_backup_is_a_clear_error(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    file.write_bytes(b"x")
    with pytest.raises(StateFileError, match=r"state\.json: it is no number\. Restore the file"):
        load_number(file)


def test_a_directory_in_place_of_the_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "state.json").mkdir()
    with pytest.raises(StateFileError, match="Is a directory"):
        load_number(tmp_path / "state.json")


def test_a_file_that_cannot_be_written_keeps_its_text(tmp_path: Path) -> None:
    file = tmp_path / "state.json"
    save(file, b"1")
    (tmp_path / "state.json.tmp").mkdir()
    with pytest.raises(StateFileError, match=r"can't write .*: Is a directory; see"):
        save(file, b"2")
    assert load_number(file) == 1
