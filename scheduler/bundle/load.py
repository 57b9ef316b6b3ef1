"""A bundle on disk: reading and checking."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from predictors.errors import StretchError, upgrade_line
from predictors.files import read_bytes
from scheduler.bundle.lock import OpenFolder
from scheduler.bundle.manifest import SCHEMA, Manifest, SubgraphEntry
from scheduler.bundle.problems import file_problems, graph_problems, onnx_problems
from scheduler.bundle.signature import check_signature, fingerprint, public_key, sign

MANIFEST = "bundle.json"
MAX_MANIFEST_BYTES = 16 << 20

_HINT = "write the bundle again with `stretch branch`"


@dataclass(frozen=True)
class Bundle:
    """A bundle with a consistent manifest and all its files.

    The bundle keeps the state in which it was read, even if another bundle replaces
    it meanwhile: the previous folder is kept as long as this object lives.

    Args:
        path: Folder of the bundle.
        manifest: Manifest of the bundle.
        folder: The open folder; None for a folder that is never replaced.
        signer: Fingerprint of the trusted key that signed the bundle; None if no key is required.
    """

    path: Path
    manifest: Manifest
    folder: OpenFolder | None = field(default=None, compare=False, repr=False)
    signer: str | None = None

    def file(self, name: str) -> Path:
        """Return the path of a file of the bundle by its name in the manifest; the path may use a descriptor of this process."""
        return (self.path if self.folder is None else self.folder.root) / name

    def replace_root(self, text: str) -> str:
        """Return `text` with the bundle's folder in place of the descriptor's path from `file`."""
        return text if self.folder is None else self.folder.replace_root(text)

    def subgraph(self, name: str) -> SubgraphEntry:
        """Return the subgraph `name`."""
        return next(entry for entry in self.manifest.subgraphs if entry.name == name)


@contextlib.contextmanager
def add_path_to_errors(bundle: Bundle | OpenFolder) -> Iterator[None]:
    """Make errors name the bundle's folder instead of the descriptor's path to its files."""
    try:
        yield
    except StretchError as error:
        error.message = bundle.replace_root(error.message)
        error.args = (error.message,)
        raise


class _Version(msgspec.Struct):
    """The schema number alone, so that a newer manifest is reported as newer."""

    schema: int = 0


def load_bundle(path: str | Path, *, check_hashes: bool = False, trust: str | Path | Sequence[str | Path] = ()) -> Bundle:
    """Read a bundle and check everything that can be checked without running it.

    Args:
        path: The bundle's folder.
        check_hashes: Also compare each file's SHA-256, at about one second per gigabyte. Hashes prove that
            the bundle is complete, not who made it.
        trust: One or several files with a public key (Ed25519, PEM), one of which must have signed the bundle; hashes are
            then compared as well. Empty: any author.

    Raises:
        StretchError: If the folder is not a bundle, its schema is newer or older than
            this code's, a file is missing, outside the folder, of the wrong size or
            content, tensors, subgraphs and joins do not fit together, or no key of
            `trust` has signed it.
        MissingBackendError: If the package that checks signatures is missing.
    """
    keys = [public_key(Path(key)) for key in ([trust] if isinstance(trust, str | Path) else trust)]
    bundle = read_bundle(Path(path), keys)
    for problem in bundle_problems(bundle, hashes=check_hashes or bool(keys)):
        raise StretchError(problem, _HINT)
    return bundle


def read_bundle(path: Path, keys: Sequence[bytes] = ()) -> Bundle:
    """Read only a bundle's manifest, without checking its files.

    Args:
        keys: Public keys of 32 bytes, one of which must have signed the manifest; empty to accept any signature or none.
    """
    try:
        folder = OpenFolder(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise _no_bundle(path) from error
    except (OSError, ValueError) as error:
        raise StretchError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    with add_path_to_errors(folder):
        text = _read_description(folder.root)
        signer = fingerprint(check_signature(folder.root, text, keys)) if keys else None
        return Bundle(path, _decode(folder.root, text), folder, signer)


def bundle_problems(bundle: Bundle, *, hashes: bool) -> Iterator[str]:
    """Yield the defects of a bundle, one sentence each.

    The content of files is read only if all files are present and unchanged.

    Args:
        bundle: A bundle from `read_bundle`.
        hashes: Whether to compare each file's SHA-256.
    """
    folder = bundle.folder or OpenFolder(bundle.path)
    damaged = False
    for problem in file_problems(bundle.path, folder, bundle.manifest, hashes=hashes):
        damaged = True
        yield problem
    for problem in graph_problems(bundle.manifest):
        damaged = True
        yield f"{bundle.path / MANIFEST}: {problem}"
    if not damaged:
        yield from onnx_problems(bundle.path, folder, bundle.manifest)


def _no_bundle(path: Path) -> StretchError:
    return StretchError(f"{path} is not a bundle: it has no {MANIFEST}", "make one with `stretch branch MODEL --device DEVICE`")


def read_manifest(path: Path) -> Manifest:
    """Read the manifest in a folder, without keeping the folder open."""
    return _decode(path, _read_description(path))


def _read_description(path: Path) -> bytes:
    """Read the manifest's file."""
    file = path / MANIFEST
    if not file.exists() and not file.is_symlink():
        raise _no_bundle(path)
    if file.exists() and not file.is_file():
        raise StretchError(f"{file} is not a file", _HINT)
    return read_bytes(file, "bundle's description", MAX_MANIFEST_BYTES, _HINT)


def _decode(path: Path, text: bytes) -> Manifest:
    file = path / MANIFEST
    try:
        schema = msgspec.json.decode(text, type=_Version).schema
        if schema > SCHEMA:
            raise StretchError(f"{file} has schema {schema}, this nn-stretch reads up to {SCHEMA}", upgrade_line())
        if schema < SCHEMA:
            raise StretchError(
                f"{file} has schema {schema}, which this nn-stretch does not read: make the bundle again with `stretch branch` or `stretch export`",
                f"schema {SCHEMA} is read",
            )
        return msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StretchError(f"{file} is damaged: {error}", _HINT) from error


def sign_bundle(path: str | Path, key: Path) -> str:
    """Sign a complete bundle, and return the key's fingerprint.

    Args:
        key: PEM file (PKCS #8) of an Ed25519 private key without a password.
    """
    bundle = load_bundle(path, check_hashes=True)
    folder = bundle.file("")
    with add_path_to_errors(bundle):
        return fingerprint(sign(folder, _read_description(folder), key))
