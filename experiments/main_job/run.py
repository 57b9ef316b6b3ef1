"""How long `stretch branch` takes, and whether its bundles are right: `python -m experiments.main_job.run phases|matrix`."""

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

from experiments.records import Value, write_record

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
DEVICES = {"pixel6": "cpu,gpu", "mi9": "cpu,gpu,dsp"}


def drop_caches() -> bool:
    """Empty the page cache, so that the next run reads every package from disk; False where that is not allowed."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    except OSError:
        return False
    return True


def one_run(out: Path) -> dict[str, Any]:
    """`stretch branch` in a process of its own: its JSON, wall time in seconds, peak memory in MB."""
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
    load = os.getloadavg()[0]
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
        load=load,
        notes=[
            f"stretch branch {MODEL} --device {DEVICE}, a process per run, random weights (no hub is reached)",
            "cold: the page cache was emptied before the one run"
            if dropped
            else "cold: the first run; the page cache could not be emptied",
        ],
    )


def p90(values: list[float]) -> float:
    """The value that nine of ten runs do not exceed."""
    return sorted(values)[min(len(values) - 1, int(0.9 * len(values)))]


def matrix() -> None:
    """Record, for every model and device, what is planned and whether the scheduler computes what torch computes."""
    load = os.getloadavg()[0]
    rows = []
    for model in MODELS:
        for device, processors in DEVICES.items():
            row = matrix_row(model, device, processors)
            sys.stderr.write(json.dumps(row) + "\n")
            rows.append(row)
    write_record(
        HERE / "results" / "matrix.json",
        {"matrix": rows},
        source="predicted",
        command="python -m experiments.main_job.run matrix",
        runs=1,
        load=load,
        notes=[
            "Milliseconds are predictions from profiles that follow specifications, not measurements on phones.",
            "`error` is measured here: the scheduler's output of the bundle against the branched torch module, relative to the largest output.",
            "All options have their defaults. Where a segment has several stages, they were merged because none of them can branch alone.",
        ],
    )


def matrix_row(model: str, device: str, processors: str) -> dict[str, Value]:
    """One model on one device: branch, export, run, compare."""
    import numpy as np
    import torch

    from scheduler.session import Session
    from stretch.api import branch
    from stretch.planning.config import PlanConfig

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "bundle"
        result = branch(model, device, out=out, config=PlanConfig(processors=tuple(processors.split(","))), weights="none")
        assert result.model is not None
        x = torch.randn(result.plan.graph.input.shape, generator=torch.Generator().manual_seed(1))
        with torch.inference_mode():
            want = result.model(x).numpy()
        with Session(out) as session:
            got = session(x.numpy())
    error = float(np.abs(got - want).max() / np.abs(want).max())
    predicted = result.plan.predicted()
    branched = [row.design.name for row in result.plan.run.segments if len(row.branches) > 1]
    return {
        "model and device": f"{model} {device}",
        "branched": " ".join(branched),
        "MACs ratio": round(result.plan.macs_ratio, 3),
        "makespan ms": round(predicted["makespan_ms"], 2),
        "best single ms": round(predicted["best_single_ms"], 2),
        "speed-up": round(predicted["speedup"], 2),
        "sequential, same MACs ms": round(predicted["sequential_same_macs_ms"], 2) if predicted["sequential_same_macs_ms"] else None,
        "recommended": result.plan.recommended.partition(":")[0].replace("_", " "),
        "of ideal": round(predicted["ideal_fraction"], 2),
        "plan s": round(result.seconds["plan"], 2),
        "error": float(f"{error:.1e}"),
    }


def main() -> None:
    """Run one of the two experiments."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["phases", "matrix"])
    parser.add_argument("--runs", type=int, default=7, help="warm runs")
    options = parser.parse_args()
    if options.what == "phases":
        phases(options.runs)
    else:
        matrix()


if __name__ == "__main__":
    main()
