"""Pages of the documentation and the snippets in them."""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.contracts.repository import ROOT, files

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    """One fenced block: its language and its text."""

    language: str
    text: str


def pages() -> list[Path]:
    return files(".md")


def snippets(page: Path) -> list[Snippet]:
    return [Snippet(*match.groups()) for match in FENCE.finditer((ROOT / page).read_text())]
