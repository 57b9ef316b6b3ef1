"""Memory of the tensors that cross subgraphs, shared by those that are never alive together, laid out so that a join of tensors side by side copies nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns

import msgspec
import numpy as np
from numpy.typing import NDArray

from predictors.errors import StretchError
from predictors.joins import meeting_of
from scheduler.bundle.manifest import JoinEntry, Tensor
from scheduler.bundle.rows import ROW_AXIS, cut, cut_shape
from scheduler.delegates.base import Allocate, Array, AsyncInvocation, Compiled, Invocation
from scheduler.memory import Lifetime, Lifetimes, MemoryPlan, Planner
from scheduler.memory.plan import plan_naive, plan_offset
from scheduler.runtime.plan import ExecutionPlan, PlannedSubgraph
from scheduler.runtime.trace import Span


def zeros(size: int) -> NDArray[np.uint8]:
    """Allocate ordinary memory of zeros."""
    return np.zeros(size, np.uint8)


#: Memory that a subgraph reads, and the rows of a tensor to copy there.
Copy = tuple[Array, Array]


class _RowCopies:
    """Copies, and when the last of them began and ended."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        self._copies = tuple(copies)
        self.start = self.end = 0

    def run(self) -> None:
        self.start = perf_counter_ns()
        for target, rows in self._copies:
            np.copyto(target, rows)
        self.end = perf_counter_ns()

    @property
    def span(self) -> tuple[str, int, int]:
        return ("rows", self.start, self.end)


class CheckedInvocation(Invocation):
    """Copies rows, runs, then checks the outputs."""

    def __init__(self, call: Invocation, copies: Sequence[Copy], check: Callable[[], None] | None) -> None:
        self._call, self._check = call, check
        self._rows = _RowCopies(copies) if copies else None

    def run(self) -> None:
        """Copy, compute, check."""
        if self._rows is not None:
            self._rows.run()
        self._call.run()
        if self._check is not None:
            self._check()

    def conversions(self) -> Sequence[tuple[str, int, int]]:
        """The copy, then what the delegate converts."""
        return (*(() if self._rows is None else (self._rows.span,)), *self._call.conversions())


class AsyncCheckedInvocation(CheckedInvocation, AsyncInvocation):
    """Copies rows, enqueues, waits, then checks the outputs."""

    _call: AsyncInvocation

    def enqueue(self) -> None:
        """Copy, then enqueue: the processor reads its buffers from then on."""
        if self._rows is not None:
            self._rows.run()
        self._call.enqueue()

    def wait(self) -> None:
        """Wait for the enqueued work, then check."""
        self._call.wait()
        if self._check is not None:
            self._check()

    def times(self) -> tuple[int, int] | None:
        """From the copy on."""
        times = self._call.times()
        return times if times is None or self._rows is None else (self._rows.start, times[1])


def wrap_invocation(call: Invocation, copies: Sequence[Copy], check: Callable[[], None] | None = None) -> Invocation:
    """Return an invocation that copies rows before and checks outputs after; `call` itself if neither is needed."""
    if not copies and check is None:
        return call
    return (AsyncCheckedInvocation if isinstance(call, AsyncInvocation) else CheckedInvocation)(call, copies, check)


#: Every tensor that is no slice of another starts at a multiple of this many bytes: a cache line, and the widest registers.
ALIGNMENT = 64

#: Maximum number of tensors that share memory: with more, the search for disjoint lifetimes costs more than it saves.
MAX_SHARED = 1000


