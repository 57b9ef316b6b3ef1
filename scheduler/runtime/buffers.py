"""Memory of the tensors that cross subgraphs, laid out so that a concat join copies nothing."""

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from predictors.errors import StretchError
from scheduler.bundle.manifest import Tensor
from scheduler.delegates.base import Array, Compiled, Invocation
from scheduler.runtime.plan import ExecutionPlan, PlannedJoin, PlannedSubgraph
from scheduler.runtime.trace import Span


class Buffers:
    """One array per tensor, and the work that is left for each join.

    A branch whose slice of a concat join's output is contiguous (channels
    outermost, batch 1) writes straight into that slice.

    Args:
        plan: The joins.
        tensors: Shape and type of each tensor.

    Raises:
        StretchError: If there is not enough memory.
    """

    def __init__(self, plan: ExecutionPlan, tensors: Sequence[Tensor]) -> None:
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self.arrays: dict[str, Array] = {}
        self.joins: dict[str, Callable[[], None] | None] = {}
        # Outermost joins first: an inner join's output is then a slice already.
        for join in reversed(list(plan.joins.values())):
            self.joins[join.name] = self._add(join) if join.kind == "sum" else self._concat(join)
        for name in self._tensors:
            self._array(name)

    @property
    def bytes(self) -> int:
        """Memory of all buffers; what lies inside another counts once."""
        return sum(array.nbytes for array in self.arrays.values() if array.base is None)

    def _array(self, name: str) -> Array:
        if name not in self.arrays:
            tensor = self._tensors[name]
            try:
                self.arrays[name] = np.zeros(tensor.shape, np.dtype(tensor.dtype))
            except MemoryError as error:
                raise StretchError(f"there is no memory for the tensor `{name}` of shape {list(tensor.shape)}") from error
        return self.arrays[name]

    def _add(self, join: PlannedJoin) -> Callable[[], None]:
        output = self._array(join.output)
        first, second, *others = (self._array(name) for name in join.inputs)

        def add() -> None:
            np.add(first, second, out=output)
            for other in others:
                np.add(output, other, out=output)

        return add

    def _concat(self, join: PlannedJoin) -> Callable[[], None] | None:
        output = self._array(join.output)
        axis = output.ndim - 1 if self._tensors[join.output].layout == "NHWC" else 1
        copies: list[tuple[Array, Array]] = []
        start = 0
        for name in join.inputs:
            stop = start + self._tensors[name].shape[axis]
            place = output[(slice(None),) * axis + (slice(start, stop),)]
            if name not in self.arrays and math.prod(output.shape[:axis]) == 1:
                self.arrays[name] = place
            else:
                copies.append((place, self._array(name)))
            start = stop
        if not copies:
            return None

        def copy() -> None:
            for place, source in copies:
                np.copyto(place, source)

        return copy


def bind_subgraph(subgraph: PlannedSubgraph, compiled: Compiled, arrays: Mapping[str, Array]) -> Invocation:
    """A compiled subgraph tied to the buffers of its tensors.

    Raises:
        StretchError: If it does not fit them; names the file.
    """
    try:
        return compiled.bind([arrays[subgraph.input]], [arrays[subgraph.output]])
    except StretchError as error:
        raise StretchError(f"{subgraph.file} does not fit the bundle: {error.message}", error.hint) from error


def subgraph_spans(subgraph: PlannedSubgraph, queue: str, call: Invocation, start: int, end: int) -> list[Span]:
    """What a subgraph that has just run leaves in a trace: itself, then the conversions at its border, which lie within it.

    Args:
        subgraph: Which.
        queue: Where it ran.
        call: What ran.
        start: When it started, on the clock of `time.perf_counter_ns`.
        end: When it ended.
    """
    processor = subgraph.placement.processor
    found = [Span(subgraph.name, processor, queue, "subgraph", start, end)]
    return found + [Span(f"{subgraph.name} {what}", processor, queue, "conversion", a, b) for what, a, b in call.conversions()]
