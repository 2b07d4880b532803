"""Check a release's version, and print its notes: ``python scripts/release.py v1.2.0``.

The tag, the project, the Helm chart and the image that the chart runs have one version, and
CHANGELOG.md has a section with it, ``## 1.2.0 - 2027-01-31``, which is what is printed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]


def problems(version: str, home: Path) -> list[str]:
    """Return what has another version."""
    chart = (home / "deploy" / "helm" / "pocketmq" / "Chart.yaml").read_text()
    found = {
        "pyproject.toml": tomllib.loads((home / "pyproject.toml").read_text())["project"][
            "version"
        ],
        **{
            f"{key} in Chart.yaml": "".join(re.findall(rf"^{key}: (.*)$", chart, re.MULTILINE))
            for key in ("version", "appVersion")
        },
    }
    wrong = [f"{where} says {what!r}" for where, what in found.items() if what != version]
    if not notes(version, home):
        wrong.append(f"CHANGELOG.md has no section ## {version} - YEAR-MONTH-DAY, or an empty one")
    return wrong


def notes(version: str, home: Path) -> str:
    """Return the changelog's section of a version, without its heading; empty if it has none."""
    heading = rf"^## {re.escape(version)} - \d{{4}}-\d\d-\d\d\n"
    [_, *rest] = re.split(heading, (home / "CHANGELOG.md").read_text(), flags=re.MULTILINE)
    return re.split(r"^## ", rest[0], flags=re.MULTILINE)[0].strip() if rest else ""


def main() -> None:
    """Print the notes of the version that the tag in the arguments names."""
    [tag] = sys.argv[1:]
    version = tag.removeprefix("v")
    if wrong := problems(version, HOME):
        sys.exit(f"{tag} can't be released: {'; '.join(wrong)}")
    sys.stdout.write(f"{notes(version, HOME)}\n")


if __name__ == "__main__":
    main()
