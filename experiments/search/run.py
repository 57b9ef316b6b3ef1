"""How long searches take, and exact against other strategies: `python -m experiments.search.run [times|strategies]`."""

import argparse
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time

from experiments.networks import MODELS, graph_of
from experiments.records import About, Facts, Row, write_record
from predictors.devices import load_device
from predictors.errors import InfeasibleError
from predictors.graph import OpGraph
from scheduler.cores import available_cores, pinned
from stretch.planning.config import PlanConfig
from stretch.planning.cost.compare import draw_factors, uncertain_run
from stretch.planning.pareto import diverse_front, front
from stretch.planning.plan import PlanningProblem, choose, plan
from stretch.planning.search.exact import SearchResult
from stretch.planning.search.layers import TIE

HERE = Path(__file__).parent
#: Number of repetitions of each time.
RUNS = 3
#: Timed networks, on the Mi 9 with its three processors.
TIMED = ("resnet50", "timm:regnetx_040", "efficientnet_b5")
DEVICE, PROCESSORS = "mi9", ("cpu", "gpu", "dsp")
#: Number of designs on a front, and of alternative designs.
DESIGNS = 12
#: Range of multiply-accumulates of fronts, so that designs have a trade-off.
WIDE = (0.7, 1.03)
#: Maximum time of alternative designs relative to the best one.
WITHIN = 1.2
#: Number of draws of the parameters of a prediction.
DRAWS = 1000
#: Networks of one kind with an increasing number of blocks.
GROWING = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152")
EVERY_KIND = ("stretch", "rows", "channels", "graph")
#: Devices and processors of the comparison of strategies.
DEVICES = (
    ("mi9", ("cpu", "gpu")),
    ("mi9", ("cpu", "dsp")),
    ("mi9", ("gpu", "dsp")),
    ("mi9", PROCESSORS),
    ("pixel6", ("cpu", "gpu")),
)
STRATEGIES = ("exact", "grid")
#: Makespans of one network in ms, by strategy.
Found = dict[str, float | None]


def chosen(graph: OpGraph, device: str, config: PlanConfig) -> tuple[SearchResult, float]:
    """Return the design of a request, and the decimal logarithm of the number of designs in its space."""
    choice = choose(PlanningProblem.of(graph, load_device(device), config))
    return choice.result, choice.space.size_log10


def timed(name: str, work: Callable[[], object]) -> Row:
    """Return the row of a function's wall time and processor time."""
    wall, current = [], []
    for _ in range(RUNS):
        began, spent = perf_counter(), process_time()
        work()
        wall.append(perf_counter() - began)
        current.append(process_time() - spent)
    return {"search": name, "wall s": round(statistics.median(wall), 4), "processor s": round(statistics.median(current), 4)}


def searches(model: str, graph: OpGraph) -> list[Row]:
    """Return the times of all searches of one network."""
    name, device = MODELS[model], load_device(DEVICE)
    config = PlanConfig(processors=PROCESSORS)
    wide = PlanConfig(processors=PROCESSORS, macs=WIDE)

    result = plan(graph, device, config)

    def draw() -> None:
        run = uncertain_run(result.run.steps, device, result.run.output)
        run.drawn_ms(draw_factors(run.unknowns, DRAWS))

    return [
        timed(f"{name}: exact", lambda: chosen(graph, DEVICE, config)),
        timed(f"{name}: exact, energy", lambda: chosen(graph, DEVICE, PlanConfig(processors=PROCESSORS, objective="energy"))),
        timed(f"{name}: {DESIGNS}-point front of latency and MACs", lambda: front(graph, device, wide, ("latency", "macs"), DESIGNS)),
        timed(f"{name}: {DESIGNS}-point front of latency and energy", lambda: front(graph, device, wide, ("latency", "energy"), DESIGNS)),
        timed(f"{name}: {DESIGNS} designs that differ", lambda: diverse_front(graph, device, config, DESIGNS, WITHIN)),
        timed(f"{name}: {DRAWS} draws of the makespan", draw),
    ]


def growth() -> list[Row]:
    """Return the time of the exact search for growing networks, numbers of processors and kinds of segments."""
    result: list[Row] = []
    for model in GROWING:
        graph = graph_of(model)
        for processors in (PROCESSORS[:2], PROCESSORS):
            for kinds in (("stretch",), EVERY_KIND) if model == "resnet50" else (("stretch",),):
                config = PlanConfig(processors=processors, kinds=kinds)
                _, size = chosen(graph, DEVICE, config)
                row = timed(f"{model}, {len(processors)} processors, {' '.join(kinds)}", lambda g=graph, c=config: chosen(g, DEVICE, c))
                result.append({**row, "operators": len(graph.ops), "designs, log10": round(size, 1)})
                sys.stdout.write(f"{result[-1]}\n")
    return result


