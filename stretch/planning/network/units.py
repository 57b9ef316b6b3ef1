"""Cut points, blocks, and which blocks may be removed."""

import itertools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, TypeVar

from predictors.graph import Op, OpGraph
from predictors.operators import kind_of
from predictors.shapes import ints

Resolution = tuple[int, int]
C = TypeVar("C", bound=Callable[..., Any])

#: Kinds that read nothing but feature maps, and two that make one of a vector or of tokens.
_OF_MAPS = frozenset(
    {"conv", "max_pool", "avg_pool", "global_avg_pool", "global_max_pool", "pad", "upsample", "unflatten", "channels_first"}
)


def memoised(function: C) -> C:
    """A function or method that keeps its answers on the object that is its first argument: planning asks for the same ones again and again."""
    name = f"_memo_{function.__name__}"

    @wraps(function)
    def call(of: Any, *key: Any) -> Any:
        known = vars(of).setdefault(name, {})
        if key not in known:
            known[key] = function(of, *key)
        return known[key]

    return call  # type: ignore[return-value]


@dataclass(frozen=True)
class Region:
    """Operators between two successive cut points of a graph."""

    start: str  # Cut point that is read.
    end: str  # Cut point that is written.
    ops: tuple[str, ...]  # Names of the operators after `start` up to and with `end`.


@dataclass(frozen=True)
class Block:
    """A single-entry single-exit part of a stage, with its trailing activations."""

    start: str  # Tensor it reads.
    end: str  # Tensor it writes.
    ops: tuple[str, ...]  # Names of its operators.
    run: int  # Number of the run of equal blocks it belongs to.
    removable: bool  # Whether it is a *unit*: equal input and output shape, and not the entry block of its run.


def cone(graph: OpGraph, names: Iterable[str], there: Collection[str] = ()) -> set[str]:
    """Operators that some tensors are computed by, without those that are there already; none for what arrives."""
    members: set[str] = set()
    left = list(names)
    while left:
        op = graph.by_name[left.pop()]
        if op.name not in members and op.name not in there and op.kind != "input":
            members.add(op.name)
            left += op.inputs
    return members


def components(names: Iterable[str], sets: Iterable[Sequence[str]]) -> list[list[str]]:
    """Names that are in one of the sets together, and those of overlapping sets, in the order of the names."""
    root = {name: name for name in names}

    def find(name: str) -> str:
        while root[name] != name:
            root[name] = root[root[name]]
            name = root[name]
        return name

    for first, *others in sets:
        for name in others:
            root[find(name)] = find(first)
    union: dict[str, list[str]] = {}
    for name in root:
        union.setdefault(find(name), []).append(name)
    return list(union.values())


def runnable(preferred: Sequence[int], sources: Sequence[Collection[int]]) -> list[int]:
    """Numbers in an order in which each follows its sources, as near to the preferred one as that allows."""
    ordered: dict[int, None] = {}
    left = list(preferred)
    while left:
        number = next(item for item in left if ordered.keys() >= set(sources[item]))
        left.remove(number)
        ordered[number] = None
    return list(ordered)


@memoised
def cut_points(graph: OpGraph) -> list[str]:
    """Tensors through which every path from input to output passes, in order: no edge spans them."""
    cuts = unspanned(graph.ops)
    return cuts[: cuts.index(graph.output) + 1] if graph.output in cuts else cuts


def unspanned(ops: Sequence[Op]) -> list[str]:
    """Operators, of some in an order in which they can run, behind which all inputs have come and that no edge between others spans."""
    position = {op.name: i for i, op in enumerate(ops)}
    last_use = list(range(len(ops)))
    for i, op in enumerate(ops):
        for name in op.inputs:
            if name in position:
                last_use[position[name]] = i
    cuts, reach, waiting = [], 0, sum(op.kind == "input" for op in ops)
    for i, op in enumerate(ops):
        waiting -= op.kind == "input"
        # an input that has not come yet is read behind this
        if reach <= i and not waiting:
            cuts.append(op.name)
        reach = max(reach, last_use[i])
    return cuts


def regions(graph: OpGraph) -> list[Region]:
    """The parts between successive cut points, in order."""
    cuts = cut_points(graph)
    position = {op.name: i for i, op in enumerate(graph.ops)}
    names = [op.name for op in graph.ops]
    return [Region(a, b, tuple(names[position[a] + 1 : position[b] + 1])) for a, b in itertools.pairwise(cuts)]


