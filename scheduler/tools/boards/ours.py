"""This nn-stretch, as it is imported here: its packages and its metadata, from a checkout or wherever it is installed."""

import hashlib
from importlib import metadata, resources
from pathlib import Path

from predictors.errors import MissingBackendError
from predictors.install import install_line
from scheduler.tools.boards.archive import BoardArchive, below, digest_of

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
