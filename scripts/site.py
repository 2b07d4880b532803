"""MkDocs hooks: the README as the first page, and links to the source.

Pages link to files of the repository by relative paths, which work on GitHub. The site has only the
pages, so a link to a file outside ``docs/`` becomes a link to the repository.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

HOME = Path(__file__).resolve().parents[1]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Make the README the site's first page."""
    text = re.sub(r"\]\(docs/", "](", (HOME / "README.md").read_text())
    text = re.sub(r"\]\((?!https?:|#|[\w-]+\.(?:md|svg)(?:#|\)))", "](../", text)
    text = text.replace("](CONTRIBUTING.md)", "](../CONTRIBUTING.md)")
    text = text.replace("](CHANGELOG.md)", "](../CHANGELOG.md)")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, *, config: MkDocsConfig, **_: object) -> str:
    """Turn links to files outside the site into links to the repository."""
    return re.sub(r"\]\(\.\./(?=[\w.])", f"]({config.repo_url}/blob/main/", markdown)
