"""Shared by all tests: the paths of the captured vectors, and the rule for skipped tests.

A test that this machine can't run is skipped with its reason, and the last lines of the run list
the reasons. Under ``CI=true`` a skip fails the run.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support.planted import planted_secrets_stay_hidden, pytest_runtest_makereport
from tests.support.sizes import SIZE, size

__all__ = ["planted_secrets_stay_hidden", "pytest_runtest_makereport"]

GOLDEN = Path(__file__).parent / "golden"
NEEDS = {
    "interop": ("java", "javac", "mvn"),
    "bench": ("cc",),
    "spark": ("java",),
    "monitoring": ("prometheus", "promtool"),
    "browser": ("chromium", "npm"),
    "systemd": ("systemd-analyze",),
}

settings.register_profile(
    "tests", deadline=None, print_blob=True, max_examples=size(test=20, ci=50, soak=2000)
)
settings.load_profile("tests")


@pytest.fixture(scope="session")
def golden() -> Path:
    """The folder of the vectors captured from Apache RocketMQ."""
    return GOLDEN


@pytest.fixture(autouse=True)
def _every_line_is_logged() -> None:
    """Undo the command line's log level: run in this process, it limits our loggers to errors."""
    logging.getLogger("pocketmq").setLevel(logging.NOTSET)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip tests that need a missing program, and put the fast tests first."""
    needs = {
        marker: [program for program in programs if shutil.which(program) is None]
        for marker, programs in NEEDS.items()
    }
    for item in items:
        for marker, lacking in needs.items():
            if lacking and item.get_closest_marker(marker):
                reason = f"{marker} tests need {', '.join(lacking)} on the PATH"
                item.add_marker(pytest.mark.skip(reason=reason))
        if SIZE == "test" and (reason := left_to_ci(item)):
            item.add_marker(pytest.mark.skip(reason=reason))
    order = [
        "unit",
        "integration",
        "scenarios",
        "docs",
        "chaos",
        "fuzz",
        "packaging",
        "interop",
        "spark",
    ]
    rank = {folder: number for number, folder in enumerate(order)}
    items.sort(key=lambda item: rank.get(item.path.relative_to(Path(__file__).parent).parts[0], -1))


def left_to_ci(item: pytest.Item) -> str | None:
    """Return why ``make test``, which has to end in minutes, leaves a test to CI."""
    if item.get_closest_marker("slow"):
        return "they take more than 20 seconds each; .ci/run does"
    if item.get_closest_marker("packaging"):
        return "they install the wheel into new environments; .ci/run does"
    if item.path.name in {"test_signed_there.py", "test_tls_there.py"}:
        return "they start Apache's brokers with access control and TLS; .ci/run does"
    if "5.3.3" in item.name and item.get_closest_marker("interop"):
        return "they repeat with Apache 5.3.3 what others do with 4.9.7; .ci/run runs both"
    return None


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the number of skipped tests by reason."""
    reasons = Counter(str(report.longrepr[2]) for report in _skipped(terminalreporter))
    for reason, count in reasons.items():
        terminalreporter.write_line(f"not run here: {count} tests: {reason}")


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run in CI if a test was skipped."""
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") == "true" and reporter is not None and _skipped(reporter):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _skipped(reporter: pytest.TerminalReporter) -> list[pytest.TestReport]:
    return list(reporter.stats.get("skipped", []))


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, which saves a tenth of the time."""
    gc.collect()
    gc.freeze()
