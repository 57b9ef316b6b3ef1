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
    """Language and text of one fenced block."""

    language: str
    text: str


def pages() -> list[Path]:
    return files(".md")


def program(name: str) -> ModuleType:
    """Import a program of the folder `docs` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def snippets(page: Path) -> list[Snippet]:
    return [Snippet(*match.groups()) for match in FENCE.finditer((ROOT / page).read_text())]
