"""MkDocs hooks: the README as a page, and links to the source.

Pages link to files of the repository by relative paths, which work on GitHub. The site has only the
pages, so a link to a file outside ``docs/`` becomes a link to the repository.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

HOME = Path(__file__).resolve().parents[1]


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Make the README a page."""
    text = re.sub(
        r"\]\((?!https?:|#)(docs/)?",
        lambda link: "](" if link[1] else "](../",
        (HOME / "README.md").read_text(),
    )
    files.append(File.generated(config, "about.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, **_: object) -> str:
    """Turn links to files outside the site into links to the repository."""
    folder = posixpath.dirname(page.file.src_uri)

    def outside(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", folder, link[1]))
        inside = path.startswith("docs/")
        return link[0] if inside else f"]({config.repo_url}/blob/main/{path}"

    return re.sub(r"\]\((\.\./[^)#\s]+)", outside, markdown)
