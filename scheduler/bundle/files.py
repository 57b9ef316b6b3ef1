"""Whether a bundle's files are there, as they were written, and what the manifest says they are."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from predictors.errors import StretchError
from predictors.files import open_regular
from scheduler.bundle.held import Held
from scheduler.bundle.manifest import Manifest
from scheduler.bundle.rows import Rows, cut_shape
from scheduler.formats.onnx import OnnxFile, open_onnx
from scheduler.formats.onnx.checks import MAX_WORK


def file_problems(path: Path, held: Held, manifest: Manifest, *, hashes: bool) -> Iterator[str]:
    """What is wrong with a bundle's files, one sentence each, without looking at what they hold."""
    for name in _used(manifest):
        if name not in manifest.files:
            yield f"{path / 'bundle.json'} uses the file `{name}` without stating its size and hash"
    for name in manifest.files:
        if not inside(name):
            yield f"{path / 'bundle.json'} names the file `{name}`, which is not inside the bundle"
            continue
        try:
            problem = _problem(held, manifest, name, hashes=hashes)
        except FileNotFoundError:
            problem = "is missing"
        except (OSError, ValueError, RuntimeError) as error:
            problem = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        if problem:
            yield f"{path / name} {problem}"


def onnx_problems(path: Path, held: Held, manifest: Manifest) -> Iterator[str]:
    """What is wrong with the ONNX files of a bundle whose files are as they were written, one sentence each."""
    compiled = {name for files in manifest.contexts.values() for name in files.values()}
    work: dict[str, int] = {}
    for name in manifest.files:
        if not name.endswith(".onnx"):
            continue
        try:
            opened = open_onnx(held.root / name)
            if stray := _stray_location(opened, name, manifest):
                yield f"{path / name} keeps weights in `{stray}`, which is not a file of the bundle"
            # code for a DSP is one opaque operator, and runs only if its user trusts it
            elif name not in compiled:
                work[name] = opened.demand.work
                yield from _end_problems(path, opened, name, manifest)
        except StretchError as error:
            yield held.named(error.message)
    total = sum(work.get(entry.file, 0) for entry in manifest.subgraphs)
    if total > MAX_WORK:
        yield f"{path / 'bundle.json'}: its subgraphs take {total:.1e} multiply-accumulates, {MAX_WORK:.1e} are allowed"


def inside(name: str) -> bool:
    """Whether a file's name in a manifest stays inside of the bundle."""
    path = PurePosixPath(name)
    return (
        bool(path.parts)
        and "\\" not in name
        and "\0" not in name
        and not path.is_absolute()
        and ".." not in path.parts
        and ":" not in path.parts[0]
    )


def _used(manifest: Manifest) -> list[str]:
    used = [s.file for s in manifest.subgraphs] + [manifest.whole, *manifest.controls.values()]
    if manifest.tflite is not None:
        used.append(manifest.tflite)
    used += [name for files in manifest.contexts.values() for name in files.values()]
    return [*used, *manifest.aot.values()]


def _problem(held: Held, manifest: Manifest, name: str, *, hashes: bool) -> str:
    """What is wrong with one file; empty if nothing is."""
    file, entry = held.root / name, manifest.files[name]
    if not file.exists() and not file.is_symlink():
        return "is missing"
    if not held.contains(file):
        return "is a link that leads out of the bundle"
    if file.exists() and not file.is_file():
        return "is not a file"
    with open_regular(file) as stream:
        size = stream.seek(0, 2)
        if size != entry.bytes:
            return f"has {size} bytes, the bundle was written with {entry.bytes}"
        stream.seek(0)
        if hashes and hashlib.file_digest(stream, "sha256").hexdigest() != entry.sha256:
            return "was changed after the bundle was written: its SHA-256 differs"
    return ""


def _stray_location(opened: OnnxFile, name: str, manifest: Manifest) -> str:
    """Where weights lie that are kept outside of an ONNX file and are no hashed file of the bundle; empty if nowhere."""
    for location in opened.external:
        beside = str(PurePosixPath(name).parent / location) if inside(location) else None
        if beside not in manifest.files:
            return location or "a file without a name"
    return ""


def _end_problems(path: Path, opened: OnnxFile, name: str, manifest: Manifest) -> Iterator[str]:
    """Inputs and outputs of a file must be the tensors that the manifest states: buffers are made for those."""
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    stated: list[tuple[tuple[str, ...], tuple[str, ...], Mapping[str, Rows]]]
    stated = [(entry.inputs, entry.outputs, entry.rows) for entry in manifest.subgraphs if entry.file == name]
    stated += [(manifest.inputs, manifest.outputs, {})] * (name == manifest.whole)
    for inputs, outputs, rows in stated:
        for what, names, has, cuts in zip(("input", "output"), (inputs, outputs), opened.ends, (rows, {}), strict=True):
            wanted = {end_name: cut_shape(tensors[end_name].shape, cuts.get(end_name), tensors[end_name].layout) for end_name in names}
            if has != wanted:
                file_text, manifest_text = _listed(has), _listed(wanted)
                yield f"{path / name} does not fit the bundle: its {what} is {file_text}, the manifest states {manifest_text}"


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"`{name}` {list(shape)}" for name, shape in shapes.items()) or "nothing"
