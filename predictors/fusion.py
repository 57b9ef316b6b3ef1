"""From operators to kernels: what a backend launches after it has fused operators.

The rules are data (`predictors/fusion_rules/*.toml`): chains of operators that
become one kernel, and operators for which nothing is launched.
"""

from dataclasses import dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from predictors.errors import StretchError, UnknownNameError
from predictors.graph import Op, OpGraph
from predictors.operators import kind_of, kinds

RULE_FOLDER = Path(__file__).parent / "fusion_rules"

_KINDS = Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]


class FusionRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A chain of operators that becomes one kernel.

    Args:
        start: Kinds (or set names) the chain begins with.
        then: Steps, each a list of kinds (or set names); a step is taken if the
            only reader of the chain's last tensor is of such a kind, and else left out.
    """

    start: _KINDS
    then: tuple[_KINDS, ...] = ()


class FusionRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one backend turns operators into kernels.

    Args:
        id: Name of the backend; equals the file name.
        source: Where the rules come from.
        free: Kinds for which nothing is launched.
        rules: Chains; the first that starts with an operator's kind is used.
        sets: Named sets of kinds, so that rules stay short. Where a kind may stand,
            a set or a trait that kinds have (``pointwise``) may stand for all of them.
    """

    id: str
    source: str
    free: tuple[str, ...]
    rules: tuple[FusionRule, ...]
    sets: dict[str, tuple[str, ...]] = {}

    def kinds(self, names: tuple[str, ...]) -> frozenset[str]:
        """Operator kinds that a list of kinds, set names and traits stands for."""
        listed = [each for name in names for each in self.sets.get(name, (name,))]
        return frozenset(kind for each in listed for kind in _with_trait(each) or (each,))


def _with_trait(trait: str) -> list[str]:
    """Kinds that have a trait (`predictors.kinds`)."""
    return [name for name in kinds if trait in kind_of(name).traits]


class KernelCost(NamedTuple):
    """What the time of a kernel depends on; equal costs take equal time.

    Args:
        kind: One of `predictors.devices.KERNEL_KINDS`.
        in_channels: Input channels of one group.
        out_channels: Output channels of one group.
        groups: Groups; 1 for a dense kernel.
        taps: Positions of the convolution or pooling window.
        pixels: Output positions, batch included.
        reads: Elements of the tensors read.
        writes: Elements of the tensor written.
        weights: Weight elements.
    """

    kind: str
    in_channels: int
    out_channels: int
    groups: int
    taps: int
    pixels: int
    reads: int
    writes: int
    weights: int


@dataclass(frozen=True)
class Kernel:
    """One launch of a backend.

    Args:
        name: Name of its main operator.
        ops: Names of the operators it computes.
        cost: What its time depends on.
        macs: Multiply-accumulates.
    """

    name: str
    ops: tuple[str, ...]
    cost: KernelCost
    macs: int


@cache
def load_rules(backend: str) -> FusionRules:
    """The fusion rules of a backend.

    Raises:
        UnknownNameError: If there is no such backend.
        StretchError: If its file is not a set of rules.
    """
    known = [path.stem for path in RULE_FOLDER.glob("*.toml")]
    if backend not in known:
        raise UnknownNameError.among("backend", backend, known)
    path = RULE_FOLDER / f"{backend}.toml"
    try:
        rules = msgspec.toml.decode(path.read_bytes(), type=FusionRules)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StretchError(f"{path.name} is not a set of fusion rules: {error}") from error
    listed = rules.kinds(rules.free).union(*(rules.kinds(names) for rule in rules.rules for names in (rule.start, *rule.then)))
    unknown = sorted(listed - set(kinds))
    if unknown:
        raise StretchError(f"{path.name} names `{unknown[0]}`, which is neither an operator kind, a trait of some, nor one of its sets")
    return rules


class Fuser:
    """Turns graphs into kernels by one backend's rules.

    Args:
        rules: The backend's rules.
    """

    def __init__(self, rules: FusionRules) -> None:
        self.rules = rules
        self._free = rules.kinds(rules.free)
        self._chains: dict[str, tuple[frozenset[str], ...]] = {}
        for rule in reversed(rules.rules):
            for kind in rules.kinds(rule.start):
                self._chains[kind] = tuple(rules.kinds(step) for step in rule.then)

    def fuse(self, graph: OpGraph) -> list[Kernel]:
        """Kernels of `graph`, in an order in which they can run."""
        taken: set[str] = set()
        kernels = []
        for op in graph.ops:
            if op.name in taken or op.kind in self._free:
                continue
            chain, members = [op], [op.name]
            for step in self._chains.get(op.kind, ()):
                path = self._only_reader(graph, chain[-1])
                if path and path[-1].kind in step and path[-1].name not in taken:
                    chain.append(path[-1])
                    members += [passed.name for passed in path]
            taken.update(members)
            kernels.append(_kernel(graph, chain, members))
        return kernels

    def _only_reader(self, graph: OpGraph, op: Op) -> list[Op]:
        """The one operator that reads `op`, after the free ones on the way; empty if there are more."""
        path: list[Op] = []
        while op.name != graph.output:
            readers = graph.consumers[op.name]
            if len(readers) != 1:
                return []
            op = graph.by_name[readers[0]]
            path.append(op)
            if op.kind not in self._free:
                return path
        return []


def fuse(graph: OpGraph, backend: str) -> list[Kernel]:
    """Kernels that `backend` launches for `graph`.

    Raises:
        UnknownNameError: If there is no such backend.
    """
    return Fuser(load_rules(backend)).fuse(graph)


def _kernel(graph: OpGraph, chain: list[Op], members: list[str]) -> Kernel:
    # A convolution may follow a pad or precede element-wise steps: it is the main operator.
    main = next((op for op in chain if not kind_of(op.kind).weightless), chain[0])
    inside = set(members)
    outside = {name for op in chain for name in op.inputs if name not in inside}
    reads = sum(prod(graph.by_name[name].shape) for name in outside)
    # Weights that are folded into the convolution are so before it runs.
    weights = sum(prod(shape) for op in chain if not kind_of(op.kind).folds for shape in graph.op_weights(op).values())
    macs = sum(graph.op_macs(op) for op in chain)
    work = kind_of(main.kind).work(graph.input_shapes(main), main.attrs, main.shape)
    return Kernel(main.name, tuple(members), KernelCost(*work, reads, prod(chain[-1].shape), weights), macs)
