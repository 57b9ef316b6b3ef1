"""Grouped convolutions split into parts: an ordinary convolution for each group, whose concatenated results are the same.

For runtimes that compute dense and depthwise convolutions, and none in between. A following operator with a number or a rule for
each channel (a batch norm, an activation) goes along with the parts, so that it is still folded into convolutions.
"""

from collections.abc import Sequence
from dataclasses import replace

from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from predictors.rewrites import exact, rewrites
from predictors.shapes import integer

#: Maximum number of parts of a convolution: each is a launch, and beyond them the exchange with the CPU costs no more.
MAX_PARTS = 64

#: Entry of a profile's `unsupported` for grouped convolutions that are not depthwise, which are not a separate kind.
GROUPED = "grouped_conv"

#: Tag of an operator that is a part of another one; its name is the other's and then the tag's value.
PART = "part"


def is_grouped(graph: OpGraph, op: Op) -> bool:
    """Whether an operator is a grouped convolution that is not depthwise."""
    return op.kind == "conv" and integer(op.attrs, "groups") > 1 and graph.op_facts(op).work.kind == "grouped"


def owner_of(op: Op) -> str:
    """Return the operator that an operator is a part of, or its own name."""
    return op.name.removesuffix(op.tags.get(PART, ""))


@rewrites.register(f"{GROUPED}=parts")
@exact.register(f"{GROUPED}=parts")
def split_grouped(graph: OpGraph) -> OpGraph:
    """The graph whose grouped convolutions are slices, ordinary convolutions and a concat; those of over `MOST_PARTS` groups stay."""
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
    """A convolution, the batch norm that alone reads it, and the activation that alone reads that."""
    chain = [conv]
    for fits in (lambda op: op.kind == "batch_norm", lambda op: kind_of(op.kind).weightless and kind_of(op.kind).elementwise):
        readers = graph.consumers[chain[-1].name]
        if len(readers) == 1 and chain[-1].name not in graph.outputs:
            following = graph.by_name[readers[0]]
            if following.inputs == (chain[-1].name,) and following.shape == chain[-1].shape and fits(following):
                chain.append(following)
    return chain


def _parts(graph: OpGraph, chain: Sequence[Op]) -> list[Op]:
    """Operators in the place of a convolution and what goes along; the last has the name and the result of the chain's last."""
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
