"""From operators to kernels: the kernel launches of a backend after operator fusion.

The rules are data (`predictors/fusion_rules/*.toml`): chains of operators that
become one kernel, operators without a launch, and the conditions
under which a backend chooses one of several implementations.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from predictors.errors import StretchError, UnknownNameError
from predictors.graph import Op, OpGraph
from predictors.in_place import copied_parts, is_view
from predictors.kinds import KernelWork
from predictors.operators import kind_of, kinds
from predictors.rewrites import GROUPED, is_grouped
from predictors.shapes import Shape

# Idioms: groups of operators that converters recognise as one operator of their runtime.
#
# Networks write ``x · relu6(x + 3) / 6`` if their framework had no hard swish
# when they were made; converters replace it with the single operator.

#: Names of idioms that rules may list.
IDIOMS = ("hard_swish", "hard_sigmoid")

#: Tolerance for constants such as a sixth, which files store with any number of digits.
_SLACK = 1e-3


@dataclass(frozen=True)
class RecognisedGraph:
    """A graph with single operators in place of idioms."""

    graph: OpGraph  # The graph; operators keep their names, and an idiom has the name of its last operator.
    parts: Mapping[str, tuple[str, ...]]  # For each idiom, the names of the replaced operators in order.

    def names(self, op: str) -> tuple[str, ...]:
        """Return the operators of the original graph that one operator of this graph replaces."""
        return self.parts.get(op, (op,))


def recognise(graph: OpGraph, idioms: Collection[str]) -> RecognisedGraph:
    """Replace idioms with single operators.

    Args:
        idioms: Idioms to recognise, from `IDIOMS`.
    """
    recognised = {idiom[-1].name: idiom for op in graph.ops if (idiom := _idiom(graph, op, idioms))}
    if not recognised:
        return RecognisedGraph(graph, {})
    absorbed = {op.name for idiom in recognised.values() for op in idiom[:-1]}
    ops = []
    for op in graph.ops:
        if op.name in recognised:
            # Four operators mean that the input is used twice, as a factor and under the clamp.
            kind = "hard_swish" if len(recognised[op.name]) == 4 else "hard_sigmoid"
            ops.append(replace(op, kind=kind, inputs=recognised[op.name][0].inputs, attrs={}))
        elif op.name not in absorbed:
            ops.append(op)
    return RecognisedGraph(
        OpGraph(graph.name, tuple(ops), graph.outputs), {name: tuple(op.name for op in ops) for name, ops in recognised.items()}
    )


def _idiom(graph: OpGraph, start: Op, idioms: Collection[str]) -> tuple[Op, ...]:
    """Return the operators of the idiom that begins with `start`, or an empty tuple."""
    if start.kind != "add_scalar" or start.attrs["value"] != 3:
        return ()
    clamp = _reader(graph, start)
    last = _reader(graph, clamp) if clamp and clamp.kind == "relu6" else None
    if clamp is None or last is None:
        return ()
    if _is_one_sixth(last) and "hard_sigmoid" in idioms:
        return (start, clamp, last)
    sixth = _reader(graph, last)
    if last.kind == "mul" and start.inputs[0] in last.inputs and sixth and _is_one_sixth(sixth) and "hard_swish" in idioms:
        return (start, clamp, last, sixth)
    return ()


def _reader(graph: OpGraph, op: Op) -> Op | None:
    """Return the only operator that reads another; None if there are several or it is a result of the graph."""
    readers = graph.consumers[op.name]
    return graph.by_name[readers[0]] if len(readers) == 1 and op.name not in graph.outputs else None


def _is_one_sixth(op: Op) -> bool:
    value = op.attrs.get("value")
    return op.kind == "mul_scalar" and isinstance(value, int | float) and abs(value * 6 - 1) < _SLACK


RULE_FOLDER = Path(__file__).parent / "fusion_rules"

#: Kinds of kernels whose names need no operator.
_NAMED_BY_KIND = ("conv1x1", "conv", "depthwise", "grouped", "linear", "matmul")

_KINDS = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class FusionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chain of operators that becomes one kernel."""

    start: _KINDS  # Kinds (or set names) at the start of the chain.
    #: Steps, each a list of kinds (or set names); a step is taken if the only reader of the chain's last tensor is of such a kind, and
    #: skipped otherwise. An operator with several inputs is taken by the chain that has the last of them.
    then: tuple[_KINDS, ...] = ()
    links: tuple[str, ...] = ()  # Kinds (or set names) that may follow after the steps, any number of times.


