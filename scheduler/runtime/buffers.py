"""Memory of the tensors between subgraphs: tensors that are never alive together share it, and joins of adjacent tensors copy nothing."""

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
from scheduler.delegates.base import Allocate, Array, AsyncInvocation, Compiled, Invocation, pieces_of
from scheduler.memory import Lifetime, Lifetimes, MemoryPlan, Planner
from scheduler.memory.plan import plan_naive, plan_offset
from scheduler.runtime.plan import ExecutionPlan, PlannedSubgraph
from scheduler.runtime.trace import Span


def zeros(size: int) -> NDArray[np.uint8]:
    """Return `size` zero bytes of ordinary memory."""
    return np.zeros(size, np.uint8)


#: Target array and source array of a copy.
Copy = tuple[Array, Array]


class _Copies:
    """Copies at the border of a subgraph, with start and end of the last run."""

    def __init__(self, name: str, copies: Sequence[Copy]) -> None:
        self._name, self._copies = name, tuple(copies)
        self.start = self.end = 0

    def run(self) -> None:
        self.start = perf_counter_ns()
        for target, source in self._copies:
            np.copyto(target, source)
        self.end = perf_counter_ns()

    @property
    def spans(self) -> tuple[tuple[str, int, int], ...]:
        return ((self._name, self.start, self.end),) if self._copies else ()


class BorderInvocation(Invocation):
    """Copies the inputs, runs, copies the outputs, then checks them."""

    def __init__(self, call: Invocation, before: Sequence[Copy], after: Sequence[Copy], check: Callable[[], None] | None) -> None:
        self._call, self._check = call, check
        self._before, self._after = _Copies("rows", before), _Copies("join", after)

    def run(self) -> None:
        """Copy the inputs, compute, copy the outputs and check them."""
        self._before.run()
        self._call.run()
        self._end()

    def _end(self) -> None:
        self._after.run()
        if self._check is not None:
            self._check()

    def conversions(self) -> Sequence[tuple[str, int, int]]:
        """Return the copies, and the delegate's conversions between them."""
        return (*self._before.spans, *self._call.conversions(), *self._after.spans)


class AsyncBorderInvocation(BorderInvocation, AsyncInvocation):
    """Copies the inputs, enqueues, waits, copies the outputs, then checks them."""

    _call: AsyncInvocation

    def enqueue(self) -> None:
        """Copy the inputs, then enqueue: the processor reads its buffers from then on."""
        self._before.run()
        self._call.enqueue()

    def wait(self) -> None:
        """Wait for the enqueued work, copy the outputs, then check them."""
        self._call.wait()
        self._end()

    def times(self) -> tuple[int, int] | None:
        """Return start of the first copy and end of the last in ns, or the processor's times where nothing is copied."""
        times = self._call.times()
        if times is None:
            return None
        return self._before.start if self._before.spans else times[0], self._after.end if self._after.spans else times[1]


def wrap_invocation(
    call: Invocation, before: Sequence[Copy], after: Sequence[Copy] = (), check: Callable[[], None] | None = None
) -> Invocation:
    """Return an invocation that copies before and after, then checks outputs; `call` itself if it needs neither."""
    if not before and not after and check is None:
        return call
    return (AsyncBorderInvocation if isinstance(call, AsyncInvocation) else BorderInvocation)(call, before, after, check)


#: Alignment in bytes of every tensor that is not a slice of another: a cache line, and the widest registers.
ALIGNMENT = 64

#: Maximum number of tensors that share memory: with more tensors, the search for disjoint lifetimes costs more than it saves.
MAX_SHARED = 1000


