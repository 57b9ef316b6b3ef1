"""A bundle on disk: read, checked, and never trusted further than its hashes."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import msgspec

from predictors.errors import StretchError
from predictors.install import upgrade_line
from scheduler.consistency import graph_problems
from scheduler.manifest import SCHEMA, Manifest, SubgraphEntry
from scheduler.onnx_file import external_locations, load_onnx

MANIFEST = "bundle.json"
MAX_MANIFEST_BYTES = 16 << 20

_AGAIN = "write the bundle again with `stretch branch`"


@dataclass(frozen=True)
class Bundle:
    """A bundle whose description holds together and whose files are there.

    Args:
        path: The folder.
        manifest: Its description.
    """

    path: Path
    manifest: Manifest

    def file(self, name: str) -> Path:
        """Path of one of the bundle's files, by its name in the manifest."""
        return self.path / name

    def subgraph(self, name: str) -> SubgraphEntry:
        """The subgraph called `name`."""
        return next(entry for entry in self.manifest.subgraphs if entry.name == name)


class _Version(msgspec.Struct):
    """Only the schema number, so that a newer manifest is named as such."""

    schema: int = 0


def load_bundle(path: Path, *, check_hashes: bool = False) -> Bundle:
    """Read a bundle and check everything that does not need to run it.

    Args:
        path: The bundle's folder.
        check_hashes: Also compare each file's SHA-256, about a second a gigabyte.

    Raises:
        StretchError: If the folder is no bundle, its schema is newer than this
            code, a file is missing, outside of the folder, of the wrong size or
            content, or tensors, subgraphs and joins do not fit together.
    """
    bundle = read_bundle(path)
    for problem in bundle_problems(bundle, hashes=check_hashes):
        raise StretchError(problem, _AGAIN)
    return bundle


def read_bundle(path: Path) -> Bundle:
    """Read a bundle's description alone; nothing says yet that its files are there.

    Raises:
        StretchError: If it is missing, damaged, too large or of a newer schema.
    """
    return Bundle(path, _read_manifest(path))


def bundle_problems(bundle: Bundle, *, hashes: bool) -> Iterator[str]:
    """What is wrong with a bundle, one sentence each.

    What a file holds is looked at only once all files are as they were written.

    Args:
        bundle: A bundle fresh from `read_bundle`.
        hashes: Whether to compare each file's SHA-256.
    """
    damaged = False
    for problem in _file_problems(bundle, hashes=hashes):
        damaged = True
        yield problem
    for problem in graph_problems(bundle.manifest):
        yield f"{bundle.path / MANIFEST}: {problem}"
    if not damaged:
        yield from _external_data_problems(bundle)


def _read_manifest(path: Path) -> Manifest:
    file = path / MANIFEST
    try:
        # A pipe or device in its place would be read for ever.
        if file.exists() and not file.is_file():
            raise StretchError(f"{file} is not a file", _AGAIN)
        size = file.stat().st_size
        if size > MAX_MANIFEST_BYTES:
            raise StretchError(f"{file} has {size} bytes, the limit is {MAX_MANIFEST_BYTES}", _AGAIN)
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError) as error:
        raise StretchError(
            f"{path} is not a bundle: it has no {MANIFEST}", "make one with `stretch branch MODEL --device DEVICE`"
        ) from error
    except OSError as error:
        raise StretchError(f"cannot read {file}: {error.strerror}") from error
    try:
        schema = msgspec.json.decode(text, type=_Version).schema
        if schema > SCHEMA:
            raise StretchError(f"{file} has schema {schema}, this nn-stretch reads up to {SCHEMA}", upgrade_line())
        if schema < 1:
            raise StretchError(f"{file} has schema {schema}, the first one is 1", _AGAIN)
        return msgspec.json.decode(text, type=Manifest)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise StretchError(f"{file} is damaged: {error}", _AGAIN) from error


def _file_problems(bundle: Bundle, *, hashes: bool) -> Iterator[str]:
    manifest = bundle.manifest
    used = [s.file for s in manifest.subgraphs] + [manifest.whole, *manifest.controls.values()]
    if manifest.tflite is not None:
        used.append(manifest.tflite)
    used += [name for files in manifest.contexts.values() for name in files.values()]
    used += manifest.aot.values()
    for name in used:
        if name not in manifest.files:
            yield f"{bundle.path / MANIFEST} uses the file `{name}` without stating its size and hash"
    try:
        root = bundle.path.resolve(strict=True)
    except OSError as error:
        yield f"cannot read {bundle.path}: {error.strerror}"
        return
    for name, entry in manifest.files.items():
        if not _inside(name):
            yield f"{bundle.path / MANIFEST} names the file `{name}`, which is not inside the bundle"
            continue
        file = bundle.path / name
        try:
            real = file.resolve(strict=True)
            if not real.is_relative_to(root):
                yield f"{file} is a link that leads out of the bundle"
                continue
            if not real.is_file():
                yield f"{file} is not a file"
                continue
            size = real.stat().st_size
            if size != entry.bytes:
                yield f"{file} has {size} bytes, the bundle was written with {entry.bytes}"
            elif hashes and _sha256(real) != entry.sha256:
                yield f"{file} was changed after the bundle was written: its SHA-256 differs"
        except FileNotFoundError:
            yield f"{file} is missing"
        except (OSError, ValueError, RuntimeError) as error:
            yield f"cannot read {file}: {error}"


def _inside(name: str) -> bool:
    path = PurePosixPath(name)
    return (
        bool(name)
        and "\\" not in name
        and "\0" not in name
        and not path.is_absolute()
        and ".." not in path.parts
        and ":" not in path.parts[0]
    )


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _external_data_problems(bundle: Bundle) -> Iterator[str]:
    """Weights kept outside of an ONNX file must be hashed files of the bundle."""
    for name in bundle.manifest.files:
        if not name.endswith(".onnx"):
            continue
        for location in external_locations(load_onnx(bundle.file(name)).graph):
            inside = str(PurePosixPath(name).parent / location) if _inside(location) else None
            if inside not in bundle.manifest.files:
                yield f"{bundle.file(name)} keeps weights in `{location}`, which is not a file of the bundle"
