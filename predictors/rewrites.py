"""Replacements of operators that a processor lacks or runs slowly.

Most rewrites give another network, which must be calibrated or trained: paper 003 (section 6) removes squeeze-and-excitation
from EfficientNet and gives its CPU branch ReLU6 instead of Swish. The rewrites in `exact` compute the same with other
operators. A rewrite is written ``WHAT=BY``, such as ``silu=relu6``.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from predictors.registry import Registry
from predictors.shapes import Attr, integer

#: Returns a graph whose other operators keep their names, inputs and weights.
Rewrite = Callable[[OpGraph], OpGraph]

rewrites: Registry[Rewrite] = Registry("rewrite")

#: Rewrites that keep a network's results. They apply to operators after scaling, so that channels and weights stay the original's.
exact: Registry[Rewrite] = Registry("exact rewrite")


def apply_rewrites(graph: OpGraph, names: Sequence[str]) -> tuple[OpGraph, tuple[str, ...]]:
    """Apply rewrites to a graph in order.

    Args:
        names: Names such as ``silu=relu6``.

    Returns:
        The new graph, and the names of the rewrites that changed it.

    Raises:
        UnknownNameError: If there is no such rewrite.
    """
    done = []
    for name in names:
        changed = rewrites.get(name)(graph)
        if changed is not graph:
            graph = changed
            done.append(name)
    return graph, tuple(done)


def inexact_rewrites(names: Sequence[str]) -> tuple[str, ...]:
    """Return the rewrites among `names` that change a network's results."""
    return tuple(name for name in names if name not in exact)


def apply_exact_rewrites(graph: OpGraph, names: Sequence[str]) -> tuple[OpGraph, tuple[str, ...]]:
    """Return a graph after the exact rewrites among `names`, and those that changed it; the result is cached in the graph."""
    key = tuple(dict.fromkeys(name for name in names if name in exact))
    cached: dict[tuple[str, ...], tuple[OpGraph, tuple[str, ...]]] = vars(graph).setdefault("_laid_out", {})
    if key not in cached:
        cached[key] = apply_rewrites(graph, key)
    return cached[key]


# Activations replaced with cheaper ones.

#: Smooth or costly activations, each with approximations of a few instructions, the closest first.
REPLACEMENTS = {
    "silu": ("hard_swish", "relu6", "relu"),
    "hard_swish": ("relu6", "relu"),
    "gelu": ("hard_swish", "relu6", "relu"),
    "mish": ("hard_swish", "relu6", "relu"),
    "elu": ("relu",),
    "sigmoid": ("hard_sigmoid",),
}


def _replacement(kind: str, by: str) -> Rewrite:
    def rewrite(graph: OpGraph) -> OpGraph:
        if not any(op.kind == kind for op in graph.ops):
            return graph
        ops = (replace(op, kind=by, attrs={}) if op.kind == kind else op for op in graph.ops)
        return OpGraph(graph.name, tuple(ops), graph.outputs)

    return rewrite


for _kind, _others in REPLACEMENTS.items():
    for _by in _others:
        rewrites.register(f"{_kind}={_by}")(_replacement(_kind, _by))


# A branch that gets the image at half its resolution, for the same computation with twice the channels.

#: Name of the rewrite, and maximum width of its branches relative to the original's channels.
HALF_RESOLUTION, HALF_WIDTH = "resolution=half", 2.0


@rewrites.register(HALF_RESOLUTION)
def halve(graph: OpGraph) -> OpGraph:
    """Return the graph on means of 2×2 pixels; the same graph if its result has rows, or an operator needs their number."""
    arriving, result = graph.input, graph.by_name[graph.output].shape
    if len(arriving.shape) != 4 or min(arriving.shape[2:]) < 2 or prod(result[2:]) > 1:
        return graph
    name = f"{arriving.name}_half"
    if name in graph.by_name or any(kind_of(op.kind).stated for op in graph.ops if op.kind != "input"):
        return graph
    window: dict[str, Attr] = {"kernel": (2, 2), "stride": (2, 2), "padding": (0, 0, 0, 0), "ceil_mode": False, "count_include_pad": True}
    ops = [arriving, Op(name, "avg_pool", (arriving.name,), window)]
    ops += [
        replace(op, inputs=tuple(name if read == arriving.name else read for read in op.inputs)) for op in graph.ops if op is not arriving
    ]
    try:
        halved = OpGraph.build(graph.name, ops, graph.outputs)
    except StretchError:
        return graph
    return halved if halved.by_name[graph.output].shape == result else graph


# Grouped convolutions in parts: an ordinary convolution for each group, whose concatenated results are the same.
#
# This is for runtimes that compute only dense and depthwise convolutions. A following operator with a number or a rule per channel
# (a batch norm, an activation) is split with the parts, so that it is still folded into convolutions.

#: Maximum number of parts of a convolution: each is a launch, and with more of them the exchange with the CPU costs no more.
MAX_PARTS = 64

#: Entry of a profile's `unsupported` for grouped convolutions that are not depthwise, which are not a separate kind.
GROUPED = "grouped_conv"

