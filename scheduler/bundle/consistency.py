"""Whether tensors, subgraphs and joins of a manifest fit together."""

import math
from collections import Counter, deque
from collections.abc import Iterator

from predictors.joins import meetings
from scheduler.bundle.manifest import JoinEntry, Manifest, SubgraphEntry, Tensor
from scheduler.bundle.rows import ROW_AXIS

MAX_PARTS = 20_000
MAX_TENSOR_ELEMENTS = 1 << 30


def graph_problems(manifest: Manifest) -> Iterator[str]:
    """Why the manifest's parts are not one graph that can run, one sentence each.

    Each tensor has one writer and at least one reader, both lists are in
    topological order, and the shapes of each join add up.
    """
    steps = [s.name for s in manifest.subgraphs] + [j.name for j in manifest.joins]
    if not manifest.subgraphs:
        yield "it has no subgraph"
        return
    if max(len(steps), len(manifest.tensors)) > MAX_PARTS:
        yield f"it has {len(steps)} subgraphs and joins and {len(manifest.tensors)} tensors, the limit is {MAX_PARTS}"
        return
    tensors = {t.name: t for t in manifest.tensors}
    for what, names in (("tensor", [t.name for t in manifest.tensors]), ("subgraph or join", steps)):
        if twice := next((n for n, count in Counter(names).items() if count > 1), None):
            yield f"{what} `{twice}` is there twice"
            return
    if reserved := {"input", "output"}.intersection(steps):
        yield f"no subgraph or join may be called `{reserved.pop()}`"
    reads = {s.name: s.inputs for s in manifest.subgraphs} | {j.name: j.inputs for j in manifest.joins}
    writes = {s.name: s.outputs for s in manifest.subgraphs} | {j.name: (j.output,) for j in manifest.joins}
    if problem := next(_end_problems(manifest), None):
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
    for what, ends, shape in (
        ("input", manifest.inputs, manifest.model.input_shape),
        ("output", manifest.outputs, manifest.model.output_shape),
    ):
        tensor = ends[0]
        if tensors[tensor].shape != shape:
            yield f"the model's {'first ' if len(ends) > 1 else ''}{what} has shape {list(shape)}, its tensor `{tensor}` {list(tensors[tensor].shape)}"


def _end_problems(manifest: Manifest) -> Iterator[str]:
    """The model and each subgraph read and write something, and nothing twice; results have a name each."""
    names = manifest.results
    if names and (len(set(names)) != len(manifest.outputs) or len(names) != len(manifest.outputs) or not all(names)):
        yield f"its {len(manifest.outputs)} outputs are called {', '.join(name or 'nothing' for name in names[:8])}"
    ends = [("the model", manifest.inputs, manifest.outputs)] + [(f"`{s.name}`", s.inputs, s.outputs) for s in manifest.subgraphs]
    for who, *pair in ends:
        for verb, names in zip(("reads", "writes"), pair, strict=True):
            if not names:
                yield f"{who} {verb} no tensor"
            if twice := next((n for n, count in Counter(names).items() if count > 1), None):
                yield f"{who} {verb} the tensor `{twice}` twice"


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
        if not tensor.shape or min(tensor.shape) < 1 or math.prod(tensor.shape) > MAX_TENSOR_ELEMENTS:
            yield f"tensor `{tensor.name}` has the shape {list(tensor.shape)}, which is empty or too large"
        if tensor.layout == "NC" and len(tensor.shape) != 2:
            yield f"tensor `{tensor.name}` has layout NC and {len(tensor.shape)} axes"
        written, read = writers.get(tensor.name, []), readers.get(tensor.name, set())
        if written != [tensor.producer]:
            yield f"tensor `{tensor.name}` states the producer `{tensor.producer}` and is written by {', '.join(written) or 'nothing'}"
        if read != set(tensor.consumers) or not read:
            yield f"tensor `{tensor.name}` states the consumers {', '.join(tensor.consumers) or 'none'} and is read by {', '.join(sorted(read)) or 'nothing'}"


def _row_problems(subgraph: SubgraphEntry, tensors: dict[str, Tensor]) -> Iterator[str]:
    """A subgraph reads rows that are there, of images whose rows can be told."""
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
    """Each list must be in topological order; both together must have no circle."""
    there = set(manifest.inputs)
    left = {"subgraphs": deque(s.name for s in manifest.subgraphs), "joins": deque(j.name for j in manifest.joins)}
    moved = True
    while moved:
        moved = False
        for steps in left.values():
            while steps and all(tensor in there for tensor in reads[steps[0]]):
                there.update(writes[steps.popleft()])
                moved = True
    for what, steps in left.items():
        if steps:
            yield f"the {what} are not in topological order: `{steps[0]}` reads a tensor that is written later"
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
