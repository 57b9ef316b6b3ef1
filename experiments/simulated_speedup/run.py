"""Predictions of the planner for the six networks of paper 003: `python -m experiments.simulated_speedup.run`.

Each network is planned in a process of its own, and every plan is written down as soon
as it is there: a run that was cut short goes on where it stopped, unless the code changed.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import msgspec

from experiments.lossless.paths import schedule_bound_ms
from experiments.networks import MODELS, graph_of, own_precisions
from experiments.records import ROOT, Row, Value, this_commit, write_record
from predictors.devices import load_device
from predictors.errors import InfeasibleError
from predictors.graph import OpGraph
from stretch.planning.config import PlanConfig
from stretch.planning.cost.compare import ControlComparison
from stretch.planning.plan import MERGED_OPTIONS, plan
from stretch.planning.result import PlanResult

HERE = Path(__file__).parent
#: Folder of a run's rows while it is unfinished.
PARTS = ROOT / "runs" / "simulated_speedup"

#: The phones of the paper, the Mi 9 as measured in its release and with newer kernels; a newer phone; and a board.
PLACES = (
    ("mi9-release", "cpu,gpu"),
    ("mi9-release", "cpu,dsp"),
    ("mi9-release", "cpu,gpu,dsp"),
    ("mi9", "cpu,gpu"),
    ("mi11", "cpu,gpu"),
    ("pixel6", "cpu,gpu"),
    ("s23", "cpu,gpu"),
    ("rk3588", "cpu,gpu"),
)
#: Goals for the mean of merged mixed designs: over the best single processor, and over the sequential network of equal MACs.
GOALS = {("mi9-release", "cpu,dsp"): (1.7, 1.45), ("mi9-release", "cpu,gpu"): (1.75, 1.45), ("mi9-release", "cpu,gpu,dsp"): (2.0, 1.65)}
#: Range of a design's multiply-accumulates relative to the original's.
MACS = (0.97, 1.03)

KINDS = {"exact": ("rows", "channels", "graph"), "stretched": ("stretch",), "mixed": ("stretch", "rows", "channels", "graph")}
#: Stages as separate segments, or several as one segment if that is faster, whatever the share of exchanges.
STAGES, MERGED = "stages apart", "stages merged"
MERGES: dict[str, dict[str, Any]] = {STAGES: {"merge": "never"}, MERGED: MERGED_OPTIONS}
#: Exact kinds divide runs of blocks anywhere, so merging has no effect on them.
DESIGNS = (("exact", STAGES), ("stretched", STAGES), ("mixed", STAGES), ("stretched", MERGED), ("mixed", MERGED))
MIXED = ("mixed", MERGED)
#: Factors on the time of every transfer, for the same design.
LINKS = (0.5, 2.0)


@dataclass(frozen=True)
class Case:
    """Request of one plan."""

    model: str  # Name of the network.
    device: str  # Id of the device.
    processors: str  # Names of the processors, separated by commas.
    kind: str  # Kind of designs: exact, stretched or mixed.
    merged: str  # Whether stages are separate or merged.

    @property
    def name(self) -> str:
        """Unique name of the case."""
        return ", ".join((MODELS[self.model], f"{self.device} {self.processors}", self.kind, self.merged))


def cases_of(model: str) -> Iterator[Case]:
    """Yield the cases of a network."""
    for place in PLACES:
        for design in DESIGNS:
            yield Case(model, *place, *design)


def planned_row(case: Case, graph: OpGraph) -> Row:
    """Plan a case and return its row, with None in all columns if there is no design."""
    device = load_device(case.device)
    config = PlanConfig(macs=MACS, kinds=KINDS[case.kind], **MERGES[case.merged], **own_precisions(device, case.processors))
    try:
        result = plan(graph, device, config)
    except InfeasibleError:
        return {"case": case.name} | dict.fromkeys(COLUMNS)
    bound = schedule_bound_ms(graph, device, config.resolve(device))
    return {"case": case.name} | _figures(result, bound)


#: Columns of a case other than its name.
COLUMNS = (
    "makespan ms", "low ms", "high ms", "best single", "best single ms", "sequential ms", "speed-up", "speed-up low", "speed-up high",
    "over sequential", "over sequential low", "over sequential high", "links ×0.5", "links ×2", "faster than all", "ideal ms", "of ideal",
    "bound ms", "efficiency", "moving %", "contention %", "MACs ratio", "halo %", "meetings", "recommended",
)  # fmt: skip


def _figures(plan_result: PlanResult, bound_ms: float) -> dict[str, Value]:
    """Return the figures of a plan, as columns."""
    run, certainty = plan_result.run, plan_result.certainty
    compared = {control.name.partition(":")[0]: control for control in plan_result.recommendation.compared}
    single, same = compared["single"], compared.get("sequential_same_macs")
    values = (
        round(run.makespan_ms, 3),
        round(certainty.makespan_low_ms, 3),
        round(certainty.makespan_high_ms, 3),
        f"{plan_result.best_single.processor} {plan_result.best_single.precision}",
        round(single.ms, 3),
        None if same is None else round(same.ms, 3),
        *_ratio(single),
        *_ratio(same),
        *(round(plan_result.at_links(factor).speedup or 0.0, 3) for factor in LINKS),
        round(certainty.probability_faster["all"], 3),
        round(plan_result.ideal_split_ms, 3),
        round(plan_result.ideal_split_ms / run.makespan_ms, 3),
        round(bound_ms, 3),
        round(run.efficiency, 3),
        round(100 * run.communication_ms / run.makespan_ms, 1),
        round(100 * _contention_ms(plan_result) / run.makespan_ms, 1),
        round(plan_result.macs_ratio, 4),
        round(100 * run.halo_macs / plan_result.graph.macs, 1),
        plan_result.design.n_meet,
        plan_result.recommended.replace("_", " "),
    )
    return dict(zip(COLUMNS, values, strict=True))


def _ratio(control: ControlComparison | None) -> tuple[Value, Value, Value]:
    """Return a baseline's time over the branches', and the ends of its 90 % interval."""
    return (None, None, None) if control is None else (round(control.ratio, 3), round(control.low, 3), round(control.high, 3))


def _contention_ms(plan_result: PlanResult) -> float:
    """Return the time in ms that contention costs the branches that each segment waits for."""
    return sum(max(row.branches, key=lambda branch: branch.start_ms + branch.total_ms).contention_ms for row in plan_result.run.segments)


#: Rows of cases by their name.
Rows = Mapping[str, Row]
#: Fields of a row of `networks` on the merged mixed design.
OF_MIXED = (
    "best single", "best single ms", "sequential ms", "ideal ms", "bound ms", "makespan ms", "low ms", "high ms", "faster than all",
    "of ideal", "efficiency", "moving %", "contention %", "MACs ratio", "halo %", "meetings", "recommended",
)  # fmt: skip


def networks(rows: Rows, models: Sequence[str]) -> list[Row]:
    """Return every network on every device: speed-ups of each kind of design, and the figures of the merged mixed design."""
    result = []
    for model in models:
        for place in PLACES:
            row: Row = {"network and device": f"{MODELS[model]}, {' '.join(place)}"}
            for design in DESIGNS:
                of_design = rows[Case(model, *place, *design).name]
                row[_column(design)] = of_design["speed-up"]
                row[f"{_column(design)}, low"], row[f"{_column(design)}, high"] = of_design["speed-up low"], of_design["speed-up high"]
                row[f"{_column(design)}, over sequential"] = of_design["over sequential"]
            mixed = rows[Case(model, *place, *MIXED).name]
            result.append(row | {column: mixed[column] for column in OF_MIXED})
    return result


def _column(design: tuple[str, str]) -> str:
    kind, merged = design
    return kind if merged == STAGES else f"{kind}, merged"


def means(rows: Rows, models: Sequence[str]) -> list[Row]:
    """Return the geometric means over the networks that have a design, next to the goals.

    A network without a stretched design runs on one processor, or as an exact or mixed
    design; it is left out of the means of stretched designs, and counted.
    """
    result = []
    for place in PLACES:
        over_single, over_same = GOALS.get(place, (None, None))
        row: Row = {"device": " ".join(place)}
        for design in DESIGNS:
            current = [rows[Case(model, *place, *design).name] for model in models]
            row[_column(design)] = geo_mean([item["speed-up"] for item in current])
            row[f"{_column(design)}, over sequential"] = geo_mean([item["over sequential"] for item in current])
        row["networks"] = len(models)
        row["with a stretched design"] = sum(
            rows[Case(model, *place, "stretched", MERGED).name]["speed-up"] is not None for model in models
        )
        row |= {"goal": over_single, "goal over sequential": over_same}
        row["reached"] = _reached(row[_column(MIXED)], over_single)
        row["reached over sequential"] = _reached(row[f"{_column(MIXED)}, over sequential"], over_same)
        result.append(row)
    return result


def _reached(value: Value, goal: float | None) -> str | None:
    return None if goal is None or value is None else "yes" if float(value) >= goal else "no"


def bounds(rows: Rows, models: Sequence[str]) -> list[Row]:
    """Return the limits of merged mixed designs: geometric means of their speed-up, of a lossless one, and of their losses by cause."""
    result = []
    for place in PLACES:
        current = [row for model in models if (row := rows[Case(model, *place, *MIXED).name])["speed-up"] is not None]
        row: Row = {"device": " ".join(place), "speed-up": geo_mean([item["speed-up"] for item in current])}
        for title, column in (("ideal split", "ideal ms"), ("bound of any schedule", "bound ms")):
            row[title] = geo_mean([float(item["best single ms"] or 0) / float(item[column] or 1) for item in current])
        for column in ("efficiency", "of ideal"):
            row[column] = geo_mean([item[column] for item in current])
        for column in ("moving %", "contention %"):
            row[column] = round(sum(float(item[column] or 0) for item in current) / len(current), 1) if current else None
        result.append(row)
    return result


def geo_mean(values: Sequence[Value]) -> float | None:
    """Return the geometric mean of the known values; None if there are none."""
    known_values = [float(value) for value in values if value is not None]
    return round(geometric_mean(known_values), 3) if known_values else None


#: Functions that compute the tables of the record from its cases.
TABLES: dict[str, Callable[[Rows, Sequence[str]], list[Row]]] = {"means": means, "bounds": bounds, "networks": networks}


class Part(msgspec.Struct):
    """Finished plans of a network."""

    commit: str | None  # Commit of the code that made the plans.
    rows: dict[str, Row] = {}  # One row per case, by its name.


def part_of(path: Path) -> Part:
    """Return the rows of a file that the present code wrote; none if there is no file, or if other code wrote it."""
    result = this_commit()
    commit = result.hash if result is not None and not result.dirty else None
    if commit is not None and path.exists():
        part = msgspec.json.decode(path.read_bytes(), type=Part)
        if part.commit == commit:
            return part
    return Part(commit)


def plan_network(model: str, path: Path) -> dict[str, Row]:
    """Plan every case of a network that is not yet in its file; return all rows."""
    part = part_of(path)
    graph = None
    path.parent.mkdir(parents=True, exist_ok=True)
    for case in cases_of(model):
        if case.name in part.rows:
            continue
        graph = graph or graph_of(model)
        row = part.rows[case.name] = planned_row(case, graph)
        partial = path.with_name(f".{path.name}.part")
        partial.write_bytes(msgspec.json.encode(part))
        partial.replace(path)
        sys.stderr.write(f"{case.name}: {row['speed-up']}, over the sequential network {row['over sequential']}\n")
    return part.rows


def main() -> None:
    """Plan every network, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(MODELS), help="networks, separated by commas")
    parser.add_argument("--parts", type=Path, default=PARTS, help="folder of what is planned already")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "speedup.json", help="the record")
    options = parser.parse_args()
    models = options.models.split(",")
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        planned = pool.map(plan_network, models, [options.parts / f"{model.replace(':', '_')}.json" for model in models])
        rows = {name: row for rows_of_model in planned for name, row in rows_of_model.items()}
    write_record(
        options.out,
        {name: table(rows, models) for name, table in TABLES.items()} | {"cases": list(rows.values())},
        source="predicted",
        command="python -m experiments.simulated_speedup.run",
        notes=[
            "Every time is the planner's, from a profile and its links; nothing ran, and nothing was measured on a phone.",
            "Speed-ups are over the original on the best single processor, core set and precision at least as wide, and over the fastest sequential network of the same multiply-accumulates.",
            "`exact` designs compute the original's output; `stretched` ones are other networks, which want training; `mixed` ones may have segments of every kind. Merged: several stages may become one segment where that is faster, whatever share of its time exchanges take, as `stretch branch` plans where no design with stages apart keeps its rules.",
            "`low` and `high` are the ends of the 90 % interval: fits, links and contention are drawn within their intervals. `links ×0.5` and `links ×2` are the same design where every transfer takes half or twice the time.",
            "The ideal split divides the original over the processors without any loss. The bound is the longest chain of the original's kernels, each on its fastest processor, or the least time in which all of them can be computed, whichever is longer: no schedule that leaves kernels whole is faster, exchanges and contention left out. A stretched or divided design has other kernels, and may be below both.",
        ],
    )


if __name__ == "__main__":
    main()