class Buffers:
    """One array per tensor, and the work that is left for each join.

    A branch whose slice of a join's output is contiguous (channels outermost,
    batch 1) writes straight into that slice, where the join puts its tensors
    side by side. Tensors share memory if
    one is dead before the other is written whatever runs when and wherever:
    the dependencies count, not the queues. Rows that a subgraph reads
    are a view where they are one piece; else it has memory of its own for them,
    in use while it runs.
    """

    def __init__(self, plan: ExecutionPlan, tensors: Sequence[Tensor], planner: Planner = plan_offset, allocate: Allocate = zeros) -> None:
        self._tensors = {tensor.name: tensor for tensor in tensors}
        #: Tensors of which a subgraph reads rows that are not one piece: its own memory for them, a tensor among the others.
        self._row_buffers = self._make_row_buffers(plan)
        slices, copied = self._slices(plan)
        #: Tensors that are no slice of another, with their slices.
        self._slices_of = {name: [name] for name in self._tensors if name not in slices}
        for name in slices:
            self._slices_of[_outermost(name, slices)].append(name)
        self.lifetimes = self._lifetimes(plan)
        used_planner = planner if len(self._slices_of) <= MAX_SHARED else plan_naive
        self.memory: MemoryPlan = used_planner(self.lifetimes, ALIGNMENT)
        self.arrays: dict[str, Array] = self._allocate(allocate)
        for name, (join, start) in slices.items():  # outermost first
            self.arrays[name] = self._join_slice(join, name, start)
        self.joins: dict[str, Callable[[], None] | None] = {
            join.name: self._copy(join, copied[join.name]) if join.name in copied else self._combine(join) for join in plan.joins.values()
        }

    @property
    def bytes(self) -> int:
        """Memory of all buffers."""
        return self.memory.total_bytes

    def _make_row_buffers(self, plan: ExecutionPlan) -> dict[tuple[str, str], str]:
        row_buffers = {}
        for subgraph in plan.subgraphs.values():
            for name, rows in subgraph.rows.items():
                tensor = self._tensors[name]
                if math.prod(tensor.shape[: ROW_AXIS[tensor.layout]]) == 1:
                    continue
                buffer_name = f"rows of {name} for {subgraph.name}"
                while buffer_name in self._tensors:
                    buffer_name += "'"
                self._tensors[buffer_name] = msgspec.structs.replace(
                    tensor, name=buffer_name, shape=cut_shape(tensor.shape, rows, tensor.layout)
                )
                row_buffers[subgraph.name, name] = buffer_name
        return row_buffers

    def reads(self, subgraph: PlannedSubgraph) -> tuple[dict[str, Array], list[Copy]]:
        """Return the tensors that a subgraph's code is bound to, and the rows to copy there before it runs."""
        bound, copies = {}, []
        for name in subgraph.inputs:
            tensor = self._tensors[name]
            bound[name] = cut(self.arrays[name], subgraph.rows.get(name), tensor.layout)
            value = self._row_buffers.get((subgraph.name, name))
            if value is not None:
                copies.append((self.arrays[value], bound[name]))
                bound[name] = self.arrays[value]
        return bound, copies

    def new_arrays(self, names: Sequence[str]) -> dict[str, Array]:
        """New arrays of the shapes and types of some tensors."""
        return {name: np.zeros(self._tensors[name].shape, np.dtype(self._tensors[name].dtype)) for name in names}

    def _slices(self, plan: ExecutionPlan) -> tuple[dict[str, tuple[JoinEntry, int]], dict[str, list[tuple[str, int]]]]:
        """Tensors that lie in a join's output and where their channels start, and those that have to be copied there."""
        slices: dict[str, tuple[JoinEntry, int]] = {}
        copied: dict[str, list[tuple[str, int]]] = {}
        # Outermost joins first: an inner join's output is then a slice already.
        for join in reversed(list(plan.joins.values())):
            if not meeting_of(join.kind).in_place:
                continue
            copied[join.name], start, axis = [], 0, self._axis(join)
            for name in join.inputs:
                if name not in slices and math.prod(self._tensors[join.output].shape[:axis]) == 1:
                    slices[name] = (join, start)
                else:
                    copied[join.name].append((name, start))
                start += self._tensors[name].shape[axis]
        return slices, copied

    def _lifetimes(self, plan: ExecutionPlan) -> Lifetimes:
        """When memory is in use, by steps: the arrival of the inputs, the plan's own, and the collection of the outputs."""
        arrival, collection = 0, len(plan.order) + 1
        number = {name: position + 1 for name, position in plan.order.items()}
        uses: dict[str, set[int]] = {name: set() for name in self._tensors}
        writer = {tensor: number[name] for tensor, name in plan.writers.items()}
        for tensor, steps in uses.items():
            steps.add(writer.get(tensor, arrival))
            steps.update(number[name] for name in plan.readers.get(tensor, ()))
        for tensor in plan.outputs:
            uses[tensor].add(collection)
        for (reader, _), band in self._row_buffers.items():
            uses[band] = {number[reader]}
        reads = [sorted({writer.get(tensor, arrival) for tensor in plan.step(name).inputs}) for name in plan.order]
        after = [[], *reads, list(range(1, collection))]
        lifetimes = [
            Lifetime(name, self._bytes(name), tuple(sorted({step for part in parts for step in uses[part]})))
            for name, parts in self._slices_of.items()
        ]
        return Lifetimes(sorted(lifetimes, key=lambda lifetime: lifetime.steps[0]), after)

    def _bytes(self, name: str) -> int:
        tensor = self._tensors[name]
        return math.prod(tensor.shape) * np.dtype(tensor.dtype).itemsize

    def _allocate(self, allocate: Allocate) -> dict[str, Array]:
        arenas = []
        for number, size in enumerate(self.memory.sizes):
            try:
                raw = allocate(size + ALIGNMENT)
            except (MemoryError, ValueError, OSError, OverflowError) as error:
                name = max((n for n, arena in self.memory.arenas.items() if arena == number), key=self._bytes)
                raise StretchError(f"there is no memory for the tensor `{name}` of shape {list(self._tensors[name].shape)}") from error
            start = -raw.ctypes.data % ALIGNMENT
            arenas.append(raw[start : start + size])
        allocated = {}
        for name, arena in self.memory.arenas.items():
            tensor, start = self._tensors[name], self.memory.offsets[name]
            allocated[name] = arenas[arena][start : start + self._bytes(name)].view(np.dtype(tensor.dtype)).reshape(tensor.shape)
        return allocated

    def _axis(self, join: JoinEntry) -> int:
        tensor = self._tensors[join.output]
        return meeting_of(join.kind).axis(tensor.layout, len(tensor.shape))

    def _join_slice(self, join: JoinEntry, name: str, start: int) -> Array:
        """The slice of a join's output that a tensor fills."""
        axis = self._axis(join)
        return self.arrays[join.output][(slice(None),) * axis + (slice(start, start + self._tensors[name].shape[axis]),)]

    def _combine(self, join: JoinEntry) -> Callable[[], None]:
        """The work of a join that reads all of its tensors to write one."""
        compute, axis = meeting_of(join.kind).combine, self._axis(join)
        parts, output = [self.arrays[name] for name in join.inputs], self.arrays[join.output]

        def combine() -> None:
            compute(parts, axis, output)

        return combine

    def _copy(self, join: JoinEntry, parts: Sequence[tuple[str, int]]) -> Callable[[], None] | None:
        copies = [(self._join_slice(join, name, start), self.arrays[name]) for name, start in parts]
        if not copies:
            return None

        def copy() -> None:
            for place, source in copies:
                np.copyto(place, source)

        return copy


