"""Defects of a bundle's graph, files and ONNX operators, each in one sentence."""

import hashlib
import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath

from predictors.errors import StretchError
from predictors.files import open_regular
from predictors.joins import meetings
from scheduler.bundle.lock import OpenFolder
from scheduler.bundle.manifest import JoinEntry, Manifest, SourceFile, SubgraphEntry, Tensor
from scheduler.bundle.rows import ROW_AXIS, Rows, cut_shape
from scheduler.formats.onnx import OnnxFile, open_onnx
from scheduler.formats.onnx.file import MAX_WORK
from scheduler.formats.onnx.shapes.node import FLOAT
from scheduler.formats.tflite import open_tflite

MAX_PARTS = 20_000
MAX_TENSOR_ELEMENTS = 1 << 30


def graph_problems(manifest: Manifest) -> Iterator[str]:
    """Yield the defects of the manifest's graph, one sentence each.

    Each tensor must have one writer and at least one reader, both lists must be in
    topological order, and the shapes of each join must add up.
    """
    steps = [s.name for s in manifest.subgraphs] + [j.name for j in manifest.joins]
    if not manifest.subgraphs:
        yield "it has no subgraph"
        return
    if max(len(steps), len(manifest.tensors)) > MAX_PARTS:
        yield f"it has {len(steps)} subgraphs and joins and {len(manifest.tensors)} tensors, the limit is {MAX_PARTS}"
        return
    tensors = {t.name: t for t in manifest.tensors}
    for kind, names in (("tensor", [t.name for t in manifest.tensors]), ("subgraph or join", steps)):
        if duplicate := next((n for n, count in Counter(names).items() if count > 1), None):
            yield f"{kind} `{duplicate}` is there twice"
            return
    if reserved := {"input", "output"}.intersection(steps):
        yield f"no subgraph or join may be called `{reserved.pop()}`"
    reads = {s.name: s.inputs for s in manifest.subgraphs} | {j.name: j.inputs for j in manifest.joins}
    writes = {s.name: s.outputs for s in manifest.subgraphs} | {j.name: (j.output,) for j in manifest.joins}
    if problem := next(_consistency_end_problems(manifest), None):
        yield problem
        return
    for step in steps:
        for name in (*reads[step], *writes[step]):
            if name not in tensors:
                yield f"`{step}` uses the tensor `{name}`, which is not described"
                return
    for name in (*manifest.inputs, *manifest.outputs):
        if name not in tensors:
            yield f"the tensor `{name}` is not described"
            return
    yield from _tensor_problems(manifest, reads, writes)
    for subgraph in manifest.subgraphs:
        yield from _row_problems(subgraph, tensors)
    yield from _order_problems(manifest, reads, writes)
    for join in manifest.joins:
        yield from _join_problems(join, [tensors[i] for i in join.inputs], tensors[join.output])
    for kind, ends, shape in (
        ("input", manifest.inputs, manifest.model.input_shape),
        ("output", manifest.outputs, manifest.model.output_shape),
    ):
        tensor = ends[0]
        if tensors[tensor].shape != shape:
            yield f"the model's {'first ' if len(ends) > 1 else ''}{kind} has shape {list(shape)}, its tensor `{tensor}` {list(tensors[tensor].shape)}"


def _consistency_end_problems(manifest: Manifest) -> Iterator[str]:
    """Yield missing or repeated inputs and outputs of the model and its subgraphs, and wrong names of results."""
    names = manifest.results
    if names and (len(set(names)) != len(manifest.outputs) or len(names) != len(manifest.outputs) or not all(names)):
        yield f"its {len(manifest.outputs)} outputs are called {', '.join(name or 'nothing' for name in names[:8])}"
    ends = [("the model", manifest.inputs, manifest.outputs)] + [(f"`{s.name}`", s.inputs, s.outputs) for s in manifest.subgraphs]
    for reader, *pair in ends:
        for verb, names in zip(("reads", "writes"), pair, strict=True):
            if not names:
                yield f"{reader} {verb} no tensor"
            if duplicate := next((n for n, count in Counter(names).items() if count > 1), None):
                yield f"{reader} {verb} the tensor `{duplicate}` twice"


