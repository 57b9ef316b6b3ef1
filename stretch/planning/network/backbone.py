"""The backbone of a network with several inputs or outputs, and what lies beside it.

One tensor in and one out is a chain of segments between cut points. A detector's pyramid reads three stages of its backbone,
a tower has an input of its own. The *backbone* is the part that is such a chain, with most multiply-accumulates; a *side* is
a part beside it that runs whole, as soon as what it reads is there. A tensor of the backbone that a side reads or the network
returns is a *tap*: a segment ends there, with the original's channels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from predictors.errors import StretchError
from predictors.graph import Op, OpGraph
from stretch.planning.network.units import components, memoised, runnable, unspanned

#: Tag of a tap.
TAP = "tap"

#: Sides that a network is divided into, at most: more are joined, in their order.
MOST_SIDES = 24


@dataclass(frozen=True)
class Backbone:
    """A network's backbone and its sides."""

    graph: OpGraph  # The backbone, of one input and one output; taps have the tag `TAP`.
    before: tuple[OpGraph, ...] = ()  # Sides that compute what the backbone reads, in an order in which they can run.
    after: tuple[OpGraph, ...] = ()  # The others, likewise.

    @property
    def sides(self) -> tuple[OpGraph, ...]:
        """All sides, in an order in which they can run, the backbone between those before and those after it."""
        return (*self.before, *self.after)

    @property
    def taps(self) -> frozenset[str]:
        """Tensors that a side reads, or the network returns."""
        return frozenset(op.name for op in self.graph.ops if is_tap(op))


def is_tap(op: Op) -> bool:
    """Whether an operator of a backbone computes a tap."""
    return op.tags.get(TAP) == "true"


@memoised
def backbone_of(graph: OpGraph) -> Backbone:
    """The backbone of a network; the network itself where one tensor goes in and one comes out."""
    if len(graph.inputs) == len(graph.outputs) == 1:
        return Backbone(graph)
    finder = _Finder(graph)
    names = finder.chain()
    inside = set(names[1:])
    outside = [op for op in graph.ops if op.kind != "input" and op.name not in inside]
    read = {name for op in outside for name in op.inputs} | set(graph.outputs)
    ops = [Op(names[0], "input", attrs={"shape": graph.by_name[names[0]].shape}, tags=_tags(names[0] in read))]
    ops += [replace(graph.by_name[name], tags=_tags(name in read)) for name in names[1:]]
    needed = finder.ancestors(names[0])
    before, after = (finder.parts([op for op in outside if (op.name in needed) is early], inside) for early in (True, False))
    sides = [_side(graph, f"side{number}", part) for number, part in enumerate([*before, *after], start=1)]
    return Backbone(OpGraph.build(graph.name, ops, names[-1]), tuple(sides[: len(before)]), tuple(sides[len(before) :]))


def _tags(tapped: bool) -> dict[str, str]:
    return {TAP: "true"} if tapped else {}


def _side(graph: OpGraph, name: str, ops: Sequence[Op]) -> OpGraph:
    """Some operators as a graph of their own."""
    inside = {op.name for op in ops}
    reads = dict.fromkeys(source for op in ops for source in op.inputs if source not in inside)
    entries = [Op(source, "input", attrs={"shape": graph.by_name[source].shape}) for source in reads]
    ends = [op.name for op in ops if op.name in graph.outputs or any(reader not in inside for reader in graph.consumers[op.name])]
    return OpGraph.build(name, [*entries, *ops], ends)


class _Finder:
    """What leads to what in a network, as bits of its operators' numbers."""

    def __init__(self, graph: OpGraph) -> None:
        self.graph = graph
        self.number = {op.name: i for i, op in enumerate(graph.ops)}
        self.above: list[int] = []
        for i, op in enumerate(graph.ops):
            bits = 1 << i
            for name in op.inputs:
                bits |= self.above[self.number[name]]
            self.above.append(bits)
        outputs = {name: 1 << i for i, name in enumerate(graph.outputs)}
        self.reaches = [outputs.get(op.name, 0) for op in graph.ops]
        for i in reversed(range(len(graph.ops))):
            for name in graph.ops[i].inputs:
                self.reaches[self.number[name]] |= self.reaches[i]
        self.macs = [graph.op_macs(op) for op in graph.ops]

    def ancestors(self, name: str) -> set[str]:
        """Operators that a tensor depends on, its own among them."""
        bits = self.above[self.number[name]]
        return {op.name for i, op in enumerate(self.graph.ops) if bits >> i & 1}

    def chain(self) -> list[str]:
        """The backbone's tensor that it reads, and its operators, in order: most multiply-accumulates of those whose taps are cut points."""
        best: tuple[tuple[int, int], list[str]] | None = None
        for end in self._ends():
            inside = [i for i in range(end + 1) if self.above[end] >> i & 1]
            cuts = [self.number[name] for name in unspanned([self.graph.ops[i] for i in inside])]
            first = cuts[0]
            members = [i for i in inside if i > first]
            outside = [self.graph.ops[i].name for i in set(range(len(self.graph.ops))) - set(members)]
            read = {name for other in outside for name in self.graph.by_name[other].inputs} | set(self.graph.outputs)
            tapped = {i for i in members if self.graph.ops[i].name in read}
            if not members or not tapped <= set(cuts):
                continue
            value = (sum(self.macs[i] for i in members), len(members))
            if best is None or value > best[0]:
                best = value, [self.graph.ops[i].name for i in (first, *members)]
        if best is None:
            what = f"`{self.graph.name}` has no operator that computes with one tensor alone, so there is nothing to divide"
            raise StretchError(what, "give a network with layers")
        return best[1]

    def _ends(self) -> Iterable[int]:
        """Numbers of operators that a backbone may end with."""
        for i, op in enumerate(self.graph.ops):
            readers = self.graph.consumers[op.name]
            merges = len(readers) == 1 and len(set(self.graph.by_name[readers[0]].inputs)) > 1
            if op.kind != "input" and (merges or len(readers) != 1 or op.name in self.graph.outputs):
                yield i

    def parts(self, ops: Sequence[Op], backbone: set[str]) -> list[list[Op]]:
        """Operators beside the backbone as parts that can run each at a time.

        One part leads to the same results, waits for the same tensor of the backbone, and hangs together.
        """
        latest: dict[str, int] = {}
        pairs: list[tuple[str, str]] = []
        names = {op.name for op in ops}
        for op in ops:
            waits = [self.number[name] if name in backbone else latest.get(name, -1) for name in op.inputs]
            latest[op.name] = max(waits, default=-1)
            for name in op.inputs:
                same = name in names and self.reaches[self.number[name]] == self.reaches[self.number[op.name]]
                if same and latest[name] == latest[op.name]:
                    pairs.append((name, op.name))
        by_name = self.graph.by_name
        groups = [[by_name[name] for name in group] for group in components(latest, pairs)]
        of = {op.name: number for number, group in enumerate(groups) for op in group}
        waits = [{of[name] for op in group for name in op.inputs if name in of} - {number} for number, group in enumerate(groups)]
        groups = [groups[number] for number in runnable(range(len(groups)), waits)]
        if len(groups) <= MOST_SIDES:
            return groups
        # neighbours are joined where there are too many
        bounds = [round(i * len(groups) / MOST_SIDES) for i in range(MOST_SIDES + 1)]
        return [[op for group in groups[a:b] for op in group] for a, b in pairwise(bounds)]
