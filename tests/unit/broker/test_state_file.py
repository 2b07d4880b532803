"""State files: one complete version always exists, and damage is reported."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.saved_tables import load_json, save_json
from broker.store.os_files import Files
from broker.store.results import StoreError

FILES = Files()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config" / "consumerOffset.json"


def test_saved_tables_are_loaded(path: Path) -> None:
    assert load_json(path, FILES) == (None, None)
    save_json(path, FILES, b'{"a":1}')
    save_json(path, FILES, b'{"a":2}')
    assert load_json(path, FILES) == ({"a": 2}, None)


@pytest.mark.parametrize("damage", [None, b"", b" \n", b'{"a":', b"\xff\xfe"])
def test_the_backup_is_used_and_copied_whenever_the_main_file_is_damaged(
    path: Path, damage: bytes | None
) -> None:
    save_json(path, FILES, b'{"a":1}')
    for _ in range(2):
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
        value, warning = load_json(path, FILES)
        assert value == {"a": 1}
        assert "its backup consumerOffset.json.bak was taken" in (warning or "")
    assert load_json(path, FILES) == ({"a": 1}, None)


def test_a_file_damaged_before_a_save_does_not_become_the_backup(path: Path) -> None:
    save_json(path, FILES, b'{"a":1}')
    path.write_bytes(b'{"a":')
    save_json(path, FILES, b'{"a":2}')
    path.write_bytes(b'{"a":')
    assert load_json(path, FILES)[0] == {"a": 2}


@pytest.mark.parametrize("damage", [b"", b"nonsense"])
def test_without_a_backup_an_empty_table_is_created_and_logged(path: Path, damage: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(damage)
    value, warning = load_json(path, FILES)
    assert value is None
    assert "has no backup, so an empty one was taken" in (warning or "")


def test_an_empty_backup_counts_as_none(path: Path) -> None:
    path.parent.mkdir()
    path.with_name(path.name + ".bak").touch()
    value, warning = load_json(path, FILES)
    assert value is None
    assert "is missing and has no backup" in (warning or "")


def test_damage_of_both_stops_the_start_with_what_to_do(path: Path) -> None:
    save_json(path, FILES, b"{")
    with pytest.raises(StoreError, match=r"damaged too .*put consumerOffset.json back from a copy"):
        load_json(path, FILES)


def test_a_file_that_cannot_be_read_stops_the_start(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StoreError, match="can't be read"):
        load_json(path, FILES)


def test_a_disk_that_refuses_leaves_the_old_version(path: Path) -> None:
    class Full(Files):
        def replace(self, path: Path, data: bytes, *, backup: bool) -> None:
            raise OSError(28, "No space left on device")

    save_json(path, FILES, b'{"a":1}')
    with pytest.raises(OSError, match="No space"):
        save_json(path, Full(), b'{"a":2}')
    assert load_json(path, FILES)[0] == {"a": 1}
