"""Files of the repository, for tests that read them."""

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("predictors", "scheduler", "stretch")
#: Folders with generated files or installed packages.
SKIPPED = {".git", ".venv", "runs", "dist", "build", "site", "__pycache__", ".hypothesis", ".mypy_cache", "shared"}


def files(suffix: str) -> list[Path]:
    """Every file with this suffix, generated folders left out, relative to the root."""
    paths = []
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in SKIPPED]
        paths += [Path(folder, name).relative_to(ROOT) for name in names if name.endswith(suffix)]
    return sorted(paths)


def copy_packages(folder: Path) -> Path:
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    return folder