def _tensor_problems(manifest: Manifest, reads: dict[str, tuple[str, ...]], writes: dict[str, tuple[str, ...]]) -> Iterator[str]:
    writers: dict[str, list[str]] = {name: ["input"] for name in manifest.inputs}
    for step, names in writes.items():
        for tensor_name in names:
            writers.setdefault(tensor_name, []).append(step)
    readers: dict[str, set[str]] = {name: {"output"} for name in manifest.outputs}
    for step, names in reads.items():
        for tensor_name in names:
            readers.setdefault(tensor_name, set()).add(step)
    for tensor in manifest.tensors:
        if min(tensor.shape, default=1) < 1 or math.prod(tensor.shape) > MAX_TENSOR_ELEMENTS:
            yield f"tensor `{tensor.name}` has the shape {list(tensor.shape)}, which is empty or too large"
        if tensor.layout == "NC" and len(tensor.shape) != 2:
            yield f"tensor `{tensor.name}` has layout NC and {len(tensor.shape)} axes"
        written, read = writers.get(tensor.name, []), readers.get(tensor.name, set())
        if written != [tensor.producer]:
            yield f"tensor `{tensor.name}` states the producer `{tensor.producer}` and is written by {', '.join(written) or 'nothing'}"
        if read != set(tensor.consumers) or not read:
            yield f"tensor `{tensor.name}` states the consumers {', '.join(tensor.consumers) or 'none'} and is read by {', '.join(sorted(read)) or 'nothing'}"


def _row_problems(subgraph: SubgraphEntry, tensors: dict[str, Tensor]) -> Iterator[str]:
    """Yield rows in a subgraph that do not exist, or that belong to a tensor without an axis of rows."""
    for name, (start, stop) in subgraph.rows.items():
        if name not in subgraph.inputs:
            yield f"`{subgraph.name}` states rows of `{name[:80]}`, which it does not read"
            continue
        tensor = tensors[name]
        axis = ROW_AXIS.get(tensor.layout)
        if axis is None or len(tensor.shape) != 4:
            yield f"`{subgraph.name}` reads rows of `{name}`, a tensor of layout {tensor.layout} and {len(tensor.shape)} axes"
        elif not start < stop <= tensor.shape[axis]:
            yield f"`{subgraph.name}` reads rows {start} to {stop} of `{name}`, which has {tensor.shape[axis]}"