#: Tag of an operator that is a part of another one; its name is the other's name followed by the tag's value.
PART = "part"


def is_grouped(graph: OpGraph, op: Op) -> bool:
    """Return whether an operator is a grouped convolution that is not depthwise."""
    return op.kind == "conv" and integer(op.attrs, "groups") > 1 and graph.op_facts(op).work.kind == "grouped"


def owner_of(op: Op) -> str:
    """Return the name of the operator that an operator is a part of, or its own name."""
    return op.name.removesuffix(op.tags.get(PART, ""))


@rewrites.register(f"{GROUPED}=parts")
@exact.register(f"{GROUPED}=parts")
def split_grouped(graph: OpGraph) -> OpGraph:
    """Replace grouped convolutions with slices, ordinary convolutions and a concat; convolutions with over `MAX_PARTS` groups stay."""
    placed: dict[str, list[Op]] = {}
    removed: set[str] = set()
    for op in graph.ops:
        if is_grouped(graph, op) and integer(op.attrs, "groups") <= MAX_PARTS:
            chain = _chain(graph, op)
            parts = _parts(graph, chain)
            if not any(part.name in graph.by_name for part in parts[:-1]):
                placed[op.name] = parts
                removed.update(member.name for member in chain)
    if not placed:
        return graph
    ops = [member for op in graph.ops for member in (placed.get(op.name, []) if op.name in removed else [op])]
    return OpGraph.build(graph.name, ops, graph.outputs)


def _chain(graph: OpGraph, conv: Op) -> list[Op]:
    """Return a convolution, the batch norm that is its only reader, and the activation that is the only reader of that."""
    chain = [conv]
    for fits in (lambda op: op.kind == "batch_norm", lambda op: kind_of(op.kind).weightless and kind_of(op.kind).elementwise):
        readers = graph.consumers[chain[-1].name]
        if len(readers) == 1 and chain[-1].name not in graph.outputs:
            following = graph.by_name[readers[0]]
            if following.inputs == (chain[-1].name,) and following.shape == chain[-1].shape and fits(following):
                chain.append(following)
    return chain


def _parts(graph: OpGraph, chain: Sequence[Op]) -> list[Op]:
    """Return the operators that replace a convolution and its chain; the last one has the name and the result of the chain's last one."""
    conv = chain[0]
    groups = integer(conv.attrs, "groups")
    (source,) = conv.inputs
    step, width = graph.by_name[source].shape[1] // groups, integer(conv.attrs, "out_channels") // groups
    parts, ends = [], []
    for number in range(groups):
        suffix = f"_slice{number}"
        name = conv.name + suffix
        bounds = {"start": number * step, "stop": (number + 1) * step}
        parts.append(Op(name, "slice", (source,), bounds, tags={**conv.tags, PART: suffix}))
        for op in chain:
            attrs = {**op.attrs, "groups": 1, "out_channels": width} if op is conv else op.attrs
            suffix = f"_part{number}"
            parts.append(replace(op, name=op.name + suffix, inputs=(name,), attrs=attrs, shape=(), tags={**op.tags, PART: suffix}))
            name = parts[-1].name
        ends.append(name)
    return [*parts, Op(chain[-1].name, "concat", tuple(ends), tags=chain[-1].tags)]


# Removal of squeeze-and-excitation: a factor per channel, which waits for the mean of the whole image.

#: Kinds between the mean and the gate.
_INSIDE = frozenset(
    {"conv", "linear", "relu", "relu6", "silu", "hard_swish", "gelu", "identity", "flatten", "unflatten", "batch_norm", "view"}
)
_GATES = frozenset({"sigmoid", "hard_sigmoid"})


@rewrites.register("squeeze_excite=none")
def remove(graph: OpGraph) -> OpGraph:
    """Return the graph without factors of channels computed from the mean over the image."""
    removed: set[str] = set()
    passed: dict[str, str] = {}
    for op in graph.ops:
        if op.kind == "mul" and len(set(op.inputs)) == 2:
            for image, gate in (op.inputs, op.inputs[::-1]):
                chain = _gate_chain(graph, image, gate, op.name)
                if chain:
                    removed |= chain
                    passed[op.name] = image
                    break
    if not passed:
        return graph
    ops = [
        replace(op, kind="identity", inputs=(passed[op.name],), attrs={}) if op.name in passed else op
        for op in graph.ops
        if op.name not in removed
    ]
    return OpGraph(graph.name, tuple(ops), graph.outputs)


def _gate_chain(graph: OpGraph, image: str, gate: str, reader: str) -> set[str]:
    """Return the operators from the mean of an image to its gate, without other readers; empty if there is no such chain."""
    names: set[str] = set()
    op: Op = graph.by_name[gate]
    if op.kind not in _GATES:
        return set()
    while True:
        if set(graph.consumers[op.name]) - names - {reader} or op.name in graph.outputs or len(op.inputs) != 1:
            return set()
        names.add(op.name)
        if op.kind == "global_avg_pool":
            return names if op.inputs == (image,) else set()
        if op.kind not in _INSIDE | _GATES:
            return set()
        op = graph.by_name[op.inputs[0]]
