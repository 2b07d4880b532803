"""``make soak``: run every test in its full size, and measure start and memory.

Write ``build/soak.md`` with the commit, the date and the machine, so that the figures can
be traced to the code that was measured. The exit code is that of the tests.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree as ET

ROOT = Path(__file__).parent.parent
EVIDENCE = ROOT / "build" / "soak.md"
SLOWEST = 15
STARTS = ["--only", "start", "--apache", "--rounds", "11"]


def main() -> int:
    """Run everything and write the page."""
    report = ROOT / ".soak.xml"
    begun = time.monotonic()
    tests = subprocess.run(
        # xunit1 has the figures that tests record.
        [sys.executable, "-m", "pytest", "-q", "-ojunit_family=xunit1", f"--junitxml={report}"],
        cwd=ROOT,
        env={**os.environ, "POCKETMQ_TEST_SIZE": "soak"},
        check=False,
    )
    minutes = (time.monotonic() - begun) / 60
    startup = subprocess.run(
        [sys.executable, "-m", "benchmarks.store", *STARTS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    EVIDENCE.parent.mkdir(parents=True, exist_ok=True)
    EVIDENCE.write_text(evidence(report, minutes, startup.stdout + startup.stderr))
    report.unlink()
    return tests.returncode or startup.returncode


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
    figures = "".join(
        f"\n{case.get('name')}: {figure.get('name')}: {figure.get('value')}\n"
        for case in suite.iter("testcase")
        for figure in case.iter("property")
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
{figures}
`python -m benchmarks.store {" ".join(STARTS)}`:

```
{startup.strip()}
```
"""


if __name__ == "__main__":
    sys.exit(main())
