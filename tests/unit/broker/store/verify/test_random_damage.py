"""Random damage: both checks find the same, and repair fixes it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.storetools.verify.check import CheckOptions, check
from broker.storetools.verify.findings import Severity
from tests.support.archives import unpack
from tests.support.sizes import size
from tests.unit.broker.store.verify.damaged import both, fresh, run_repair

_OFTEN = settings(
    max_examples=size(test=5, ci=25, soak=1500),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
USED = {"consumequeue/OneQueue/0/00000000000000002000": (0, 2000)}
SLOTS = 100
INDEX = "index/20261120221648490"
INDEX_USED = (40 + 4 * SLOTS + 20, 40 + 4 * SLOTS + 20 * 400)


@pytest.fixture
def source(golden: Path, tmp_path: Path) -> Path:
    unpack(golden / "store" / "clean.tar.gz", tmp_path)
    return tmp_path / "store"


def overwrite(path: Path, at: int, data: bytes) -> bool:
    """Overwrite bytes; return whether any changed."""
    content = path.read_bytes()
    data = data[: len(content) - at]
    path.write_bytes(content[:at] + data + content[at + len(data) :])
    return content[at : at + len(data)] != data


@_OFTEN
@given(
    name=st.sampled_from([*USED, INDEX]),
    place=st.floats(0, 1, exclude_max=True),
    data=st.binary(min_size=1, max_size=60) | st.just(bytes(60)),
)
def test_random_damage_of_derived_files_is_found_and_repaired(
    source: Path, name: str, place: float, data: bytes
) -> None:
    root = fresh(source, source.parent / "copy")
    begin, end = USED.get(name, INDEX_USED)
    at = begin + int((end - begin) * place)
    changed = overwrite(root / name, at, data[: end - at])
    found = both(root)
    assert found.findings.is_sound is not changed
    assert found.findings.counts[Severity.DAMAGE] == 0
    repaired = run_repair(root)
    assert repaired.after.findings.is_sound
    assert check(root, CheckOptions()).findings.is_sound


@_OFTEN
@given(
    file=st.integers(0, 3),
    at=st.integers(0, 65_535),
    data=st.binary(min_size=1, max_size=300) | st.integers(1, 9000).map(bytes),
)
def test_both_checks_find_the_same_random_damage_of_the_log(
    source: Path, file: int, at: int, data: bytes
) -> None:
    root = fresh(source, source.parent / "copy")
    path = root / "commitlog" / f"{file * 65_536:020d}"
    overwrite(path, at, data)
    log = path.read_bytes()
    both(root)
    repaired = run_repair(root)
    assert path.read_bytes() == log
    assert repaired.after.findings.counts[Severity.DERIVED] == 0
