"""Where branches pay: six networks on every device profile, as `stretch advise` answers: `python -m experiments.advise.run [answers|time]`."""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.networks import MODELS, graph_of
from experiments.records import Value, write_record
from predictors.devices import list_devices, load_device
from stretch.planning.cost.compare import NO_CLEAR_WINNER
from stretch.stages.advise import BranchesAdvice, DeviceAdvice, advise

HERE = Path(__file__).parent
#: The goal for one network on all profiles, on one core.
TIMED, GOAL_S = "resnet50", 20.0
Row = dict[str, Value]


def answers() -> None:
    """Record the answers for every network and device."""
    profiles = [load_device(name) for name in list_devices()]
    by_network: dict[str, list[DeviceAdvice]] = {}
    for model, name in MODELS.items():
        by_network[name] = advise(model, graph_of(model), profiles).answers
        sys.stderr.write(f"{name}\n")
    rows = [_row(name, answer) for name, result in by_network.items() for answer in result]
    paying = sorted((row for row in rows if row["recommended"] in ("exact", "stretched")), key=_low, reverse=True)
    write_record(
        HERE / "results" / "answers.json",
        {
            "devices": [_cells(device.id, by_network) for device in profiles],
            "paying": paying,
            "answers": rows,
            "counts": [_counts(name, result) for name, result in by_network.items()],
            "totals": [_totals([answer for result in by_network.values() for answer in result])],
        },
        source="predicted",
        command="python -m experiments.advise.run answers",
        notes=[
            "All networks at 224×224, each processor in its default precision, the best single processor in any that is at least as wide as the narrowest of these. Nothing was measured on a device here.",
            "A cell says what is advised: `exact` or `stretched` branches with their speed-up over the best single processor, or that processor alone; `?` is `no clear winner`, with the larger predicted speed-up.",
            "`low` and `high` are the ends of the 90 % interval of a speed-up.",
        ],
    )


def _row(name: str, answer: DeviceAdvice) -> Row:
    single = answer.best_single
    return {
        "network and device": f"{name}, {answer.device}",
        "all measured there": answer.calibrated,
        "best single": single.processor,
        "precision": single.precision,
        "best single ms": round(single.ms, 2),
        **columns("exact", answer.exact),
        **columns("stretched", answer.stretched),
        "recommended": answer.recommended,
    }


def columns(kind: str, branches: BranchesAdvice | None) -> Row:
    """Return the columns with the speed-up of branches of a kind and its interval."""
    columns = {"": "speedup", ", low": "low", ", high": "high"}
    return {f"{kind}{name}": None if branches is None else round(getattr(branches, key), 2) for name, key in columns.items()}


def _low(row: Row) -> float:
    """Return the lower end of the interval of the recommended kind's speed-up."""
    value = row[f"{row['recommended']}, low"]
    assert isinstance(value, float)
    return value


def _cells(device: str, by_network: dict[str, list[DeviceAdvice]]) -> Row:
    """Return the row of one device, with the recommendation for each network."""
    cells = {name: _cell(next(answer for answer in result if answer.device == device)) for name, result in by_network.items()}
    return {"device": device, **cells}


def _cell(answer: DeviceAdvice) -> str:
    speedups = {kind: item.speedup for kind, item in (("exact", answer.exact), ("stretched", answer.stretched)) if item}
    if answer.recommended in speedups:
        return f"{answer.recommended} {speedups[answer.recommended]:.2f}"
    if answer.recommended == NO_CLEAR_WINNER:
        return f"? {max(speedups.values()):.2f}"
    return answer.best_single.processor


def _counts(name: str, device_advices: list[DeviceAdvice]) -> Row:
    kinds = [answer.recommended.partition(":")[0] for answer in device_advices]
    several = sum(answer.exact_at_most is not None for answer in device_advices)
    counted = {kind: kinds.count(kind) for kind in ("exact", "stretched", NO_CLEAR_WINNER, "single")}
    return {"network": name, "devices": len(device_advices), "with several processors": several, **counted}


def _totals(device_advices: list[DeviceAdvice]) -> Row:
    kinds = [answer.recommended.partition(":")[0] for answer in device_advices]
    counted = {"branches": kinds.count("exact") + kinds.count("stretched"), "single": kinds.count("single")}
    return {"networks": "all", "pairs": len(kinds), **counted, "too close to call": kinds.count(NO_CLEAR_WINNER)}


def time_it(runs: int) -> None:
    """Record the time of the command for one network on all profiles, on one core."""
    core = min(os.sched_getaffinity(0))
    command = [str(Path(sys.executable).parent / "stretch"), "advise", TIMED, "--json", "--quiet"]
    walls, used = [], []
    with tempfile.TemporaryDirectory() as compiled:
        # with compiled modules, as in an installation after its first run, even if this machine forbids them
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | {"PYTHONPYCACHEPREFIX": compiled}
        for _ in range(runs + 1):
            before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            text = subprocess.run(["taskset", "-c", str(core), *command], check=True, capture_output=True, text=True, env=env).stdout
            walls.append(time.perf_counter() - start)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    walls, used = walls[1:], used[1:]
    row: Row = {
        "what": f"{TIMED} on {len(json.loads(text)['answers'])} profiles",
        "goal, s": GOAL_S,
        "wall time, s (median)": round(statistics.median(walls), 1),
        "processor time, s (median)": round(statistics.median(used), 1),
        "processor time, s (least)": round(min(used), 1),
    }
    write_record(
        HERE / "results" / "time.json",
        {"time": [row]},
        source="measured",
        command="python -m experiments.advise.run time",
        runs=runs,
        notes=[
            "A process per run, bound to one core, start and import of torch included; a first run, which compiles Python files, is left out. Wall time counts what others took of that core."
        ],
    )


def main() -> None:
    """Run the selected experiment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["answers", "time"], nargs="?", default="answers")
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    if options.what == "time":
        time_it(options.runs)
    else:
        answers()


if __name__ == "__main__":
    main()
