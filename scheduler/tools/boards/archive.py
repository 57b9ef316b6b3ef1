"""What goes to a board, as lists of files: their names there and here, their size, and a name for the whole by what is in it."""

import gzip
import hashlib
import os
import tarfile
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from predictors.errors import MissingBackendError
from predictors.install import install_line

#: Digits of a digest in a name.
DIGITS = 16

#: Of compression: twice as fast as the usual one, and hardly larger.
_LEVEL = 4


@dataclass(frozen=True)
class BoardArchive:
    """Files that become one folder on a board."""

    name: str  # Of the folder there, with the digest of what decides its content at its end.
    files: Mapping[str, Path]  # By name in that folder.
    compress: bool = True  # Whether that makes them smaller.

    @property
    def bytes(self) -> int:
        """Of all files together."""
        return sum(path.stat().st_size for path in self.files.values())

    def write(self, stream: Any, step: Callable[[int], None] = lambda done: None) -> None:
        """Write them as a tar archive, without owners and times (`step`: told how many bytes of the files are done after each of them)."""
        done, plain = 0, nullcontext(stream)
        packed: Any = gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=_LEVEL, mtime=0) if self.compress else plain
        with packed as target, tarfile.open(fileobj=target, mode="w|") as archive:
            for name in sorted(self.files):
                with self.files[name].open("rb") as content:
                    member = tarfile.TarInfo(name)
                    member.size = os.fstat(content.fileno()).st_size
                    archive.addfile(member, content)
                done += member.size
                step(done)


def below(folder: Path, skipped: Iterable[str] = ()) -> dict[str, Path]:
    """Files of a folder by their name in it."""
    left_out = set(skipped)
    paths = (path for path in folder.rglob("*") if path.is_file() and left_out.isdisjoint(path.relative_to(folder).parts))
    return {path.relative_to(folder).as_posix(): path for path in paths}


def digest_of(parts: Iterable[str]) -> str:
    """Some digits of the SHA-256 of several texts in their order."""
    whole = hashlib.sha256()
    for part in parts:
        whole.update(part.encode() + b"\0")
    return whole.hexdigest()[:DIGITS]


DISTRIBUTION = "nn-stretch"

#: Packages that a board gets: the base install.
PACKAGES = ("predictors", "scheduler", "stretch")

_SKIPPED = ("__pycache__", ".mypy_cache")


def distribution() -> metadata.Distribution:
    """What is known of the installed distribution."""
    try:
        return metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError as error:
        raise MissingBackendError("what nn-stretch needs on a board is known only where it is installed", install_line()) from error


def our_archive() -> BoardArchive:
    """The packages and their metadata, as a folder that Python imports from; named by their content."""
    files: dict[str, Path] = {}
    for package in PACKAGES:
        folder = Path(str(resources.files(package)))
        files |= {f"{package}/{name}": path for name, path in below(folder, _SKIPPED).items()}
    about = distribution()
    for entry in about.files or ():
        # of an editable install, records and links of this machine stay here
        if entry.parent.name.endswith(".dist-info") and entry.name in ("METADATA", "entry_points.txt", "LICENSE"):
            files[entry.as_posix()] = Path(str(about.locate_file(entry)))
    content = (f"{name}:{hashlib.sha256(path.read_bytes()).hexdigest()}" for name, path in sorted(files.items()))
    return BoardArchive(f"nn-stretch/{digest_of(content)}", files)
