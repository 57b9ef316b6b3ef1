"""A bundle on disk, read and checked."""

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
    """A bundle with a consistent description and all its files.

    It keeps the state in which it was read, even if another bundle takes its
    place meanwhile: the previous folder is kept for as long as this lives.

    Args:
        path: The folder.
        manifest: Its description.
        folder: The open folder; None for one that is never replaced.
        signer: Fingerprint of the trusted key that it is signed with; None if no key is required.
    """

    path: Path
    manifest: Manifest
    folder: OpenFolder | None = field(default=None, compare=False, repr=False)
    signer: str | None = None

    def file(self, name: str) -> Path:
        """Return a path of one of the bundle's files, by its name in the manifest; it may lead through a descriptor of this process."""
        return (self.path if self.folder is None else self.folder.root) / name

    def replace_root(self, text: str) -> str:
        """Return the text with the bundle's folder in place of what `file` gives."""
        return text if self.folder is None else self.folder.replace_root(text)

    def subgraph(self, name: str) -> SubgraphEntry:
        """Return the subgraph called `name`."""
        return next(entry for entry in self.manifest.subgraphs if entry.name == name)


@contextlib.contextmanager
def add_path_to_errors(bundle: Bundle | OpenFolder) -> Iterator[None]:
    """Make errors name the bundle's folder, not the descriptor through which its files are opened."""
    try:
        yield
    except StretchError as error:
        error.message = bundle.replace_root(error.message)
        error.args = (error.message,)
        raise


class _Version(msgspec.Struct):
    """Only the schema number, so that a newer manifest is named as such."""

    schema: int = 0


def load_bundle(path: str | Path, *, check_hashes: bool = False, trust: str | Path | Sequence[str | Path] = ()) -> Bundle:
    """Read a bundle and check everything that does not need to run it.

    Args:
        path: The bundle's folder.
        check_hashes: Also compare each file's SHA-256, about a second a gigabyte. Hashes prove that
            the bundle is whole, not who made it.
        trust: File with a public key (Ed25519, PEM), or several, with one of which the bundle has to be signed; hashes are
            compared then. Empty: any author.

    Raises:
        StretchError: If the folder is no bundle, its schema is newer or older than
            this code's, a file is missing, outside of the folder, of the wrong size or
            content, tensors, subgraphs and joins do not fit together, or it is not
            signed with a key of `trust`.
        MissingBackendError: If the package that checks signatures is missing.
    """
    keys = [public_key(Path(key)) for key in ([trust] if isinstance(trust, str | Path) else trust)]
    bundle = read_bundle(Path(path), keys)
    for problem in bundle_problems(bundle, hashes=check_hashes or bool(keys)):
        raise StretchError(problem, _HINT)
    return bundle


def read_bundle(path: Path, keys: Sequence[bytes] = ()) -> Bundle:
    """Read only a bundle's description; its files are not checked.

    Args:
        keys: Public keys, 32 bytes each, with one of which the description has to be signed; none: with any or not at all.
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
    """Return the defects of a bundle, one sentence each.

    The content of a file is read only once all files are as they were written.

    Args:
        bundle: A bundle fresh from `read_bundle`.
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
    """Read the description in a folder, without keeping the folder open."""
    return _decode(path, _read_description(path))


def _read_description(path: Path) -> bytes:
    """Read the file of a description."""
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
    """Return the sign a bundle that is whole.

    Args:
        key: PEM file (PKCS #8) of an Ed25519 private key without a password.
    """
    bundle = load_bundle(path, check_hashes=True)
    folder = bundle.file("")
    with add_path_to_errors(bundle):
        return fingerprint(sign(folder, _read_description(folder), key))
