"""Files of the repository, for the contract tests."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("predictors", "scheduler", "stretch")
SKIPPED = {
    ".git",
    ".venv",
    "runs",
    "dist",
    "build",
    "__pycache__",
    ".mypy_cache",
    ".ruff_cache",
    ".pytest_cache",
    ".hypothesis",
    ".import_linter_cache",
    "shared",
}


def files(*suffixes: str) -> list[Path]:
    """Every file with one of these suffixes, generated folders left out."""
    found = []
    for path in ROOT.rglob("*"):
        inside = path.relative_to(ROOT)
        if path.is_file() and path.suffix in suffixes and SKIPPED.isdisjoint(inside.parts):
            found.append(inside)
    return sorted(found)


def sources() -> list[Path]:
    """Python files of the three packages."""
    return [path for path in files(".py") if path.parts[0] in PACKAGES]
