"""Energy of a predicted run (paper 003, section 7.3)."""

from predictors.devices import DeviceProfile
from predictors.energy import EnergyModel
from stretch.planning.cost.times import Timeline


def run_mj(run: Timeline, device: DeviceProfile) -> float | None:
    """Energy of the processors that have work, mJ: while they compute, and while they wait where that power is known."""
    return EnergyModel(device).plan_mj(busy_ms(run), run.makespan_ms)


def busy_ms(run: Timeline) -> dict[str, float]:
    """How long each processor computes in a run, ms."""
    busy: dict[str, float] = {}
    for row in run.segments:
        for branch in row.branches:
            busy[branch.scale.processor] = busy.get(branch.scale.processor, 0.0) + branch.ms + branch.contention_ms
    for side in run.sides:
        busy[side.time.scale.processor] = busy.get(side.time.scale.processor, 0.0) + side.time.ms
    return busy
