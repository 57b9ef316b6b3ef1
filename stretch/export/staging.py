"""A folder that appears whole or not at all, and takes the place of nothing but an earlier bundle."""

import contextlib
import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Container, Iterator
from pathlib import Path

import msgspec

from predictors.errors import StretchError
from scheduler.bundle.held import in_use, unused
from scheduler.bundle.load import MANIFEST, Bundle, read_bundle, read_manifest
from scheduler.bundle.manifest import FileEntry, Manifest
from scheduler.bundle.signature import SIGNATURE
from stretch.export.exchange import exchange, place

#: Lies in a folder of ours that is not finished: if nobody uses the folder, its run was killed.
UNFINISHED = ".nn-stretch-unfinished"

#: How often a name that others take and free at the same time is tried.
_TRIES = 100


def check_target(out: Path) -> None:
    """Refuse a target that cannot become a bundle, before any work is done.

    Raises:
        StretchError: If it is a file, a folder that holds anything beside the
            files of a bundle (the first stranger is named), or its parent is not writable.
    """
    out = Path(os.path.abspath(out))
    try:
        _check_replaceable(out)
        out.parent.mkdir(parents=True, exist_ok=True)
        probe = tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent)
        Path(probe).rmdir()
    except OSError as error:
        raise StretchError(f"cannot write the bundle to {out}: {error.strerror}", "choose a writable folder with --out") from error


@contextlib.contextmanager
def staged(out: Path) -> Iterator[Path]:
    """A hidden folder beside `out` that takes its place when the block ends well.

    A bundle that is there already is replaced in one step: a reader finds the
    one or the other. After an error or an interrupt nothing of the new one is
    left; what a killed run left is removed by the next run for the same `out`.
    """
    check_target(out)
    out = Path(os.path.abspath(out))
    sweep(out)
    try:
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        with in_use(staging) as number:
            try:
                (staging / UNFINISHED).touch()
                staging.chmod(0o755)
                yield staging
                (staging / UNFINISHED).unlink()
                _put(staging, out)
            finally:
                # An interrupt may fall before or after the names were traded.
                if staging.exists() and staging.stat().st_ino == number:
                    shutil.rmtree(staging, ignore_errors=True)
                else:
                    with contextlib.suppress(OSError):
                        staging.rmdir()  # an empty folder was replaced
                    _retire(staging)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
        hint = (
            "free some space or choose another disk with --out; --no-controls halves the bundle"
            if full
            else "choose a writable folder with --out"
        )
        raise StretchError(f"cannot write the bundle to {out}: {error.strerror or error}", hint) from error


def copy_files(bundle: Bundle, folder: Path, leave: Container[str] = ()) -> dict[str, FileEntry]:
    """Copy a bundle's files into the folder of a new one."""
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


def stranger(folder: Path, manifest: Manifest) -> str | None:
    """The first entry of a bundle's folder, by name, that is not a file of the bundle; None if there is none."""
    files = {MANIFEST, SIGNATURE, *manifest.files}
    folders = {str(parent) for name in files for parent in Path(name).parents}
    for top, below, names in os.walk(folder):
        for entry in sorted(below + names):
            path = Path(top, entry)
            inner = str(path.relative_to(folder))
            is_folder = path.is_dir() and not path.is_symlink()
            if inner not in (folders if is_folder else files):
                return inner
    return None


def _check_replaceable(out: Path) -> None:
    """Raise StretchError unless the name is free, or that of an empty folder or of a bundle and nothing else."""
    refused = f"cannot write the bundle to {out}"
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise StretchError(f"{refused}: it exists and is no folder", "choose another folder with --out")
    entries = sorted(os.listdir(out)) if out.is_dir() else []
    if not entries:
        return
    if MANIFEST not in entries:
        raise StretchError(f"{refused}: the folder holds something else, `{entries[0]}`", "choose a new folder with --out")
    try:
        manifest = read_bundle(out).manifest
    except StretchError as error:
        raise StretchError(f"{refused}: the folder holds something else: {error.message}", "choose a new folder with --out") from error
    if found := stranger(out, manifest):
        raise StretchError(
            f"{refused}: beside the bundle there, the folder holds `{found}`", "move that elsewhere, or choose a new folder with --out"
        )


def _put(staging: Path, out: Path) -> None:
    """Put the new folder in the place of the old one, which is then called as the new one was."""
    for _ in range(_TRIES):
        # Whoever put something there since the beginning keeps it.
        _check_replaceable(out)
        if not out.exists():
            if place(staging, out):
                return
            continue
        try:
            if exchange(staging, out):
                return
        except FileNotFoundError:
            continue
        return _swap(staging, out)
    raise StretchError(f"cannot write the bundle to {out}: others write there at the same time", "choose another folder with --out")


def _swap(staging: Path, out: Path) -> None:
    """Put the new folder in the place of the old one on a file system that cannot trade names: for an instant there is neither.

    An interrupt leaves one of them there, and nothing else.
    """
    old = staging.with_name(staging.name + ".old")
    try:
        out.rename(old)
        staging.rename(out)
    finally:
        if not out.exists() and old.exists():
            old.rename(out)
        _retire(old)


def sweep(out: Path) -> None:
    """Remove what earlier runs for the same folder left beside it, killed ones and bundles that somebody still read.

    Folders in use and those of others stay.
    """
    out = Path(os.path.abspath(out))
    ours = re.compile(rf"\.{re.escape(out.name)}\.[a-z0-9_]{{8}}(\.old)?")
    for entry in os.scandir(out.parent):
        if ours.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            _retire(Path(entry.path))


def _retire(folder: Path) -> None:
    """Remove a folder that nobody uses, if it is unfinished or a bundle: of a bundle its own files alone."""
    with unused(folder) as free:
        if not free:
            return
        if (folder / UNFINISHED).is_file():
            shutil.rmtree(folder, ignore_errors=True)
            return
        # A folder that is no bundle is not ours to remove.
        with contextlib.suppress(OSError, StretchError):
            _remove_files(folder, read_manifest(folder))


def _remove_files(folder: Path, manifest: Manifest) -> None:
    """Remove a bundle's files, its description last, then the folders that are empty."""
    for top, below, names in os.walk(folder, topdown=False):
        for entry in names:
            path = Path(top, entry)
            if str(path.relative_to(folder)) in manifest.files:
                path.unlink()
        for entry in below:
            with contextlib.suppress(OSError):
                Path(top, entry).rmdir()
    if os.listdir(folder) == [MANIFEST]:
        (folder / MANIFEST).unlink()
        folder.rmdir()
