"""The OpGraph: a torch-free graph of operators, the paper's G_seq (section 4.1)."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, count
from math import prod
from typing import NamedTuple

import msgspec

from predictors.channels import OperatorView
from predictors.errors import StretchError
from predictors.kinds import KernelWork
from predictors.operators import kind_of
from predictors.operators.opaque import FIXED
from predictors.rows import Band, Rows, height
from predictors.shapes import Attr, Shape, integer, width
from predictors.slices import Channels, Slice

MAX_OPS = 100_000


class OperatorFacts(NamedTuple):
    """Facts that follow from an operator's kind, attributes and shapes."""

    params: int  # Learned numbers, without batch-norm statistics.
    weights: int  # Numbers that its kernel reads in addition to its inputs; 0 if runtimes fold them into the previous operator.
    macs: int  # Multiply-accumulates.
    work: KernelWork  # Work of its kernel if it is the main operator.


#: Cached facts of operators, by everything that determines them: networks and designs repeat operators.
_facts_cache: dict[tuple[object, ...], OperatorFacts] = {}

#: Maximum number of cached facts.
_MAX_FACTS = 1 << 16


#: Tag of an operator that shares weights with others, such as ``weight=0 bias=1``: a number for each weight of the network that
#: several operators use.
SHARED = "shared"


@dataclass(frozen=True)
class Op:
    """One operator with one output tensor, which has the operator's name."""

    name: str  # Unique in its graph.
    kind: str  # Name in `predictors.operators`, such as ``conv``.
    inputs: tuple[str, ...] = ()  # Names of the operators whose outputs it reads, in order.
    attrs: Mapping[str, Attr] = field(default_factory=dict)  # Attributes of the kind, such as ``kernel`` and ``stride``.
    shape: Shape = ()  # Output shape, batch first; inferred by `OpGraph.build`.
    #: Notes that are kept along the way (segment, processor, origin); two operators that differ only in tags are equal.
    tags: Mapping[str, str] = field(default_factory=dict, compare=False)