def times() -> None:
    """Record the times of searches."""
    rows: list[Row] = []
    with pinned(available_cores()[:1]):
        for model in TIMED:
            rows += searches(model, graph_of(model))
            sys.stdout.write("\n".join(map(str, rows)) + "\n")
        grown = growth()
    write_record(
        HERE / "results" / "times.json",
        {"searches": rows, "growth": grown},
        source="measured",
        command="python -m experiments.search.run times",
        runs=RUNS,
        interleaved=False,
        notes=[
            f"On one core, the median, {DEVICE} with {', '.join(PROCESSORS)}; networks at 224×224.",
            "Costs of every way to run every segment are worked out anew each time; reading the network and the profile is not counted in "
            "`exact`, and the controls are not either.",
            f"Fronts: {WIDE[0]} to {WIDE[1]} of the multiply-accumulates. Other processes ran on the machine: processor time is what they leave unchanged.",
        ],
    )


def compared(model: str, graph: OpGraph, device: str, processors: tuple[str, ...]) -> tuple[Row, Found]:
    """Return the result of each strategy for one network, as a row and in ms."""
    row: Row = {"network and processors": f"{MODELS[model]}, {device} {','.join(processors)}"}
    result: Found = {}
    spent: dict[str, float] = {}
    for strategy in STRATEGIES:
        began = process_time()
        try:
            result[strategy] = chosen(graph, device, PlanConfig(processors=processors, strategy=strategy))[0].ms
        except InfeasibleError:
            result[strategy] = None
        spent[strategy] = process_time() - began
    best = result["exact"]
    for strategy, ms in result.items():
        row[f"{strategy} ms"] = None if ms is None else round(ms, 2)
    for strategy in STRATEGIES[1:]:
        ms = result[strategy]
        row[f"{strategy} over exact"] = None if ms is None or best is None else round(ms / best, 4)
    for strategy, s in spent.items():
        row[f"{strategy} s"] = round(s, 2)
    return row, result


def summary(found_ms: Sequence[Found]) -> list[Row]:
    """Return how often each other strategy is better than the exact search, and by how much it is worse."""
    result: list[Row] = []
    for strategy in STRATEGIES[1:]:
        both = [(found_m[strategy], found_m["exact"]) for found_m in found_ms if found_m[strategy] and found_m["exact"]]
        ratios = [ms / best for ms, best in both]
        result.append(
            {
                "strategy": strategy,
                "found a design": len(ratios),
                "of": sum(found_m["exact"] is not None for found_m in found_ms),
                "better than exact": sum(ms < best - TIE for ms, best in both),
                "median over exact": round(statistics.median(ratios), 4),
                "largest over exact": round(max(ratios), 4),
            }
        )
    return result


def compared_case(case: tuple[str, str, tuple[str, ...]]) -> tuple[Row, Found]:
    """Return the result of `compared` for a model, a device and its processors; called in a separate process."""
    model, device, processors = case
    result = compared(model, graph_of(model), device, processors)
    sys.stdout.write(f"{result[0]}\n")
    return result


def strategies(processes: int) -> None:
    """Record the exact search against other strategies.

    Args:
        processes: Number of cases that are searched at a time, each in a process; times are those of its processor.
    """
    cases = [(model, device, processors) for model in MODELS for device, processors in DEVICES]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        rows, times_ms = zip(*pool.map(compared_case, cases), strict=True)
    measured = About(columns={f"{strategy} s": Facts(source="measured", runs=1) for strategy in STRATEGIES})
    write_record(
        HERE / "results" / "strategies.json",
        {"summary": summary(times_ms), "networks": rows},
        source="predicted",
        command="python -m experiments.search.run strategies",
        about={"networks": measured},
        notes=[
            "Latency in the default constraints, 0.97 to 1.03 of the multiply-accumulates; a dash where a strategy has no design within them.",
            "Seconds are processor time, one run.",
        ],
    )


def main() -> None:
    """Read the command line, and run the selected experiment."""
    parser = argparse.ArgumentParser(prog="python -m experiments.search.run", description=__doc__)
    parser.add_argument("what", choices=("times", "strategies"))
    parser.add_argument("--processes", type=int, default=1, help="for strategies: cases at a time")
    options = parser.parse_args()
    if options.what == "times":
        times()
    else:
        strategies(options.processes)


if __name__ == "__main__":
    main()
