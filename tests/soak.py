"""``make soak``: run every test in its full size, and measure start and memory.

Write ``build/soak.md`` with the commit, the date and the machine, so that the figures can
be traced to the code that was measured. The exit code is that of the tests. ``make soak
TESTS=tests/chaos/test_replication_faults.py`` runs these tests alone.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parent.parent
EVIDENCE = ROOT / "build" / "soak.md"
SLOWEST = 15
STARTS = ["--only", "start", "--apache", "--rounds", "11"]


def main() -> int:
    """Run everything, or the tests that the arguments name, and write the page."""
    chosen = sys.argv[1:]
    report = ROOT / ".soak.xml"
    begun = time.monotonic()
    tests = subprocess.run(
        # xunit1 has the figures that tests record.
        [
            *(sys.executable, "-m", "pytest", "-q", *chosen),
            *("-ojunit_family=xunit1", f"--junitxml={report}"),
        ],
        cwd=ROOT,
        env={**os.environ, "POCKETMQ_TEST_SIZE": "soak"},
        check=False,
    )
    minutes = (time.monotonic() - begun) / 60
    code, startup = (0, "") if chosen else measure_starts()
    EVIDENCE.parent.mkdir(parents=True, exist_ok=True)
    EVIDENCE.write_text(evidence(report, minutes, startup))
    report.unlink()
    return tests.returncode or code


def measure_starts() -> tuple[int, str]:
    """Return the exit code of the measurement, and its section of the page."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.store", *STARTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    text = (done.stdout + done.stderr).strip()
    command = " ".join(STARTS)
    return done.returncode, f"\n`python -m benchmarks.store {command}`:\n\n```\n{text}\n```\n"


def figures(suite: ET.Element) -> str:
    """Return the tables of what tests have counted, each over all runs of its test."""
    tests: dict[str, list[ET.Element]] = {}
    for case in suite.iter("testcase"):
        if case.find("properties") is not None:
            tests.setdefault(case.get("name", "").partition("[")[0], []).append(case)
    return "".join(_table(name, cases) for name, cases in tests.items())


def _table(name: str, cases: list[ET.Element]) -> str:
    values: dict[str, list[float]] = {}
    for case in cases:
        for figure in case.iter("property"):
            text = figure.get("value", "")
            value = float(text) if "." in text else int(text)
            values.setdefault(figure.get("name", ""), []).append(value)
    rows = "".join(f"| {each} | {_over_runs(each, values[each]):,} |\n" for each in values)
    seconds = sum(float(case.get("time", "0")) for case in cases)
    return (
        f"\n`{name}`, runs: {len(cases)}, minutes: {seconds / 60:.1f}\n\n"
        f"| counted | |\n|---|---|\n{rows}"
    )


def _over_runs(name: str, values: list[float]) -> float:
    if name.startswith("longest"):
        return max(values)
    return median(values) if name.endswith("per_second") else sum(values)


def evidence(report: Path, minutes: float, startup: str) -> str:
    """Return the page's text."""
    suite = ET.parse(report).getroot().find("testsuite")
    assert suite is not None
    counts = {
        name: int(suite.get(name, "0")) for name in ("tests", "failures", "errors", "skipped")
    }
    cases = sorted(suite.iter("testcase"), key=lambda case: -float(case.get("time", "0")))
    rows = "\n".join(
        f"| {case.get('classname')}::{case.get('name')} | {float(case.get('time', '0')):.1f} |"
        for case in cases[:SLOWEST]
    )
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return f"""# Soak

`make soak` at commit `{commit}`, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, on {platform.system()}
{platform.machine()} with {os.cpu_count()} cores, {platform.python_implementation()}
{platform.python_version()}.

{counts["tests"]} tests in {minutes:.1f} minutes: {counts["failures"]} failed, {counts["errors"]}
errors, {counts["skipped"]} skipped. The longest:

| test | seconds |
|---|---|
{rows}
{figures(suite)}{startup}"""


if __name__ == "__main__":
    sys.exit(main())