def _order_problems(manifest: Manifest, reads: dict[str, tuple[str, ...]], writes: dict[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield lists of subgraphs and joins that are not in topological order, or that have a cycle."""
    available = set(manifest.inputs)
    remaining = {"subgraphs": deque(s.name for s in manifest.subgraphs), "joins": deque(j.name for j in manifest.joins)}
    progress = True
    while progress:
        progress = False
        for steps in remaining.values():
            while steps and all(tensor in available for tensor in reads[steps[0]]):
                available.update(writes[steps.popleft()])
                progress = True
    for kind, steps in remaining.items():
        if steps:
            yield f"the {kind} are not in topological order: `{steps[0]}` reads a tensor that is written later"
            return


def _join_problems(join: JoinEntry, inputs: list[Tensor], output: Tensor) -> Iterator[str]:
    if join.kind not in meetings:
        yield f"join `{join.name}` meets by `{join.kind[:40]}`, known are {', '.join(meetings)}"
        return
    if len(inputs) < 2 or len(set(join.inputs)) != len(inputs):
        yield f"join `{join.name}` needs two or more different tensors"
        return
    for tensor in inputs:
        if (tensor.dtype, tensor.layout, tensor.scale, tensor.zero_point) != (output.dtype, output.layout, output.scale, output.zero_point):
            yield f"join `{join.name}` reads `{tensor.name}` and writes `{output.name}`, which differ in type or layout"
    problem = meetings.get(join.kind).problem([tensor.shape for tensor in inputs], output.shape, output.layout)
    if problem is not None:
        yield f"join `{join.name}`{problem}"


def file_problems(path: Path, folder: OpenFolder, manifest: Manifest, *, hashes: bool) -> Iterator[str]:
    """Yield defects of a bundle's files, one sentence each, without checking their graphs."""
    for name in _used_files(manifest):
        if name not in manifest.files:
            yield f"{path / 'bundle.json'} uses the file `{name}` without stating its size and hash"
    for name in manifest.files:
        if not is_safe_path(name):
            yield f"{path / 'bundle.json'} names the file `{name}`, which is not inside the bundle"
            continue
        try:
            problem = _file_problem(folder, manifest, name, hashes=hashes)
        except FileNotFoundError:
            problem = "is missing"
        except (OSError, ValueError, RuntimeError) as error:
            problem = f"cannot be read: {getattr(error, 'strerror', None) or error}"
        if problem:
            yield f"{path / name} {problem}"


def onnx_problems(path: Path, folder: OpenFolder, manifest: Manifest) -> Iterator[str]:
    """Yield the defects of a bundle's unchanged ONNX files, one sentence each."""
    compiled = {name for files in manifest.contexts.values() for name in files.values()}
    work: dict[str, int] = {}
    for name in manifest.files:
        if not name.endswith(".onnx"):
            continue
        try:
            if manifest.own is not None and name == manifest.own.file:
                check_source_file(folder.root / name, manifest.own)
            opened = open_onnx(folder.root / name)
            if missing := _missing_location(opened, name, manifest):
                yield f"{path / name} keeps weights in `{missing}`, which is not a file of the bundle"
            # code for a DSP is one opaque operator, and runs only if the user trusts it
            elif name not in compiled and (manifest.own is None or name != manifest.own.file):
                work[name] = opened.cost.work
                yield from _end_problems(path, opened, name, manifest)
        except StretchError as error:
            yield folder.replace_root(error.message)
    total = sum(work.get(entry.file, 0) for entry in manifest.subgraphs)
    if total > MAX_WORK:
        yield f"{path / 'bundle.json'}: its subgraphs take {total:.1e} multiply-accumulates, {MAX_WORK:.1e} are allowed"


def check_source_file(path: Path, own: SourceFile) -> set[str]:
    """Refuse the user's own file if running it would be unbounded work; return the files of its external weights."""
    if path.suffix == ".tflite":
        open_tflite(path)
        return set()
    opened = open_onnx(path)
    sizes = {end.name: end.shape for end in (*own.inputs, *own.outputs)}
    for value in (*opened.proto.graph.input, *opened.proto.graph.output):
        kind, shape = value.type.tensor_type, value.type.tensor_type.shape
        kind.elem_type = kind.elem_type or FLOAT
        if value.name in sizes:
            # sizes that the file leaves open are those of the bundle
            del shape.dim[:]
            for size in sizes[value.name]:
                shape.dim.add().dim_value = size
    _ = opened.cost
    return opened.external


def is_safe_path(name: str) -> bool:
    """Return whether a file name in a manifest stays inside the bundle."""
    path = PurePosixPath(name)
    return (
        bool(path.parts)
        and "\\" not in name
        and "\0" not in name
        and not path.is_absolute()
        and ".." not in path.parts
        and ":" not in path.parts[0]
    )


def _used_files(manifest: Manifest) -> list[str]:
    used = [s.file for s in manifest.subgraphs] + [manifest.whole, *manifest.controls.values(), *manifest.int8_controls.values()]
    used += [manifest.own.file] if manifest.own is not None else []
    if manifest.tflite is not None:
        used.append(manifest.tflite)
    used += [name for files in manifest.contexts.values() for name in files.values()]
    return [*used, *manifest.aot.values()]


def _file_problem(folder: OpenFolder, manifest: Manifest, name: str, *, hashes: bool) -> str:
    """Return the defect of one file, or an empty string."""
    path, entry = folder.root / name, manifest.files[name]
    if not path.exists() and not path.is_symlink():
        return "is missing"
    if not folder.contains(path):
        return "is a link that leads out of the bundle"
    if path.exists() and not path.is_file():
        return "is not a file"
    with open_regular(path) as stream:
        size = stream.seek(0, 2)
        if size != entry.bytes:
            return f"has {size} bytes, the bundle was written with {entry.bytes}"
        stream.seek(0)
        if hashes and hashlib.file_digest(stream, "sha256").hexdigest() != entry.sha256:
            return "was changed after the bundle was written: its SHA-256 differs"
    return ""


def _missing_location(opened: OnnxFile, name: str, manifest: Manifest) -> str:
    """Return a file of external weights that is not a hashed file of the bundle, or an empty string."""
    for location in opened.external:
        file = str(PurePosixPath(name).parent / location) if is_safe_path(location) else None
        if file not in manifest.files:
            return location or "a file without a name"
    return ""


def _end_problems(path: Path, opened: OnnxFile, name: str, manifest: Manifest) -> Iterator[str]:
    """Yield inputs and outputs of a file that differ from the manifest's tensors, for which buffers are created."""
    tensors = {tensor.name: tensor for tensor in manifest.tensors}
    stated: list[tuple[tuple[str, ...], tuple[str, ...], Mapping[str, Rows]]]
    stated = [(entry.inputs, entry.outputs, entry.rows) for entry in manifest.subgraphs if entry.file == name]
    stated += [(manifest.inputs, manifest.outputs, {})] * (name == manifest.whole)
    for inputs, outputs, rows in stated:
        for side, names, shapes, cuts in zip(("input", "output"), (inputs, outputs), opened.ends, (rows, {}), strict=True):
            expected = {end_name: cut_shape(tensors[end_name].shape, cuts.get(end_name), tensors[end_name].layout) for end_name in names}
            if shapes != expected:
                file_text, manifest_text = _format_shapes(shapes), _format_shapes(expected)
                yield f"{path / name} does not fit the bundle: its {side} is {file_text}, the manifest states {manifest_text}"


def _format_shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"`{name}` {list(shape)}" for name, shape in shapes.items()) or "nothing"
