"""What a memory planner gives: where each tensor lies."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from predictors.registry import Registry
from scheduler.memory.lifetimes import Lifetimes


@dataclass(frozen=True)
class MemoryPlan:
    """Where tensors lie."""

    arenas: Mapping[str, int]  # Number of the arena of each tensor.
    offsets: Mapping[str, int]  # Its first byte there.
    sizes: tuple[int, ...]  # Bytes of each arena. A shared object is an arena whose tensors all start at 0.

    @property
    def total_bytes(self) -> int:
        """Bytes of all arenas."""
        return sum(self.sizes)

    def problem(self, lifetimes: Lifetimes) -> str | None:
        """Why this plan would damage a tensor, or None."""
        overlap = lifetimes.overlap
        for i, tensor in enumerate(lifetimes.tensors):
            arena, start = self.arenas[tensor.name], self.offsets[tensor.name]
            if start < 0 or start + tensor.bytes > self.sizes[arena]:
                return f"tensor `{tensor.name}` leaves its arena"
            for j in range(i):
                other = lifetimes.tensors[j]
                begin = self.offsets[other.name]
                if overlap[i, j] and self.arenas[other.name] == arena and begin < start + tensor.bytes and start < begin + other.bytes:
                    return f"tensors `{other.name}` and `{tensor.name}` overlap in time and memory"
        return None


#: Gives tensors their place; the number is the alignment of offsets in bytes.
Planner = Callable[[Lifetimes, int], MemoryPlan]

#: Each planner's file registers it at its end: `planners.register("naive")(plan_naive)`.
planners: Registry[Planner] = Registry("memory planner")


def shared_objects(lifetimes: Lifetimes, groups: list[list[int]]) -> MemoryPlan:
    """A plan in which each group of tensors takes turns in memory of its own."""
    tensors = lifetimes.tensors
    arenas = {tensors[i].name: number for number, group in enumerate(groups) for i in group}
    return MemoryPlan(arenas, dict.fromkeys(arenas, 0), tuple(max(tensors[i].bytes for i in group) for group in groups))