def feature_maps(graph: OpGraph) -> frozenset[str]:
    """Tensors whose axes are batch, channels, height and width: not those of operators that only state their shape, nor what reads them elementwise."""
    members: set[str] = set()
    for op in graph.ops:
        known = not op.inputs or any(name in members for name in op.inputs) or op.kind in _OF_MAPS
        if len(op.shape) == 4 and known and not kind_of(op.kind).stated:
            members.add(op.name)
    return frozenset(members)


def resolution(op: Op) -> Resolution:
    """Height and width of an operator's output; (1, 1) for vectors."""
    return (op.shape[2], op.shape[3]) if len(op.shape) == 4 else (1, 1)


def is_block(graph: OpGraph, region: Region) -> bool:
    """Whether a region is a block: parallel paths around weights at its own resolution; a gate works on pooled vectors only and is none."""
    if len(region.ops) == 1:
        return False
    end = graph.by_name[region.end]
    return any(
        not kind_of(op.kind).weightless and resolution(op) == resolution(end) and (resolution(end) != (1, 1) or len(op.shape) == 4)
        for op in (graph.by_name[name] for name in region.ops)
    )


def find_blocks(graph: OpGraph) -> list[Block]:
    """Blocks of a segment, in order.

    Blocks of one output shape that follow each other are a run. The entry block
    of a run, which is never removed, is its first region where that changes the
    shape, else the chain of weighted operators in front of it (the first MBConv
    of a stage), else its first region after all. A segment without parallel
    paths has convolution-activation chains as blocks. Weightless operators
    behind the last block (pooling) belong to no block: every depth keeps them.
    """
    parts = [r for r in regions(graph) if is_block(graph, r)] or _conv_chains(graph)
    if not parts:
        return [Block(graph.input.name, graph.output, tuple(op.name for op in graph.ops if op.kind != "input"), 0, False)]
    names = [op.name for op in graph.ops]
    position = {name: i for i, name in enumerate(names)}
    cuts = set(cut_points(graph))
    blocks: list[Block] = []
    run, key, done = -1, None, graph.input.name
    for part in parts:
        start, end = graph.by_name[part.start], graph.by_name[part.end]
        here = (resolution(end), end.shape[1])
        same_shape = start.shape == end.shape
        chain = _weighted(graph, names[position[done] + 1 : position[part.start] + 1])
        opens = here != key or chain
        if opens:
            run, key = run + 1, here
        tail = _push_past(graph, part.end, cuts, elementwise_only=True)
        if opens and (chain and same_shape):
            # The chain in front is the entry block, so this region is a unit already.
            blocks.append(Block(done, part.start, tuple(names[position[done] + 1 : position[part.start] + 1]), run, False))
            done, opens = part.start, False
        ops = tuple(names[position[done] + 1 : position[tail] + 1])
        blocks.append(Block(done, tail, ops, run, same_shape and not opens))
        done = tail
    rest = tuple(names[position[done] + 1 :])
    if _weighted(graph, rest):
        blocks.append(Block(done, graph.output, rest, run + 1, False))
    return blocks


def _weighted(graph: OpGraph, names: list[str] | tuple[str, ...]) -> bool:
    return any(not kind_of(graph.by_name[name].kind).weightless for name in names)


def _push_past(graph: OpGraph, name: str, cuts: set[str], *, elementwise_only: bool) -> str:
    """The last cut point reached from cut point `name` over weightless operators alone."""
    while True:
        readers = graph.consumers[name]
        if len(readers) != 1 or readers[0] not in cuts:
            return name
        op = graph.by_name[readers[0]]
        kind = kind_of(op.kind)
        if not kind.weightless or len(op.inputs) != 1 or len(op.shape) != 4 or (elementwise_only and not kind.elementwise):
            return name
        name = op.name


def push_past_weightless(graph: OpGraph, name: str) -> str:
    """Where a boundary at cut point `name` comes to lie: behind activations and pooling, which make the exchanged tensor smaller."""
    return _push_past(graph, name, set(cut_points(graph)), elementwise_only=False)


def _conv_chains(graph: OpGraph) -> list[Region]:
    """Dense K×K convolutions with their batch-norm and activation, where there are no parallel paths."""
    conv_chains: list[Region] = []
    cuts = set(cut_points(graph))
    for op in graph.ops:
        if op.kind == "conv" and op.attrs["groups"] == 1 and max(ints(op.attrs, "kernel")) > 1 and op.name in cuts:
            end = _push_past(graph, op.name, cuts, elementwise_only=True)
            names = [o.name for o in graph.ops]
            conv_chains.append(Region(op.inputs[0], end, tuple(names[names.index(op.name) : names.index(end) + 1])))
    return conv_chains
