"""Atomic writes of a bundle's folder, which only replace an earlier bundle."""

import contextlib
import ctypes
import errno
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Container, Iterator
from pathlib import Path

import msgspec

from predictors import system
from predictors.errors import StretchError, UsageError
from scheduler.bundle.load import MANIFEST, Bundle, bundle_problems, read_bundle, read_manifest
from scheduler.bundle.lock import exclusive_lock, shared_lock
from scheduler.bundle.manifest import FileEntry, Manifest
from scheduler.bundle.signature import SIGNATURE

#: "Exchange the two names" and "fail if the new name is taken", from <linux/fs.h>.
_NOREPLACE, _EXCHANGE = 1, 2

#: "Relative to the current folder", from <fcntl.h>.
_AT_FDCWD = -100

_REPORT = "please report this with the model's name"

#: Errors of kernels and file systems that do not support the flags.
_UNKNOWN = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP)


def exchange(first: Path, second: Path) -> bool:
    """Exchange the names of two folders of one file system atomically; return False if this is not supported."""
    return _renameat2(first, second, _EXCHANGE)


def move_into_place(folder: Path, name: Path) -> bool:
    """Rename a folder to a free name; return False if the name is taken."""
    try:
        if not _renameat2(folder, name, _NOREPLACE):
            # Fails by itself if the name exists, unless as an empty folder.
            folder.rename(name)
    except OSError as error:
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            return False
        raise
    return True


def _renameat2(old: Path, new: Path, flags: int) -> bool:
    """Call renameat2; return False if the flags are not supported."""
    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if system.OPENS_FOLDERS else None
    if function is None:
        return False
    if function(_AT_FDCWD, os.fsencode(old), _AT_FDCWD, os.fsencode(new), ctypes.c_uint(flags)) == 0:
        return True
    code = ctypes.get_errno()
    if code in _UNKNOWN:
        return False
    raise OSError(code, os.strerror(code), str(old), None, str(new))


#: Marker file of an unfinished folder: if no process uses the folder, its run was killed.
UNFINISHED = ".nn-stretch-unfinished"

#: Attempts to take a name that other processes take and free concurrently.
_MAX_TRIES = 100


def check_target(out: Path, source: Bundle | None = None) -> None:
    """Check early that a target can become a bundle, and is not the source bundle."""
    if source is not None and out.resolve() == source.path.resolve():
        raise UsageError(f"the new bundle cannot replace {source.path}, which it is made from", "choose another folder with --out")
    out = Path(os.path.abspath(out))
    try:
        _check_replaceable(out)
        # missing folders are only made together with the bundle, so that an interrupted job leaves none
        probe = tempfile.mkdtemp(prefix=f".{out.name}.", dir=next(folder for folder in out.parents if os.path.lexists(folder)))
        Path(probe).rmdir()
    except OSError as error:
        raise StretchError(f"cannot write the bundle to {out}: {error.strerror}", "choose a writable folder with --out") from error


@contextlib.contextmanager
def stage_folder(out: Path) -> Iterator[Path]:
    """Make a hidden folder next to `out`, and replace `out` by it if the block succeeds.

    An existing bundle is replaced atomically: a reader finds either the
    old or the new bundle. After an error or an interrupt no part of the new bundle is
    left; the next run for the same `out` removes leftovers of a killed run.
    """
    check_target(out)
    out = Path(os.path.abspath(out))
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        sweep(out)
        staging = Path(tempfile.mkdtemp(prefix=f".{out.name}.", dir=out.parent))
        with shared_lock(staging) as number:
            try:
                (staging / UNFINISHED).touch()
                staging.chmod(0o755)
                yield staging
                (staging / UNFINISHED).unlink()
                _put(staging, out)
            finally:
                # An interrupt may come before or after the exchange.
                if staging.exists() and staging.stat().st_ino == number:
                    shutil.rmtree(staging, ignore_errors=True)
                else:
                    with contextlib.suppress(OSError):
                        staging.rmdir()  # an empty folder was replaced
                    _retire(staging)
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
        hint = (
            "free some space or choose another disk with --out; a bundle without controls takes half the space"
            if full
            else "choose a writable folder with --out"
        )
        raise StretchError(f"cannot write the bundle to {out}: {error.strerror or error}", hint) from error


def copy_files(bundle: Bundle, folder: Path, leave: Container[str] = ()) -> dict[str, FileEntry]:
    """Copy a bundle's files into the folder of a new bundle, without those in `leave`; return their entries."""
    copied = {name: entry for name, entry in bundle.manifest.files.items() if name not in leave}
    for name in copied:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(bundle.file(name), folder / name)
    return copied


#: Names of the manifest's fields and checks for files that were compiled or converted from a bundle's subgraphs.
_DERIVED = ("tflite", "aot", "contexts")


