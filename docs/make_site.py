"""Hooks of MkDocs: the repository's pages, where they lie, as a site; `make site` builds it.

Pages keep their places relative to each other, so that their links hold. The order is that of `docs/README.md`. What a
page links to that is no page, a picture or a file, is taken along; a folder becomes its `README.md` where it has one.
"""

import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
#: Pages outside of `docs`: of whom works with it, and of whom works in it.
FIRST, LAST = "README.md", ("CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s#]+)(#[^()\s]*)?\)")
SECTION = re.compile(r"^\*\*(\w+)\*\*")
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the order of pages from the index of the documentation."""
    config.nav = navigation((ROOT / "docs" / "README.md").read_text())
    return config


def navigation(index: str) -> list[Any]:
    """Sections and their pages, as MkDocs wants them.

    Args:
        index: Text of `docs/README.md`: sections in bold, their pages as lists.
    """
    result: list[Any] = [{"Home": FIRST}]
    for line in index.splitlines():
        if section := SECTION.match(line):
            result.append({section[1]: []})
        elif (entry := ENTRY.match(line)) and len(result) > 1:
            [pages] = result[-1].values()
            pages.append({entry[1]: posixpath.normpath(f"docs/{entry[2]}")})
    experiments = ["experiments/README.md", *(page for page in pages_of() if page.startswith("experiments/") and page.count("/") > 1)]
    return [*result, {"Experiments": experiments}, {"Project": ["docs/README.md", "recipes/README.md", *LAST]}]


def pages_of() -> list[str]:
    """Every page of the site, relative to the repository."""
    folders = [path for name in ("docs", "experiments", "recipes") for path in sorted((ROOT / name).rglob("*.md"))]
    return [FIRST, *(path.relative_to(ROOT).as_posix() for path in folders), *LAST]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Give MkDocs the pages where they lie, and what they link to."""
    theme = [file for file in files if not (file.abs_src_path or "").startswith(f"{config.docs_dir}/")]
    names = pages_of()
    others = {name for page in names for name in linked(page, (ROOT / page).read_text()) if not name.endswith(".md")}
    others.update(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "theme").iterdir())
    every = [File.generated(config, name, abs_src_path=str(ROOT / name)) for name in (*names, *sorted(others))]
    return Files([*theme, *every])


def linked(page: str, text: str) -> set[str]:
    """Files of the repository that a page links to.

    Args:
        page: Its path, relative to the repository.
        text: Its text.
    """
    targets = (resolved(page, match[2]) for match in LINK.finditer(text))
    return {target for target in targets if target is not None and (ROOT / target).is_file()}


def resolved(page: str, target: str) -> str | None:
    """A link's target relative to the repository; None where it leads out of it.

    Args:
        page: Path of the page, relative to the repository.
        target: As the page writes it.
    """
    if ":" in target or target.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    return None if path.startswith("..") else path


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to folders lead to what they are about."""
    return with_folders(page.file.src_uri, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name what the theme leaves without a name, for those who hear a page."""
    return output.replace('data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"')


def with_folders(page: str, text: str) -> str:
    """A page whose links to folders lead to their `README.md`, or are words where there is none.

    Args:
        page: Its path, relative to the repository.
        text: Its text.
    """

    def changed(match: re.Match[str]) -> str:
        target = resolved(page, match[2])
        if target is None or not (ROOT / target).is_dir():
            return match[0]
        if (ROOT / target / "README.md").is_file():
            return f"[{match[1]}]({PurePosixPath(match[2]) / 'README.md'}{match[3] or ''})"
        return match[1]

    return LINK.sub(changed, text)
