"""A folder that appears whole or not at all."""

import contextlib
import errno
import hashlib
import shutil
import tempfile
from collections.abc import Container, Iterator
from pathlib import Path

import msgspec

from predictors.errors import StretchError
from scheduler.bundle import Bundle
from scheduler.manifest import FileEntry, Manifest

#: What marks a folder as ours to replace.
MANIFEST = "bundle.json"


def check_target(out: Path) -> None:
    """Refuse a target that cannot become a bundle, before any work is done.

    Raises:
        StretchError: If it is a file, a folder that holds something else than
            a bundle, or its parent is not writable.
    """
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise StretchError(f"cannot write the bundle to {out}: it exists and is no folder", "choose another folder with --out")
    try:
        if out.is_dir() and any(out.iterdir()) and not (out / MANIFEST).is_file():
            raise StretchError(f"cannot write the bundle to {out}: the folder holds something else", "choose a new folder with --out")
        out.parent.mkdir(parents=True, exist_ok=True)
        probe = tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent)
        Path(probe).rmdir()
    except OSError as error:
        raise StretchError(f"cannot write the bundle to {out}: {error.strerror}", "choose a writable folder with --out") from error


@contextlib.contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` that takes its place when the block ends well.

    A bundle that is there already is replaced; after an error or an interrupt
    nothing of the new one is left.

    Raises:
        StretchError: If the disk is full or the folder cannot be written.
    """
    check_target(out)
    staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
    try:
        staging.chmod(0o755)
        yield staging
        _swap(staging, out)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
        hint = (
            "free some space or choose another disk with --out; --no-controls halves the bundle"
            if full
            else "choose a writable folder with --out"
        )
        raise StretchError(f"cannot write the bundle to {out}: {error.strerror or error}", hint) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def copy_files(bundle: Bundle, folder: Path, leave: Container[str] = ()) -> dict[str, FileEntry]:
    """Copy a bundle's files into the folder of a new one.

    Args:
        bundle: Where they are.
        folder: Where they go, such as what `staged` gives.
        leave: Names of files that the new bundle does not have, or writes itself.

    Returns:
        Size and hash of each file copied, by name.
    """
    copied = {name: entry for name, entry in bundle.manifest.files.items() if name not in leave}
    for name in copied:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.file(name), folder / name)
    return copied


def file_entry(path: Path) -> FileEntry:
    """Size and hash of a file that was just written."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileEntry(path.stat().st_size, digest)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `bundle.json`."""
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))


def _swap(staging: Path, out: Path) -> None:
    """Put the new folder in the place of the old one; an interrupt leaves one of them there, and nothing else."""
    old = staging.with_name(staging.name + ".old")
    try:
        if out.exists():
            out.rename(old)
        staging.rename(out)
    finally:
        if not out.exists() and old.exists():
            old.rename(out)
        shutil.rmtree(old, ignore_errors=True)