def derived_files(manifest: Manifest) -> set[str]:
    """Return the files that were compiled or converted from a bundle's subgraphs."""
    derived = {*manifest.aot.values(), *(file for chip_files in manifest.contexts.values() for file in chip_files.values())}
    return derived | ({manifest.tflite} if manifest.tflite is not None else set())


def without_derived(manifest: Manifest) -> Manifest:
    """Return a manifest without `derived_files`."""
    checks = {name: value for name, value in manifest.checks.items() if name not in _DERIVED}
    return msgspec.structs.replace(manifest, checks=checks, tflite=None, aot={}, contexts={})


def file_entry(path: Path) -> FileEntry:
    """Return the size and hash of a written file."""
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256").hexdigest()
    return FileEntry(path.stat().st_size, digest)


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a bundle."""

    file: str  # Path in the bundle.
    bytes: int  # Size of the file.
    sha256: str  # SHA-256 of its content.


def written_files(manifest: Manifest) -> list[WrittenFile]:
    """Return the files of a bundle for answers."""
    return [WrittenFile(file=name, bytes=entry.bytes, sha256=entry.sha256) for name, entry in manifest.files.items()]


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Write `bundle.json`, and refuse a finished folder that the scheduler would not load."""
    (folder / MANIFEST).write_bytes(msgspec.json.format(msgspec.json.encode(manifest), indent=1))
    for problem in bundle_problems(Bundle(folder, manifest), hashes=False):
        raise StretchError(f"the bundle of `{manifest.model.name}` would not load: {problem.replace(f'{folder}/', '')}", _REPORT)


def stranger(folder: Path, manifest: Manifest) -> str | None:
    """Return the first entry of a bundle's folder that does not belong to the bundle; None without any."""
    files = {MANIFEST, SIGNATURE, *manifest.files}
    folders = {str(parent) for name in files for parent in Path(name).parents}
    for top, subfolders, names in os.walk(folder):
        for entry in sorted(subfolders + names):
            path = Path(top, entry)
            inner = str(path.relative_to(folder))
            is_folder = path.is_dir() and not path.is_symlink()
            if inner not in (folders if is_folder else files):
                return inner
    return None


def _check_replaceable(out: Path) -> None:
    """Refuse a target unless the name is free, an empty folder, or a bundle without other files."""
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
    if unknown_file := stranger(out, manifest):
        raise StretchError(
            f"{refused}: besides the bundle, the folder holds `{unknown_file}`",
            "move that elsewhere, or choose a new folder with --out",
        )


def _put(staging: Path, out: Path) -> None:
    """Move the new folder into place, in exchange with an old one."""
    for _ in range(_MAX_TRIES):
        # check again, so that new files of others are never lost
        _check_replaceable(out)
        if not out.exists():
            if move_into_place(staging, out):
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
    """Replace the old folder on a file system without atomic exchange; for an instant neither exists.

    After an interrupt exactly one of them is in place.
    """
    old = staging.with_name(staging.name + ".old")
    try:
        out.rename(old)
        staging.rename(out)
    finally:
        if not out.exists() and old.exists():
            old.rename(out)
        _retire(old, replaced=True)


def sweep(out: Path) -> None:
    """Remove leftovers of earlier runs for the same folder: unfinished folders, and replaced bundles that were in use.

    Folders in use and folders of other users stay.
    """
    out = Path(os.path.abspath(out))
    pattern = re.compile(rf"\.{re.escape(out.name)}\.[a-z0-9_]{{8}}(\.old)?")
    for entry in os.scandir(out.parent):
        if pattern.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            _retire(Path(entry.path))


def _retire(folder: Path, replaced: bool = False) -> None:
    """Remove an unused folder if it is unfinished or a bundle; only the bundle's own files are removed.

    On systems without folder locks, a folder that was just `replaced` counts as unused, because its readers have its old name.
    """
    with exclusive_lock(folder) as free:
        if not (free or (replaced and not system.OPENS_FOLDERS)):
            return
        if (folder / UNFINISHED).is_file():
            shutil.rmtree(folder, ignore_errors=True)
            return
        # Other folders are not removed.
        with contextlib.suppress(OSError, StretchError):
            _remove_files(folder, read_manifest(folder))


def _remove_files(folder: Path, manifest: Manifest) -> None:
    """Remove a bundle's files, the manifest last, then empty folders."""
    for top, folders, names in os.walk(folder, topdown=False):
        for entry in names:
            path = Path(top, entry)
            if str(path.relative_to(folder)) in manifest.files:
                path.unlink()
        for entry in folders:
            with contextlib.suppress(OSError):
                Path(top, entry).rmdir()
    if os.listdir(folder) == [MANIFEST]:
        (folder / MANIFEST).unlink()
        folder.rmdir()