def _outermost(name: str, slices: Mapping[str, tuple[JoinEntry, int]]) -> str:
    """Return the outermost tensor that contains another."""
    while name in slices:
        name = slices[name][0].output
    return name


def bind_subgraph(
    subgraph: PlannedSubgraph,
    compiled: Compiled,
    buffers: Buffers,
    outputs_into: Mapping[str, Array] | None = None,
    check: Callable[[], None] | None = None,
) -> Invocation:
    """A compiled subgraph tied to the buffers of its tensors: by their names, else in their order; rows that are no piece are copied first.

    Args:
        check: Looks at the outputs after each run.
    """
    inputs, outputs = (
        list(compiled_names) if set(compiled_names) == set(planned_names) else planned_names
        for compiled_names, planned_names in ((compiled.inputs, subgraph.inputs), (compiled.outputs, subgraph.outputs))
    )
    reads, copies = buffers.reads(subgraph)
    try:
        writes = buffers.arrays if outputs_into is None else outputs_into
        return wrap_invocation(compiled.bind([reads[name] for name in inputs], [writes[name] for name in outputs]), copies, check)
    except StretchError as error:
        error.message = f"{subgraph.file} does not fit the bundle: {error.message}"
        error.args = (error.message,)
        raise


def subgraph_spans(subgraph: PlannedSubgraph, queue: str, call: Invocation, start: int, end: int) -> list[Span]:
    """Return the spans of a subgraph that has just run: itself, then the conversions at its border, which are within it."""
    result = [Span(subgraph.name, subgraph.processor, queue, "subgraph", start, end)]
    return result + [
        Span(f"{subgraph.name} {conversion}", subgraph.processor, queue, "conversion", a, b) for conversion, a, b in call.conversions()
    ]