@dataclass(frozen=True)
class OpGraph:
    """Operators in topological order, with one or more inputs and outputs.

    Build it with `OpGraph.build`, which infers and checks the shapes.
    """

    name: str  # Name of the network, or of a part of it.
    ops: tuple[Op, ...]  # Operators, including those of kind ``input``.
    outputs: tuple[str, ...]  # Names of the operators whose tensors are the results, in order.

    @classmethod
    def build(cls, name: str, ops: Iterable[Op], outputs: str | Iterable[str]) -> "OpGraph":
        """Return a graph with shapes inferred from its input operators.

        Args:
            ops: Operators in topological order; at least one of kind ``input``.
            outputs: Names of the operators whose tensors are the results.

        Raises:
            StretchError: If a name is used twice or unknown, a kind is
                unknown, or shapes do not fit; the message names the operator.
        """
        shapes: dict[str, Shape] = {}
        done: list[Op] = []
        for op in ops:
            if op.name in shapes:
                raise StretchError(f"operator `{op.name}` of `{name}` is there twice")
            try:
                read = [shapes[i] for i in op.inputs]
            except KeyError as error:
                raise StretchError(f"operator `{op.name}` of `{name}` reads `{error.args[0]}`, which no earlier operator writes") from error
            kind = kind_of(op.kind)
            if len(op.inputs) < kind.min_inputs:
                raise StretchError(f"operator `{op.name}` ({op.kind}) needs {kind.min_inputs} inputs, it has {len(op.inputs)}")
            try:
                shape = kind.shape(read, op.attrs)
            except (KeyError, IndexError, ZeroDivisionError, TypeError) as error:
                raise StretchError(f"operator `{op.name}` ({op.kind}) lacks or has a wrong attribute: {error}") from error
            except ValueError as error:
                raise StretchError(f"operator `{op.name}` ({op.kind}) does not fit its input: {error}") from error
            if min(shape, default=1) <= 0:
                raise StretchError(f"operator `{op.name}` ({op.kind}) has the empty output shape {shape}")
            shapes[op.name] = shape
            same = op.shape == shape and isinstance(op.inputs, tuple)
            done.append(op if same else Op(op.name, op.kind, tuple(op.inputs), op.attrs, shape, op.tags))
        results = (outputs,) if isinstance(outputs, str) else tuple(outputs)
        for output in results:
            if output not in shapes:
                raise StretchError(f"output `{output}` of `{name}` is no operator")
        if not results or len(set(results)) < len(results):
            raise StretchError(f"`{name}` needs an output, and none twice; it has {', '.join(results) or 'none'}")
        if not any(op.kind == "input" for op in done):
            raise StretchError(f"`{name}` needs an input")
        return cls(name, tuple(done), results)

    @cached_property
    def by_name(self) -> dict[str, Op]:
        """Operator by name."""
        return {op.name: op for op in self.ops}

    @cached_property
    def position(self) -> dict[str, int]:
        """Number of each operator in the order of `ops`, by name."""
        return {op.name: number for number, op in enumerate(self.ops)}

    @cached_property
    def consumers(self) -> dict[str, tuple[str, ...]]:
        """Names of the operators that read each operator's tensor."""
        readers: dict[str, list[str]] = {op.name: [] for op in self.ops}
        for op in self.ops:
            for name in dict.fromkeys(op.inputs):
                readers[name].append(op.name)
        return {name: tuple(readers_of_op) for name, readers_of_op in readers.items()}

    @cached_property
    def inputs(self) -> tuple[Op, ...]:
        """The input operators, in order."""
        return tuple(op for op in self.ops if op.kind == "input")

    @property
    def input(self) -> Op:
        """The only input operator, for callers that need exactly one."""
        if len(self.inputs) != 1:
            raise StretchError(f"`{self.name}` has {len(self.inputs)} inputs, and only one is supported here")
        return self.inputs[0]

    @property
    def output(self) -> str:
        """Name of the only output, for callers that need exactly one."""
        if len(self.outputs) != 1:
            raise StretchError(f"`{self.name}` has {len(self.outputs)} outputs, and only one is supported here")
        return self.outputs[0]

    def input_shapes(self, op: Op) -> list[Shape]:
        """Return the shapes of the inputs of `op`."""
        return [self.by_name[name].shape for name in op.inputs]

    def op_macs(self, op: Op) -> int:
        """Return the multiply-accumulates of one operator at the graph's batch size."""
        return kind_of(op.kind).macs(self.input_shapes(op), op.attrs, op.shape)

    def op_weights(self, op: Op) -> dict[str, Shape]:
        """Return the shape of each weight of one operator, by name (``weight``, ``bias``, ``running_mean``, …)."""
        return kind_of(op.kind).weights(self.input_shapes(op), op.attrs)

    def op_facts(self, op: Op) -> OperatorFacts:
        """Return the facts of one operator; equal operators share them."""
        facts = self._facts.get(op.name)
        if facts is None:
            shapes = self.input_shapes(op)
            key = (op.kind, op.shape, *shapes, *op.attrs.items())
            facts = _facts_cache.get(key)
            if facts is None:
                if len(_facts_cache) >= _MAX_FACTS:
                    _facts_cache.clear()
                facts = _facts_cache[key] = _facts(op, shapes)
            self._facts[op.name] = facts
        return facts

    @cached_property
    def _facts(self) -> dict[str, OperatorFacts]:
        return {}

    def op_rows(self, op: Op, start: int, stop: int) -> Band:
        """Return the computation of rows `start` to `stop` of one operator's output: the rows read of each input, and the operator."""
        row_count = height(op.shape)
        if not 0 <= start < stop <= row_count:
            raise StretchError(f"operator `{op.name}` has {row_count} rows, not rows {start} to {stop}")
        return kind_of(op.kind).rows(self.input_shapes(op), op.attrs, Rows(start, stop))

    def op_slice(self, op: Op, channels: Channels) -> Slice:
        """Return the computation of some channels of one operator's output: the channels read of each input, and the operator."""
        if not 0 <= channels.start < channels.stop <= width(op.shape):
            raise StretchError(f"operator `{op.name}` has {width(op.shape)} channels, not channels {channels.start} to {channels.stop}")
        return kind_of(op.kind).slices(OperatorView(self.input_shapes(op), op.attrs, op.shape), channels)

    @cached_property
    def macs(self) -> int:
        """Multiply-accumulates of the whole graph."""
        return sum(self.op_macs(op) for op in self.ops)

    @cached_property
    def params(self) -> int:
        """Number of learned numbers, without batch-norm statistics."""
        return sum(self.op_facts(op).params for op in self.ops)

    def to_json(self) -> bytes:
        """Return the graph as JSON."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes | str) -> "OpGraph":
        """Return a graph from the JSON of `to_json`, after checking it."""
        try:
            raw = msgspec.json.decode(text, type=OpGraph)
        except msgspec.MsgspecError as error:
            raise StretchError(f"this is not an operator graph: {error}") from error
        if len(raw.ops) > MAX_OPS:
            raise StretchError(f"`{raw.name}` has {len(raw.ops)} operators, the limit is {MAX_OPS}")
        graph = cls.build(raw.name, raw.ops, raw.outputs)
        if graph != raw:
            raise StretchError(f"`{raw.name}` states shapes that its operators do not have")
        return graph


class SharedWeight(NamedTuple):
    """A weight that several operators share."""

    holders: tuple[tuple[str, str], ...]  # Operators that use the weight, each with its name for the weight.
    size: int  # Number of elements.
    copies: int  # Learned numbers that would be added if each operator had its own copy.


def shared_weights(graphs: Iterable[OpGraph]) -> list[SharedWeight]:
    """Return the weights that operators share (`SHARED`), except those with different shapes or used twice by one operator."""
    roots: dict[str, list[tuple[str, str, Shape]]] = {}
    for graph in graphs:
        for op in graph.ops:
            weights = graph.op_weights(op) if SHARED in op.tags else {}
            for word in op.tags.get(SHARED, "").split():
                key, _, number = word.partition("=")
                roots.setdefault(number, []).append((op.name, key, weights.get(key, ())))
    result = []
    for members in roots.values():
        names, (shape, *others) = {(name, key): key for name, key, _ in members}, {shape for *_, shape in members}
        if 1 < len(names) == len(members) and not others:
            learned = not any(key.startswith("running_") for key in names.values())
            result.append(SharedWeight(tuple(names), prod(shape), (len(names) - 1) * prod(shape) if learned else 0))
    return result


def _facts(op: Op, shapes: Sequence[Shape]) -> OperatorFacts:
    kind = kind_of(op.kind)
    sizes = {name: prod(shape) for name, shape in kind.weights(shapes, op.attrs).items()}
    params = sum(size for name, size in sizes.items() if not name.startswith("running_")) - integer(op.attrs, FIXED, 0)
    weights = 0 if kind.folds else sum(sizes.values())
    return OperatorFacts(params, weights, kind.macs(shapes, op.attrs, op.shape), kind.work(shapes, op.attrs, op.shape))


def unique_name(preferred: str, taken: Callable[[str], bool]) -> str:
    """Return the preferred name, with a number appended if it is taken."""
    return next(name for name in chain([preferred], (f"{preferred}_{i}" for i in count(1))) if not taken(name))
