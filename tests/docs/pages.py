"""Pages of the documentation and the snippets in them."""

import importlib.util
import re
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests.contracts.repository import ROOT, files

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True)
class Snippet:
    """Language and text of one fenced block, and whether it follows another without words between them."""

    language: str
    text: str
    follows: bool


def pages() -> list[Path]:
    return files(".md")


def program(name: str) -> ModuleType:
    """Import a program of the folder `docs` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def snippets(page: Path) -> list[Snippet]:
    text, end, found = (ROOT / page).read_text(), 0, list[Snippet]()
    for match in FENCE.finditer(text):
        found.append(Snippet(*match.groups(), bool(found) and not text[end : match.start()].strip()))
        end = match.end()
    return found