class Implementation(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An implementation that a backend chooses for some kernels; its name becomes their `variant`."""

    name: Annotated[str, msgspec.Meta(min_length=1)]  # Name such as ``winograd``.
    kinds: _KINDS  # Kinds of kernels with this implementation.
    taps: int | None = None  # Required number of window positions; None for any.
    max_stride: int | None = None  # Maximum number of input positions per output position.
    max_pixels: int | None = None  # Maximum number of output positions; None for any.
    min_in_channels: int = 1  # Minimum number of input channels.
    min_out_channels: int = 1  # Minimum number of output channels.
    tile: Annotated[int, msgspec.Meta(ge=1)] = 1  # Rows and columns of output computed at a time.
    min_tiles: int = 1  # Minimum number of such tiles.

    def applies_to(self, work: KernelWork, shape: Shape) -> bool:
        """Return whether the backend chooses this implementation.

        Args:
            shape: Shape of the kernel's result, batch and channels first.
        """
        return (
            work.kind in self.kinds
            and self.taps in (None, work.taps)
            and (self.max_stride is None or work.stride <= self.max_stride)
            and (self.max_pixels is None or work.pixels <= self.max_pixels)
            and work.in_channels >= self.min_in_channels
            and work.out_channels >= self.min_out_channels
            and prod(-(-size // self.tile) for size in shape[2:]) >= self.min_tiles
        )


class FusionRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rules by which one backend turns operators into kernels."""

    id: str  # Name of the backend; equals the file name.
    source: str  # Source of the rules.
    free: tuple[str, ...] = ()  # Kinds of operators without a launch.
    rules: tuple[FusionRule, ...] = ()  # Chains; the first one that starts with an operator's kind is used.
    #: Named sets of kinds, so that rules stay short. A set, or a trait of kinds (``pointwise``), may be listed in place of a kind, for
    #: all of its kinds.
    sets: dict[str, tuple[str, ...]] = {}
    idioms: tuple[str, ...] = ()  # Idioms that the backend's converter recognises.
    implementations: tuple[Implementation, ...] = ()  # Choices between implementations; the first one that applies counts.
    base: str | None = None  # Backend whose chains, sets and idioms are used, if only the implementations differ.
    #: Kinds that concatenate tensors and whose inputs are written in place: only other inputs are copied.
    placed: tuple[str, ...] = ()
    viewed: tuple[str, ...] = ()  # Kinds that select a range of channels, without a launch if it begins with a block.
    lanes: Annotated[int, msgspec.Meta(ge=1)] = 1  # Channels per block; an input is written in place if it begins and ends with a block.

    def kinds(self, names: tuple[str, ...]) -> frozenset[str]:
        """Return the operator kinds in a list of kinds, set names and traits, except for those after a minus sign."""
        listed = [kind for name in names for kind in self.sets.get(name, (name,))]
        without = {name[1:] for name in listed if name.startswith("-")}
        return frozenset(kind for name in listed if name[0] != "-" for kind in _with_trait(name) or (name,)) - without


def _with_trait(trait: str) -> list[str]:
    """Return the kinds with a trait (`predictors.kinds`)."""
    return [name for name in kinds if trait in kind_of(name).traits]


class KernelCost(NamedTuple):
    """Facts that the time of a kernel depends on; equal costs take equal time."""

    kind: str  # One of `predictors.devices.KERNEL_KINDS`.
    in_channels: int  # Input channels of one group.
    out_channels: int  # Output channels of one group.
    groups: int  # Number of groups; 1 for a dense kernel.
    taps: int  # Positions of the convolution or pooling window.
    pixels: int  # Output positions, including the batch.
    reads: int  # Elements of the input tensors.
    writes: int  # Elements of the output tensor.
    weights: int  # Weight elements.
    stride: int = 1  # Input positions per output position: down times across.
    variant: str = ""  # Implementation or operator within the kind, such as ``winograd`` or ``softmax``; empty if there is only one.


class Kernel(NamedTuple):
    """One launch of a backend."""

    name: str  # Name of its main operator.
    ops: tuple[str, ...]  # Names of the operators that it computes.
    cost: KernelCost  # Facts that its time depends on.
    macs: int  # Multiply-accumulates.
    elsewhere: bool = False  # Whether the CPU computes it, because the processor does not.


@cache
def load_rules(backend: str) -> FusionRules:
    """Return the fusion rules of a backend."""
    rule_names = [path.stem for path in RULE_FOLDER.glob("*.toml")]
    if backend not in rule_names:
        raise UnknownNameError.among("backend", backend, rule_names)
    path = RULE_FOLDER / f"{backend}.toml"
    try:
        rules = msgspec.toml.decode(path.read_bytes(), type=FusionRules)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StretchError(f"{path.name} is not a set of fusion rules: {error}") from error
    if rules.base is not None:
        base = load_rules(rules.base)
        rules = msgspec.structs.replace(rules, free=base.free, rules=base.rules, idioms=base.idioms, sets=base.sets)
    listed = rules.kinds((*rules.free, *rules.placed, *rules.viewed)).union(
        *(rules.kinds(names) for rule in rules.rules for names in (rule.start, *rule.then, rule.links))
    )
    unknown = sorted((listed - set(kinds)) | (set(rules.idioms) - set(IDIOMS)))
    if unknown:
        raise StretchError(f"{path.name} names `{unknown[0]}`, which is neither an operator kind, a trait of some, nor one of its sets")
    return rules


class Fuser:
    """Turns graphs into kernels by the rules of one backend.

    Args:
        rules: The backend's rules.
        lacking: Kinds that the processor does not compute, which may include `GROUPED`; each becomes a separate kernel, computed elsewhere.
    """

    def __init__(self, rules: FusionRules, lacking: Collection[str] = ()) -> None:
        self.rules, self._lacking = rules, frozenset(lacking)
        self._free, self._placed, self._viewed = rules.kinds(rules.free), rules.kinds(rules.placed), rules.kinds(rules.viewed)
        self._choices: dict[str, list[Implementation]] = {}
        for choice in rules.implementations:
            for kind in choice.kinds:
                self._choices.setdefault(kind, []).append(choice)
        self._chains: dict[str, tuple[tuple[frozenset[str], ...], frozenset[str]]] = {}
        for rule in reversed(rules.rules):
            steps, links = tuple(rules.kinds(step) for step in rule.then), rules.kinds(rule.links)
            self._chains.update(dict.fromkeys(rules.kinds(rule.start), (steps, links)))

    def fuse(self, graph: OpGraph) -> list[Kernel]:
        """Return the kernels of `graph` in an executable order."""
        recognised = recognise(graph, self.rules.idioms)
        done: set[str] = set()
        kernels = []
        copied = copied_parts(recognised.graph, self._placed, self._free | self._viewed, self.rules.lanes)
        for op in recognised.graph.ops:
            if op.name in done:
                continue
            done.add(op.name)
            if self._is_unsupported(recognised.graph, op):
                kernels.append(_kernel(recognised, [op], [op.name], self._choices)._replace(elsewhere=True))
                continue
            if op.kind in self._free or is_view(op, self._viewed, self.rules.lanes):
                continue
            if op.name in copied:
                kernels += [_copy(recognised, op, copied[op.name])] if copied[op.name] else []
                continue
            chain, members = [op], [op.name]
            steps, links = self._chains.get(op.kind, ((), frozenset()))
            path = self._only_reader(recognised.graph, op)
            for step in steps:
                if self._follow(recognised.graph, path, step, chain, members, done):
                    path = self._only_reader(recognised.graph, chain[-1])
            while self._follow(recognised.graph, path, links, chain, members, done):
                path = self._only_reader(recognised.graph, chain[-1])
            kernels.append(_kernel(recognised, chain, members, self._choices))
        return kernels

    def _follow(
        self, graph: OpGraph, path: Sequence[Op], kinds: frozenset[str], chain: list[Op], members: list[str], done: set[str]
    ) -> bool:
        """Add the operator after a chain, at the end of `path`, if its kind is allowed; return whether it was added."""
        if not path or path[-1].kind not in kinds or self._is_unsupported(graph, path[-1]):
            return False
        following, names = path[-1], [op.name for op in path]
        # A chain cannot read a tensor that another kernel has yet to compute or that is repeated along the image.
        if len(following.inputs) > 1 and (following.shape != chain[-1].shape or not self._ready(graph, following, {*done, *names})):
            return False
        chain.append(following)
        members += names
        done.update(names)
        return True

    def _is_unsupported(self, graph: OpGraph, op: Op) -> bool:
        """Return whether the processor does not compute an operator."""
        return op.kind in self._lacking or (GROUPED in self._lacking and is_grouped(graph, op))

    def _ready(self, graph: OpGraph, op: Op, done: set[str]) -> bool:
        """Return whether all inputs of an operator are computed, ignoring free operators before them."""
        for name in op.inputs:
            source = graph.by_name[name]
            while source.name not in done and source.kind in self._free and len(source.inputs) == 1:
                source = graph.by_name[source.inputs[0]]
            if source.name not in done:
                return False
        return True

    def _only_reader(self, graph: OpGraph, op: Op) -> list[Op]:
        """Return the path to the only operator that reads `op`, through free operators; empty if there are several."""
        path: list[Op] = []
        while op.name not in graph.outputs:
            readers = graph.consumers[op.name]
            if len(readers) != 1:
                return []
            op = graph.by_name[readers[0]]
            path.append(op)
            if op.kind not in self._free:
                return path
        return []


def fuse(graph: OpGraph, backend: str) -> list[Kernel]:
    """Return the kernels that `backend` launches for `graph`."""
    return Fuser(load_rules(backend)).fuse(graph)


def _copy(recognised: RecognisedGraph, op: Op, parts: Sequence[str]) -> Kernel:
    """Return the kernel that copies some of the tensors that `op` concatenates."""
    moved = sum(prod(recognised.graph.by_name[name].shape) for name in parts)
    work = recognised.graph.op_facts(op).work
    return Kernel(op.name, recognised.names(op.name), KernelCost(*work[:-1], moved, moved, 0, work.stride, op.kind), 0)


def _kernel(recognised: RecognisedGraph, chain: list[Op], members: list[str], choices: Mapping[str, Sequence[Implementation]]) -> Kernel:
    graph = recognised.graph
    # A convolution may follow a pad or precede elementwise steps: it is the main operator.
    main = next((op for op in chain if not kind_of(op.kind).weightless), chain[0])
    outside = {name for op in chain for name in op.inputs}.difference(members)
    reads = sum([prod(graph.by_name[name].shape) for name in outside])
    # Weights folded into a convolution are folded before it runs, so they are not read.
    facts = [graph.op_facts(op) for op in chain]
    weights, macs = sum([fact.weights for fact in facts]), sum([fact.macs for fact in facts])
    work = graph.op_facts(main).work
    operator = "" if work.kind in _NAMED_BY_KIND else str(main.attrs.get("variant", main.kind))
    variant = next((choice.name for choice in choices.get(work.kind, ()) if choice.applies_to(work, main.shape)), operator)
    cost = KernelCost(*work[:-1], reads, prod(chain[-1].shape), weights, work.stride, variant)
    return Kernel(main.name, tuple([name for member in members for name in recognised.names(member)]), cost, macs)
