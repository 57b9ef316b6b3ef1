"""How often a design can run where many inferences are in flight: as often as its busiest processor can.

Then no processor waits for another, so that only what occupies each of them counts: transfers,
computing beside others, and the joins of whoever joins.
"""

from collections.abc import Iterable, Mapping

from predictors.joins import join_of
from stretch.planning.cost.times import SegmentTime, SideTime, Timeline


def occupied_ms(segments: Iterable[SegmentTime], host: str, sides: Iterable[SideTime] = ()) -> dict[str, float]:
    """How long an inference occupies each processor, ms."""
    result: dict[str, float] = {}
    for row in segments:
        for branch in row.branches:
            result[branch.scale.processor] = result.get(branch.scale.processor, 0.0) + branch.total_ms
        if row.join_ms:
            result[host] = result.get(host, 0.0) + row.join_ms
    for side in sides:
        name = side.time.scale.processor
        result[name] = result.get(name, 0.0) + side.time.total_ms
    return result


def most_occupied_ms(occupied: Mapping[str, float]) -> float:
    """Of the busiest processor."""
    return max(occupied.values(), default=0.0)


def busiest_ms(run: Timeline, host: str) -> float:
    """How long an inference occupies the busiest processor, ms: between two results, with many in flight."""
    occupied = occupied_ms(run.segments, host, run.sides)
    last = last_holder(run, host)
    return most_occupied_ms({**occupied, last: occupied.get(last, 0.0) + run.output_ms})


def last_holder(run: Timeline, host: str) -> str:
    """The processor that holds what the backbone of a run ends with."""
    part = run.segments[-1].design
    meets = join_of(part.join).meets is not None and len(part.branches) > 1
    return host if meets else part.branches[-1].processor
