"""When tensors are alive, as a partial order: steps that may run at the same time have no order.

Two tensors may share memory only if one of them is certainly dead before the
other is first written, whatever runs when. In a chain of steps that is the
familiar comparison of intervals; between branches that run side by side it
never holds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Lifetime:
    """One tensor."""

    name: str  # Unique among the tensors planned together.
    bytes: int  # Its size, above zero.
    steps: tuple[int, ...]  # Numbers of the steps that write or read it, at least one.


class Lifetimes:
    """Tensors and the order of the steps that use them.

    Args:
        tensors: In the order in which they are first written.
        after: For each step, the steps that must have ended before it starts;
            each is of a smaller number. None for steps that run one after the other.

    Raises:
        ValueError: If a name is there twice, a size is not above zero, a tensor
            is not used, or a step comes before one that it needs.
    """

    def __init__(self, tensors: Sequence[Lifetime], after: Sequence[Sequence[int]] | None = None) -> None:
        self.tensors = tuple(tensors)
        if len({tensor.name for tensor in tensors}) != len(tensors):
            raise ValueError("two tensors have the same name")
        for tensor in tensors:
            if tensor.bytes < 1 or not tensor.steps or min(tensor.steps) < 0:
                raise ValueError(f"tensor `{tensor.name}` has {tensor.bytes} bytes and {len(tensor.steps)} steps")
        count = max((step for tensor in tensors for step in tensor.steps), default=-1) + 1
        if after is not None and len(after) < count:
            raise ValueError(f"a tensor is used by step {count - 1}, and there are {len(after)}")
        self._after = [tuple(needed) for needed in after] if after is not None else [(i - 1,) if i else () for i in range(count)]
        for step, needed in enumerate(self._after):
            if any(not 0 <= other < step for other in needed):
                raise ValueError(f"step {step} needs a step that does not come before it")

    @cached_property
    def before(self) -> NDArray[np.bool_]:
        """Element (a, b): tensor a is dead before tensor b is first written, whatever runs when."""
        earlier = self._earlier
        masks = [sum(1 << step for step in set(tensor.steps)) for tensor in self.tensors]
        order = np.zeros((len(masks), len(masks)), np.bool_)
        for j, tensor in enumerate(self.tensors):
            common = ~0
            for step in tensor.steps:
                common &= earlier[step]
            for i, mask in enumerate(masks):
                order[i, j] = i != j and mask & common == mask
        return order

    @property
    def overlap(self) -> NDArray[np.bool_]:
        """Element (a, b): tensors a and b may be alive at the same time; a tensor overlaps itself."""
        overlap: NDArray[np.bool_] = ~(self.before | self.before.T)
        return overlap

    @cached_property
    def lower_bound(self) -> int:
        """Bytes that no plan can do without: the heaviest set of tensors any two of which overlap.

        By Dilworth's theorem for weights, the value of the least flow that
        carries each tensor's bytes through it along chains of tensors that can
        follow one another, solved as a linear program.
        """
        if not self.tensors:
            return 0
        from scipy.optimize import linprog
        from scipy.sparse import coo_array

        before, count = self.before, len(self.tensors)
        direct = before & ~((before.astype(np.float32) @ before.astype(np.float32)) > 0)  # without steps that others make
        sources, targets = (indices.tolist() for indices in np.nonzero(direct))
        edges = len(sources)
        # Flow on edges, then what enters and what leaves at each tensor; flow through a tensor ≥ its bytes.
        weights = np.array([tensor.bytes for tensor in self.tensors], float)
        scale = float(weights.max())
        rows, columns, values = [], [], []
        for e, (i, j) in enumerate(zip(sources, targets, strict=True)):
            rows += [j, i]
            columns += [e, e]
            values += [1.0, -1.0]
        for i in range(count):
            rows += [i, i]
            columns += [edges + i, edges + count + i]
            values += [1.0, -1.0]
        balance = coo_array((values, (rows, columns)), shape=(count, edges + 2 * count)).tocsr()
        into = balance.maximum(0)  # what flows into each tensor
        cost = np.concatenate([np.zeros(edges), np.ones(count), np.zeros(count)])
        solved = linprog(cost, A_ub=-into, b_ub=-weights / scale, A_eq=balance, b_eq=np.zeros(count), method="highs")
        return round(float(solved.fun) * scale)

    @cached_property
    def _earlier(self) -> list[int]:
        """For each step, the steps that have certainly ended before it starts, as bits."""
        masks: list[int] = []
        for needed in self._after:
            bits = 0
            for other in needed:
                bits |= masks[other] | 1 << other
            masks.append(bits)
        return masks


def chained(parts: Sequence[Lifetimes], follows: Mapping[int, Sequence[int]]) -> Lifetimes:
    """Several sets of tensors as one, their steps ordered as the parts are."""
    tensors: list[Lifetime] = []
    after: list[tuple[int, ...]] = []
    last: list[tuple[int, ...]] = []
    for number, part in enumerate(parts):
        base = len(after)
        if any(other >= number for other in follows.get(number, ())):
            raise ValueError(f"part {number} follows a part that does not come before it")
        entry = tuple(step for other in follows.get(number, ()) for step in last[other])
        needed_by_others = {other for needed in part._after for other in needed}
        after += [tuple(base + other for other in needed) or entry for needed in part._after]
        ends = tuple(base + step for step in range(len(part._after)) if step not in needed_by_others)
        last.append(ends or entry)
        tensors += [Lifetime(f"{number}:{t.name}", t.bytes, tuple(base + step for step in t.steps)) for t in part.tensors]
    return Lifetimes(tensors, after)
