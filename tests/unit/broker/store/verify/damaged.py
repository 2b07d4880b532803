"""Stores to be damaged, and the results of their check."""

from __future__ import annotations

import shutil
from pathlib import Path

from broker.storetools.verify.check import CheckOptions, Report, check
from broker.storetools.verify.findings import Severity
from broker.storetools.verify.repair import Repair, repair

FoundDamage = tuple[str, str, str, int | None]
"""Severity, kind, path below the store, position."""


def damage_in(report: Report, root: Path) -> list[FoundDamage]:
    """Return what was found, except notes."""
    return sorted(
        (str(one.severity), one.kind, str(Path(one.path).relative_to(root)), one.place)
        for one in report.findings.shown
        if one.severity is not Severity.NOTE
    )


def both(root: Path) -> Report:
    """Check with and without the compiled core; both have to find the same."""
    fast, plain = (check(root, CheckOptions(plain=plain)) for plain in (False, True))
    assert sorted(map(str, fast.findings.shown)) == sorted(map(str, plain.findings.shown))
    assert fast[1:9] == plain[1:9]
    return fast


def run_repair(root: Path, *, plain: bool = False) -> Repair:
    """Repair a store."""
    return repair(root, CheckOptions(plain=plain), lambda _: None)


def flip(path: Path, at: int, bit: int = 1) -> None:
    """Change one bit of a byte."""
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes((byte ^ bit,)))


def fresh(source: Path, target: Path) -> Path:
    """Replace ``target`` by a new copy of ``source``."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


def files_of(root: Path) -> dict[str, bytes]:
    """Return the contents of every file that a repair didn't leave."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "pocketmq-repair" not in str(path)
    }
