"""How long `stretch branch` takes, and whether its bundles are right: `python -m experiments.main_job.run phases|predict|check`."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from experiments.networks import graph_of, largest_difference
from experiments.records import Value, write_record
from predictors.errors import InfeasibleError

HERE = Path(__file__).parent
MODEL, DEVICE = "resnet50", "pixel6"
MODELS = (
    "resnet18",
    "resnet34",
    "resnet50",
    "regnet_x_400mf",
    "regnet_x_1_6gf",
    "efficientnet_b0",
    "efficientnet_b5",
    "mobilenet_v2",
    "mobilenet_v3_large",
)
CHECKED = "`error` is the scheduler's output of the bundle against the branched torch module, relative to the largest output."
DEVICES = {"mi9-release": "cpu,gpu,dsp", "pixel6": "cpu,gpu", "s23": "cpu,gpu", "mi9": "cpu,gpu,dsp"}


def drop_caches() -> bool:
    """Empty the page cache, so that the next run reads every package from disk; return False if that is not allowed."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def one_run(out: Path) -> dict[str, Any]:
    """Run `stretch branch` in a separate process; return its JSON with wall time in seconds and peak memory in MB."""
    command = [str(Path(sys.executable).parent / "stretch"), "branch", MODEL, "--device", DEVICE, "--out", str(out), "--json", "--quiet"]
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    text = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} failed: {text.decode()}")
    return json.loads(text) | {"wall": wall, "peak_mb": usage.ru_maxrss / 1024}


def phases(runs: int) -> None:
    """Record the wall time of each phase, cold and warm."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bundle"
        dropped = drop_caches()
        cold = one_run(out)
        warm = [one_run(out) for _ in range(runs)]
        size = sum(f.stat().st_size for f in out.rglob("*") if f.is_file())
    names = list(cold["seconds"])

    def row(name: str, cold_s: float, warm_s: list[float]) -> dict[str, Value]:
        return {
            "phase": name,
            "cold s": round(cold_s, 2),
            "warm s (median)": round(statistics.median(warm_s), 2),
            "warm s (p90)": round(p90(warm_s), 2),
        }

    table = [row(name, cold["seconds"][name], [w["seconds"][name] for w in warm]) for name in names]
    start_up = [w["wall"] - sum(w["seconds"].values()) for w in warm]
    table.append(row("interpreter, command line, exit", cold["wall"] - sum(cold["seconds"].values()), start_up))
    table.append(row("total", cold["wall"], [w["wall"] for w in warm]))
    sizes: list[dict[str, Value]] = [
        {"what": "peak memory of the process", "MB": round(statistics.median([w["peak_mb"] for w in warm]))},
        {"what": "bundle on disk", "MB": round(size / 1e6)},
    ]
    write_record(
        HERE / "results" / "phases.json",
        {"phases": table, "sizes": sizes},
        source="measured",
        command="python -m experiments.main_job.run phases",
        runs=runs,
        notes=[
            f"stretch branch {MODEL} --device {DEVICE}, a process per run, random weights (no hub is reached)",
            "cold: the page cache was emptied before the one run"
            if dropped
            else "cold: the first run; the page cache could not be emptied",
        ],
    )


def p90(values: list[float]) -> float:
    """Return the ninth decile of the runs."""
    return sorted(values)[min(len(values) - 1, int(0.9 * len(values)))]


def predict() -> None:
    """Record the plan for every model and device; nothing is run, so the record can be repeated at any time."""
    rows, refused = [], []
    for model in MODELS:
        for device, processors in DEVICES.items():
            try:
                rows.append(predicted_row(model, device, processors))
            except InfeasibleError as error:
                refused.append(f"{model} {device}: {error.message}")
                continue
            sys.stderr.write(json.dumps(rows[-1]) + "\n")
    write_record(
        HERE / "results" / "predicted.json",
        {"matrix": rows, "profiles": [profile_row(device) for device in DEVICES]},
        source="predicted",
        command="python -m experiments.main_job.run predict",
        load=None,
        notes=[
            *refused,
            "Milliseconds are predictions: from published times of whole networks, from fits to a phone with the same chip, or from fits of relatives; nothing was measured here on a phone.",
            "`low` and `high` are the ends of the 90 % interval of a speed-up: fits, links and contention are drawn within their intervals, for both runs at once.",
            "Planned as `stretch branch` does by default: stretched where such a design keeps the rules, else with merged stages whatever share exchanges take, if that gains over one processor, else exactly in fp32 and fp16.",
        ],
    )


def profile_row(device: str) -> dict[str, Value]:
    """Return the row with the sources of a device's predictions."""
    from predictors.devices import load_device

    profile = load_device(device)
    names = DEVICES[device].split(",")
    used = [processor for name, processor in profile.processors.items() if name in names]
    return {
        "device": device,
        "calibrated": profile.calibrated,
        "uncertainty %": round(100 * max(item.uncertainty.value for item in used)),
        "contention": max(profile.slowdown(name, {*names} - {name}).arithmetic for name in names),
    }


