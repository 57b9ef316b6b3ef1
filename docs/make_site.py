"""Hooks of MkDocs: the repository's pages, where they lie, as a site; `make site` builds it.

Pages keep their places relative to each other, so that their links hold. Their order is that of `docs/README.md` and
`experiments/README.md`. Pictures and files that a page links to are copied; a link to a folder becomes one to its `README.md`.
"""

import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
#: Pages outside of `docs`: the first one, and those for contributors.
FIRST, LAST = "README.md", ("CONTRIBUTING.md", "CHANGELOG.md")
LINK = re.compile(r"\[([^\[\]]*)\]\(([^()\s#]+)(#[^()\s]*)?\)")
SECTION = re.compile(r"^\*\*([^*]+)\*\*")
GROUP = re.compile(r"^\*([^*]+)\*$")
ENTRY = re.compile(r"^- \[([^\]]+)\]\(([^)]+)\)")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the order of pages from the indexes of the documentation and of the experiments."""
    experiments = sections("experiments/README.md")
    config.nav = [
        {"Home": FIRST},
        *sections("docs/README.md"),
        {"Experiments": ["experiments/README.md", *experiments]},
        {"Contributing": list(LAST)},
    ]
    return config


def sections(index: str) -> list[Any]:
    """Return the sections of an index page and their pages, in the form that MkDocs needs.

    Args:
        index: Path of the page: sections in bold, groups of a section in italics, and lists of links.
    """
    result: list[Any] = []
    pages: list[Any] = []
    for line in (ROOT / index).read_text().splitlines():
        if section := SECTION.match(line):
            pages = whole = []
            result.append({section[1]: pages})
        elif result and (group := GROUP.match(line)):
            pages = []
            whole.append({group[1]: pages})
        elif result and (entry := ENTRY.match(line)):
            pages.append({entry[1]: posixpath.normpath(posixpath.join(posixpath.dirname(index), entry[2]))})
    return result


def pages_of() -> list[str]:
    """Return every page of the site, relative to the repository."""
    folders = [path for name in ("docs", "experiments", "recipes") for path in sorted((ROOT / name).rglob("*.md"))]
    return [FIRST, *(path.relative_to(ROOT).as_posix() for path in folders), *LAST]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Give MkDocs the pages at their places, and the files that they link to."""
    theme = [file for file in files if not (file.abs_src_path or "").startswith(f"{config.docs_dir}/")]
    names = pages_of()
    others = {name for page in names for name in linked(page, (ROOT / page).read_text()) if not name.endswith(".md")}
    others.update(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs" / "theme").iterdir())
    every = [File.generated(config, name, abs_src_path=str(ROOT / name)) for name in (*names, *sorted(others))]
    return Files([*theme, *every])


def linked(page: str, text: str) -> set[str]:
    """Return the files of the repository that a page links to.

    Args:
        page: Its path, relative to the repository.
        text: Its text.
    """
    targets = (resolved(page, match[2]) for match in LINK.finditer(text))
    return {target for target in targets if target is not None and (ROOT / target).is_file()}


def resolved(page: str, target: str) -> str | None:
    """Return a link's target relative to the repository; None if it leads out of it.

    Args:
        page: Path of the page, relative to the repository.
        target: As the page writes it.
    """
    if ":" in target or target.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    return None if path.startswith("..") else path


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to folders lead to their pages."""
    return with_folders(page.file.src_uri, markdown)


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Label the search dialog, which the theme leaves without a label, for screen readers."""
    return output.replace('data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"')


def with_folders(page: str, text: str) -> str:
    """Return a page whose links to folders lead to their `README.md`, or become plain words without one.

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
