"""What a release needs: one version everywhere, its notes, and actions that can't be replaced."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.tour import HOME

CHART = Path("deploy/helm/pocketmq/Chart.yaml")
WORKFLOWS = sorted((HOME / ".github" / "workflows").glob("*.yml"))
CHANGES = """\
# Changelog

## Unreleased

### Added

- Later.

## 1.2.0 - 2027-01-31

### Added

- **Tea**: it is served.

## 1.1.0 - 2026-12-31

- Coffee.
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project whose version is 1.2.0."""
    for file in (Path("scripts/release.py"), CHART):
        (tmp_path / file).parent.mkdir(parents=True)
        shutil.copy(HOME / file, tmp_path / file)
    chart = (tmp_path / CHART).read_text()
    (tmp_path / CHART).write_text(re.sub("(?m)^(version|appVersion): .*$", r"\1: 1.2.0", chart))
    (tmp_path / "pyproject.toml").write_text('[project]\nversion = "1.2.0"\n')
    (tmp_path / "CHANGELOG.md").write_text(CHANGES)
    return tmp_path


def release(project: Path, tag: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, str(project / "scripts" / "release.py"), tag]
    return subprocess.run(script, capture_output=True, text=True, check=False)


def test_the_notes_of_a_release_are_its_section_of_the_changelog(project: Path) -> None:
    done = release(project, "v1.2.0")
    assert (done.returncode, done.stdout) == (0, "### Added\n\n- **Tea**: it is served.\n")


def test_a_tag_that_the_project_or_the_chart_or_the_changelog_lacks_is_not_released(
    project: Path,
) -> None:
    done = release(project, "v1.3.0")
    assert done.returncode == 1
    for part in ("pyproject.toml", "version in Chart.yaml", "appVersion in Chart.yaml"):
        assert f"{part} says '1.2.0'" in done.stderr
    assert "CHANGELOG.md has no section ## 1.3.0" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_to_a_commit_and_names_its_version(workflow: Path) -> None:
    used = re.findall(r"uses: +(.+)", workflow.read_text())
    assert used
    for action in used:
        assert re.fullmatch(r"[\w.-]+/[\w.-]+@[0-9a-f]{40} # v[0-9.]+", action), action
