"""Subjects of a benchmark: ONNX files, TFLite files and bundles, with hash, multiply-accumulates and a random input."""

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from predictors.errors import StretchError, UsageError
from predictors.files import open_regular
from predictors.shapes import Shape
from scheduler.bundle.load import MANIFEST, load_bundle
from scheduler.delegates.base import Array

Kind = Literal["onnx", "tflite", "bundle"]

#: Elements of one input or output: half a gigabyte of reals.
MAX_ELEMENTS = 1 << 27

#: Contenders would be no two sets of numbers with more.
MAX_ENDS = 64

#: Shapes that were asked for: one for the only input, or by name.
InputShapes = Mapping[str, Sequence[int]]

#: Of an input without a name: it is for the only one that a file leaves open.
UNNAMED = ""


@dataclass(frozen=True)
class End:
    """An input or output of a file."""

    name: str  # Its name.
    shape: tuple[int | None, ...]  # Its shape; None for an axis that the file leaves open.
    dtype: str  # Its element type by numpy's name.

    @property
    def text(self) -> str:
        """Such as ``x=?x3x224x224``."""
        return f"{self.name}={'x'.join('?' if n is None else str(n) for n in self.shape)}"


@dataclass(frozen=True)
class Subject:
    """One thing to time."""

    path: str  # As it was named.
    kind: Kind  # What it is.
    sha256: str  # Of the file, with the weights that lie beside it; of a bundle its manifest's, which has the hashes of its files.
    bytes: int  # Of all that.
    macs: int | None  # Multiply-accumulates of an inference; None where they cannot be counted.
    model: Path  # What runtimes load: the file, or one made of it whose shapes are fixed.
    inputs: Mapping[str, Array]  # What it is given, by name.
    outputs: Mapping[str, tuple[str, Shape]]  # Type and shape of what it gives, by name; empty where the runtime tells.


def kind_of(path: Path) -> Kind:
    """What a word of the command line is.

    Raises:
        UsageError: If it is nothing that can be timed.
    """
    if path.is_dir():
        return "bundle"
    kinds: dict[str, Kind] = {".onnx": "onnx", ".tflite": "tflite"}
    if path.suffix.lower() in kinds:
        return kinds[path.suffix.lower()]
    raise UsageError(f"{path} is no .onnx file, .tflite file or bundle", "name files with these endings, or folders of bundles")


def digest(kind: Kind, path: Path, beside: Iterable[str] = ()) -> tuple[str, int]:
    """SHA-256 and bytes of what is timed.

    Args:
        kind: What it is; a bundle's files are checked against its manifest, whose hash it is.
    """
    if kind == "bundle":
        bundle = load_bundle(path, check_hashes=True)
        size = sum(bundle.file(name).stat().st_size for name in bundle.manifest.files)
        manifest_hash, manifest_size = _hash([path / MANIFEST])
        return manifest_hash, size + manifest_size
    return _hash([path, *(path.parent / name for name in sorted(beside))])


def _hash(paths: Sequence[Path]) -> tuple[str, int]:
    hasher, size = hashlib.sha256(), 0
    for path in paths:
        try:
            with open_regular(path) as stream:
                while block := stream.read(1 << 20):
                    hasher.update(block)
                    size += len(block)
        except OSError as error:
            raise StretchError(f"cannot read {path}: {error.strerror or error}", "name a file that is there and may be read") from error
    return hasher.hexdigest(), size


def settled(path: Path, ends: Sequence[End], requested: InputShapes) -> dict[str, Shape]:
    """The shape of each input, every axis a number.

    Args:
        requested: Value of `--input`: by name, or under `UNNAMED` for the only input that is open, or the only one.
    """
    if not 0 < len(ends) <= MAX_ENDS:
        raise StretchError(f"{path} has {len(ends)} inputs; between 1 and {MAX_ENDS} can be given numbers", "export the part that has some")
    opened = [end for end in ends if None in end.shape]
    only = opened if len(opened) == 1 else ends if len(ends) == 1 else []
    sizes = {**({only[0].name: requested[UNNAMED]} if only and UNNAMED in requested else {}), **requested}
    shapes = {}
    for end in ends:
        shape = sizes.get(end.name, end.shape)
        if None in shape:
            hint = " ".join(f"--input {name.text}" for name in opened)
            raise UsageError(f"{path} leaves the size of its input `{end.name[:100]}` open", f"give numbers in place of the marks: {hint}")
        whole = tuple(int(n) for n in shape if n is not None)
        fits = len(whole) == len(end.shape) and all(stated in (None, n) for n, stated in zip(whole, end.shape, strict=True))
        if not fits:
            raise UsageError(
                f"the input `{end.name[:100]}` of {path} is {end.text.partition('=')[2]}, {'x'.join(map(str, whole))} is requested",
                "change only axes that the file leaves open",
            )
        shapes[end.name] = checked(path, end.name, whole)
    return shapes


def checked(path: Path, name: str, shape: Shape) -> Shape:
    """A shape of a sensible size."""
    if len(shape) > 8 or min((*shape, 1)) < 1 or math.prod(shape) > MAX_ELEMENTS:
        raise StretchError(f"`{name[:100]}` of {path} has the shape {str(list(shape))[:200]}", f"up to {MAX_ELEMENTS} elements are taken")
    return shape


def random_arrays(shapes: Mapping[str, tuple[str, Shape]], seed: int) -> dict[str, Array]:
    """Inputs of random numbers: normal reals, bytes over their whole range, other whole numbers of 0 and 1.

    Whole numbers of more than a byte are mostly places in a table, of which every one has a first and a second row.
    """
    rng = np.random.default_rng(seed)
    arrays: dict[str, Array] = {}
    for name, (dtype, shape) in shapes.items():
        kind = np.dtype(dtype)
        if kind.kind == "f":
            arrays[name] = rng.standard_normal(shape).astype(kind)
        elif kind.kind in "iu" and kind.itemsize == 1:
            bounds = np.iinfo(kind)
            arrays[name] = rng.integers(bounds.min, bounds.max, shape, kind, endpoint=True)
        else:
            arrays[name] = rng.integers(0, 2, shape).astype(kind)
    return arrays


def hash_of(arrays: Mapping[str, Any]) -> str:
    """SHA-256 of arrays by name: names, types, shapes and numbers."""
    hasher = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        hasher.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
        hasher.update(array.tobytes())
    return hasher.hexdigest()