def predicted_row(model: str, device: str, processors: str) -> dict[str, Value]:
    """Plan one model for one device, and return its row."""
    from predictors.devices import load_device
    from stretch.planning.config import PlanConfig
    from stretch.planning.plan import plan

    result = plan(graph_of(model, None), load_device(device), PlanConfig(processors=tuple(processors.split(","))))
    predicted = result.predicted.to_json()
    compared = {control.name.partition(":")[0]: control for control in result.recommendation.compared}
    single, same = compared["single"], compared.get("sequential_same_macs")
    return {
        "model and device": f"{model} {device}",
        "branched": " ".join(row.design.name for row in result.run.segments if len(row.branches) > 1),
        "MACs ratio": round(result.macs_ratio, 3),
        "makespan ms": round(predicted["makespan_ms"], 2),
        "best single ms": round(predicted["best_single_ms"], 2),
        "best single processor": predicted["best_single_processor"],
        "speed-up": round(single.ratio, 2),
        "low": round(single.low, 2),
        "high": round(single.high, 2),
        "sequential, same MACs ms": round(same.ms, 2) if same else None,
        "over sequential": round(same.ratio, 2) if same else None,
        "over sequential, low": round(same.low, 2) if same else None,
        "over sequential, high": round(same.high, 2) if same else None,
        "recommended": result.recommended.replace("_", " "),
        "of ideal": round(predicted["ideal_fraction"], 2),
    }


def check() -> None:
    """Record whether the scheduler computes the same as torch for every model and device, and the planning time."""
    rows = []
    for model in MODELS:
        for device, processors in DEVICES.items():
            rows.append(checked_row(model, device, processors))
            sys.stderr.write(json.dumps(rows[-1]) + "\n")
    write_record(
        HERE / "results" / "checked.json",
        {"checked": rows},
        source="measured",
        command="python -m experiments.main_job.run check",
        runs=1,
        notes=[CHECKED],
    )


def checked_row(model: str, device: str, processors: str) -> dict[str, Value]:
    """Branch, export, run and compare one model on one device, and return its row."""
    from stretch.api import branch
    from stretch.planning.config import PlanConfig

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bundle"
        result = branch(model, device, out=out, config=PlanConfig(processors=tuple(processors.split(","))), weights="none")
        assert result.model is not None
        error = largest_difference(out, result.model, result.plan.graph.input.shape)
    return {"model and device": f"{model} {device}", "plan s": round(result.seconds["plan"], 2), "error": error}


def main() -> None:
    """Run one of the three experiments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["phases", "predict", "check"])
    parser.add_argument("--runs", type=int, default=7, help="warm runs")
    options = parser.parse_args()
    if options.what == "phases":
        phases(options.runs)
    elif options.what == "predict":
        predict()
    else:
        check()


if __name__ == "__main__":
    main()
