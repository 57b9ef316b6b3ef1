"""The example of paper 000, figure 5, by every planner: `python -m experiments.paper.p000_memory_planners.run`."""

import sys
from pathlib import Path

from experiments.memory_planning.run import lower_bound
from experiments.records import Row, write_record
from scheduler.memory import Lifetime, Lifetimes, plan_memory, planners

HERE = Path(__file__).parent
#: Units of memory of each operator's output, and the operators that write and read it.
EXAMPLE = (("0", 32, (0, 1)), ("1", 8, (1, 2, 3)), ("2", 4, (2, 4)), ("3", 8, (3, 4)), ("4", 64, (4, 5)))


def rows() -> list[Row]:
    """Totals of every planner, and the least there can be."""
    lifetimes = Lifetimes([Lifetime(name, size, steps) for name, size, steps in EXAMPLE])
    result: list[Row] = [{"planner": name, "units": plan_memory(lifetimes, name, 1).total_bytes} for name in planners]
    return [*result, {"planner": "no planner can do with less", "units": lower_bound(lifetimes)}]


def main() -> int:
    """Write ``results/example.json``."""
    write_record(
        HERE / "results" / "example.json",
        {"example": rows()},
        source="simulated",
        command="python -m experiments.paper.p000_memory_planners.run",
        runs=1,
        load=0.0,
        notes=["Units are counted by the plans of scheduler/memory, without alignment; nothing ran."],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