class Buffers:
    """One array per tensor, and the remaining work of each join.

    Where a join concatenates its tensors, a branch writes directly into its
    slice of the join's output. Tensors share memory if one is dead before the
    other is written in every possible order of steps: the dependencies count,
    not the queues. If a slice consists of several pieces, a subgraph reads and
    writes it through a separate buffer, in use while the subgraph runs, unless
    its delegate takes such slices.
    """

    def __init__(self, plan: ExecutionPlan, tensors: Sequence[Tensor], planner: Planner = plan_offset, allocate: Allocate = zeros) -> None:
        self._tensors = {tensor.name: tensor for tensor in tensors}
        slices, copied = self._slices(plan)
        #: Separate buffers for slices of several pieces that a subgraph reads or writes; each buffer is a tensor like the others.
        self._own_memory = self._make_own_memory(plan, slices)
        #: Tensors that are not slices of another, each with its slices.
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
        """Memory of all buffers in bytes."""
        return self.memory.total_bytes

    def _make_own_memory(self, plan: ExecutionPlan, slices: Mapping[str, tuple[JoinEntry, int]]) -> dict[tuple[str, str], str]:
        wanted: dict[tuple[str, str], Tensor] = {}
        for subgraph in plan.subgraphs.values():
            for name, rows in subgraph.rows.items():
                tensor = self._tensors[name]
                if math.prod(tensor.shape[: ROW_AXIS[tensor.layout]]) > 1:
                    shape = cut_shape(tensor.shape, rows, tensor.layout)
                    wanted[subgraph.name, name] = msgspec.structs.replace(tensor, name=f"rows of {name} for {subgraph.name}", shape=shape)
        for name, (join, _) in slices.items():
            if not self._is_one_piece(join):
                wanted[plan.writers[name], name] = msgspec.structs.replace(self._tensors[name], name=f"{name} before {join.name}")
        own_memory = {}
        for key, tensor in wanted.items():
            own_memory[key] = tensor.name
            while own_memory[key] in self._tensors:
                own_memory[key] += "'"
            self._tensors[own_memory[key]] = tensor
        return own_memory

    def reads(self, subgraph: PlannedSubgraph, takes_slices: bool = False) -> tuple[dict[str, Array], list[Copy]]:
        """Return the tensors to bind to a subgraph's code, and the copies to make before it runs.

        Args:
            takes_slices: Whether the code reads slices of several pieces.
        """
        rows = {name: cut(self.arrays[name], subgraph.rows.get(name), self._tensors[name].layout) for name in subgraph.inputs}
        bound = self._bound(subgraph, rows, takes_slices)
        return bound, [(bound[name], rows[name]) for name in rows if bound[name] is not rows[name]]

    def writes(self, subgraph: PlannedSubgraph, takes_slices: bool = False) -> tuple[dict[str, Array], list[Copy]]:
        """Return the tensors to bind to a subgraph's code, and the copies to make after it has run.

        Args:
            takes_slices: Whether the code writes slices of several pieces.
        """
        slices = {name: self.arrays[name] for name in subgraph.outputs}
        bound = self._bound(subgraph, slices, takes_slices)
        return bound, [(slices[name], bound[name]) for name in slices if bound[name] is not slices[name]]

    def _bound(self, subgraph: PlannedSubgraph, arrays: Mapping[str, Array], takes_slices: bool) -> dict[str, Array]:
        bound = dict(arrays)
        for name, array in arrays.items():
            own = self._own_memory.get((subgraph.name, name))
            if own is not None and not (takes_slices and pieces_of(array)):
                bound[name] = self.arrays[own]
        return bound

    def new_arrays(self, names: Sequence[str]) -> dict[str, Array]:
        """Return new arrays with the shapes and types of the named tensors."""
        return {name: np.zeros(self._tensors[name].shape, np.dtype(self._tensors[name].dtype)) for name in names}

    def _slices(self, plan: ExecutionPlan) -> tuple[dict[str, tuple[JoinEntry, int]], dict[str, list[tuple[str, int]]]]:
        """Return the tensors inside a join's output with their first channel, and the tensors that must be copied into it."""
        slices: dict[str, tuple[JoinEntry, int]] = {}
        copied: dict[str, list[tuple[str, int]]] = {}
        # Outermost joins first: an inner join's output is then a slice already.
        for join in reversed(list(plan.joins.values())):
            if not meeting_of(join.kind).in_place:
                continue
            copied[join.name], start, axis = [], 0, self._axis(join)
            for name in join.inputs:
                # only its branch may write a slice of several pieces, and no other step may read it
                private = plan.writers.get(name) in plan.subgraphs and plan.readers[name] == (join.name,) and name not in plan.outputs
                if name not in slices and (private or self._is_one_piece(join)):
                    slices[name] = (join, start)
                else:
                    copied[join.name].append((name, start))
                start += self._tensors[name].shape[axis]
        return slices, copied

    def _is_one_piece(self, join: JoinEntry) -> bool:
        """Return whether each slice of a join's output is contiguous."""
        return math.prod(self._tensors[join.output].shape[: self._axis(join)]) == 1

    def _lifetimes(self, plan: ExecutionPlan) -> Lifetimes:
        """Return the steps in which memory is in use: arrival of the inputs, the plan's steps and collection of the outputs."""
        arrival, collection = 0, len(plan.order) + 1
        number = {name: position + 1 for name, position in plan.order.items()}
        uses: dict[str, set[int]] = {name: set() for name in self._tensors}
        writer = {tensor: number[name] for tensor, name in plan.writers.items()}
        for tensor, steps in uses.items():
            steps.add(writer.get(tensor, arrival))
            steps.update(number[name] for name in plan.readers.get(tensor, ()))
        for tensor in plan.outputs:
            uses[tensor].add(collection)
        for (subgraph, _), name in self._own_memory.items():
            uses[name] = {number[subgraph]}
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
        """Return the slice of a join's output that a tensor fills."""
        axis = self._axis(join)
        return self.arrays[join.output][(slice(None),) * axis + (slice(start, start + self._tensors[name].shape[axis]),)]

    def _combine(self, join: JoinEntry) -> Callable[[], None]:
        """Return the work of a join that reads all its tensors and writes one."""
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
    """Return the outermost tensor that contains `name`."""
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
    """Return a compiled subgraph tied to the buffers of its tensors, matched by name, or by order if the names differ.

    Args:
        outputs_into: Arrays to write instead of the buffers.
        check: Function that checks the outputs after each run.
    """
    inputs, outputs = (
        list(compiled_names) if set(compiled_names) == set(planned_names) else planned_names
        for compiled_names, planned_names in ((compiled.inputs, subgraph.inputs), (compiled.outputs, subgraph.outputs))
    )
    reads, before = buffers.reads(subgraph, compiled.takes_slices)
    writes, after = buffers.writes(subgraph, compiled.takes_slices) if outputs_into is None else (outputs_into, [])
    try:
        call = compiled.bind([reads[name] for name in inputs], [writes[name] for name in outputs])
    except StretchError as error:
        error.message = f"{subgraph.file} does not fit the bundle: {error.message}"
        error.args = (error.message,)
        raise
    return wrap_invocation(call, before, after, check)


def subgraph_spans(subgraph: PlannedSubgraph, queue: str, call: Invocation, start: int, end: int) -> list[Span]:
    """Return the spans of a subgraph that has just run: the subgraph, then the conversions at its border, which are inside that span."""
    result = [Span(subgraph.name, subgraph.processor, queue, "subgraph", start, end)]
    return result + [
        Span(f"{subgraph.name} {conversion}", subgraph.processor, queue, "conversion", a, b) for conversion, a, b in call.conversions()
    ]
