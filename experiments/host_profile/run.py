"""What `stretch profile` knows of this machine: `python -m experiments.host_profile.run`; a run that was ended goes on where it was."""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.records import About, Facts, Row, write_record
from predictors.errors import StretchError

HERE = Path(__file__).parent

#: Networks that no run of `stretch profile` sees, fp32: torchvision's and timm's.
NETWORKS = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "shufflenet_v2_x1_0",
    "squeezenet1_1",
    "densenet121",
    "googlenet",
    "efficientnet_b0",
    "regnet_x_400mf",
    "mnasnet1_0",
    "resnext50_32x4d",
    "convnext_tiny",
    "vgg11_bn",
    "timm:ghostnet_100",
    "timm:hrnet_w18_small",
    "timm:repvgg_a0",
    "timm:lcnet_100",
    "timm:cspresnet50",
    "timm:resnetv2_50",
)

#: Those that run on OpenCL, too.
ON_OPENCL = (
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "mobilenet_v3_large",
    "squeezenet1_1",
    "densenet121",
    "efficientnet_b0",
    "mnasnet1_0",
    "timm:repvgg_a0",
    "timm:lcnet_100",
)

#: Networks that are branched for the CPU and OpenCL.
BRANCHED = (
    "resnet18",
    "resnet34",
    "resnet50",
    "wide_resnet50_2",
    "resnext50_32x4d",
    "regnet_x_400mf",
    "regnet_x_800mf",
    "regnet_x_1_6gf",
    "regnet_y_400mf",
    "mobilenet_v2",
)

#: What a prediction is within or not.
NEAR, FAR = 0.1, 0.2

#: Networks that take turns with each other.
TURNS = 5


def profile(work: Path, minutes: float) -> dict[str, Any]:
    """What `stretch profile` said; measured unless an earlier run did."""
    said = work / "profile.json"
    if not said.exists():
        begun = (work / "host.measurements").exists()
        command = [
            "profile",
            "--name",
            "host",
            "--processors",
            "cpu[1core],gpu",
            "--budget",
            str(minutes),
            "--out",
            str(work),
            *(["--resume"] if begun else []),
        ]
        said.write_text(json.dumps(stretch(*command)))
    data: dict[str, Any] = json.loads(said.read_text())
    return data


def stretch(*words: str) -> Any:
    """What a command of `stretch` prints as JSON.

    Raises:
        StretchError: If it fails.
    """
    command = [sys.executable, "-P", "-c", "from stretch.cli import app; app()", *words, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        data = json.loads(done.stdout)
        raise StretchError(f"`stretch {words[0]}` failed: {data['error']}", data["hint"])
    return json.loads(done.stdout)


def measure(work: Path, processor: str, names: Sequence[str]) -> list[Row]:
    """Measured and predicted times of networks on one processor."""
    known = work / f"{processor}.json"
    rows: list[Row] = json.loads(known.read_text()) if known.exists() else []
    left = [name for name in names if f"{name} on {processor}" not in {row["network"] for row in rows}]
    for start in range(0, len(left), TURNS):
        rows += _measure(work, processor, left[start : start + TURNS])
        known.write_text(json.dumps(rows))
    return rows


def _measure(work: Path, processor: str, names: Sequence[str]) -> list[Row]:
    from predictors.devices import load_device
    from predictors.predictor import LatencyPredictor
    from scheduler.measure.steady import preferred, runner, time_steadily
    from stretch.profile.places import find_places, write_network
    from stretch.stages.network import read_graph

    predictor = LatencyPredictor(load_device(work / "host.toml"))
    place = next(place for place in find_places() if place.family == processor)
    graphs = {name: read_graph(name, None).graph for name in names}
    delegate = place.create()
    with preferred():
        runs = {
            name: runner(delegate.compile(write_network(graph, work / f"{name.replace(':', '_')}.onnx")), place.caller)
            for name, graph in graphs.items()
        }
        result = time_steadily(runs, place.serial)
    rows: list[Row] = []
    for name, time in result.items():
        guess = predictor.predict(graphs[name], processor)
        rows.append(
            {
                "network": f"{name} on {processor}",
                "measured_ms": round(time.ms, 3),
                "spread": round(time.spread, 3),
                "predicted_ms": round(guess.ms, 3),
                "low_ms": round(guess.low_ms, 3),
                "high_ms": round(guess.high_ms, 3),
                "ratio": round(guess.ms / time.ms, 3),
            }
        )
    return rows


def bundles(work: Path, names: Sequence[str]) -> list[Row]:
    """Predicted and measured makespans of branched networks."""
    known = work / "bundles.json"
    rows: list[Row] = json.loads(known.read_text()) if known.exists() else []
    for name in names:
        if name in {row["bundle"] for row in rows}:
            continue
        out = work / f"bundle_{name}"
        common = ["--device", str(work / "host.toml"), "--weights", "none", "--alpha", "100"]
        planned = stretch("branch", name, *common, "--out", str(out))
        ran = stretch("run", str(out), "--map", "gpu=opencl")
        predicted, measured = planned["predicted"]["makespan_ms"], ran["median_ms"]
        rows.append(
            {
                "bundle": name,
                "measured_ms": round(measured, 3),
                "p90_ms": round(ran["p90_ms"], 3),
                "predicted_ms": round(predicted, 3),
                "ratio": round(predicted / measured, 3),
            }
        )
        known.write_text(json.dumps(rows))
    return rows


def summary(rows: Sequence[Row], what: str) -> Row:
    """Shares of ratios near one, and the mean error."""
    errors = np.array([abs(float(row["ratio"] or 0) - 1) for row in rows])
    inside = [float(row["low_ms"] or 0) <= float(row["measured_ms"] or 0) <= float(row["high_ms"] or 0) for row in rows if "low_ms" in row]
    return {
        "on": what,
        "networks": len(rows),
        "within_10": round(float(np.mean(errors <= NEAR)), 3),
        "within_20": round(float(np.mean(errors <= FAR)), 3),
        "mean_error": round(float(np.mean(errors)), 4),
        "in_interval": round(float(np.mean(inside)), 3) if inside else None,
    }


def main(words: list[str] | None = None) -> int:
    """Profile, compare, and write ``results/host.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.host_profile.run", description=__doc__)
    parser.add_argument("--budget", type=float, default=10, help="minutes of measuring for the profile")
    parser.add_argument("--work", type=Path, default=Path("runs/host_profile"), help="what is kept between runs: remove it to begin anew")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "host.json")
    options = parser.parse_args(words)
    options.work.mkdir(parents=True, exist_ok=True)
    began = options.work / "load.json"
    if not began.exists():
        began.write_text(json.dumps(os.getloadavg()[0]))
    try:
        answer = profile(options.work, options.budget)
        on_cpu, on_gpu = measure(options.work, "cpu", NETWORKS), measure(options.work, "gpu", ON_OPENCL)
        branched = bundles(options.work, BRANCHED)
    except StretchError as error:
        sys.stderr.write(f"error: {error.message}\n\nhint: {error.hint}\n")
        return error.exit_code
    held_out: list[Row] = [
        {"processor": name, **{key: row[key] for key in ("runtime", "networks", "kernels", "within_10", "within_20", "mape", "coverage")}}
        for name, row in answer["processors"].items()
    ]
    links: list[Row] = [
        {
            "link": f"cpu and {family}",
            **{key: round(row[key], 4) for key in ("fixed_ms", "to_gbs", "back_gbs")},
            "cpu_computing": round(row["contention"][0], 3),
            "other_computing": round(row["contention"][1], 3),
            "cpu_moving": round(row["contention_memory"][0], 3),
            "other_moving": round(row["contention_memory"][1], 3),
        }
        for family, row in answer["links"].items()
    ]
    write_record(
        options.out,
        {
            "networks": [*on_cpu, *on_gpu],
            "summary": [
                summary(on_cpu, "ONNX Runtime, one core"),
                summary(on_gpu, "OpenCL, one core"),
                summary(branched, "cpu and OpenCL"),
            ],
            "bundles": branched,
            "held_out": held_out,
            "links": links,
        },
        source="measured",
        command=f"python -m experiments.host_profile.run --budget {options.budget:g}",
        runs=7,
        interleaved=True,
        about={
            "networks": About(columns={"predicted_ms": Facts(source="predicted")}),
            "bundles": About(interleaved=False, columns={"predicted_ms": Facts(source="predicted")}),
        },
        load=json.loads(began.read_text()),
        notes=[
            f"Networks took turns, {TURNS} at a time; 7 runs or more each, until the median was known to 1 %.",
            "Times on one core are the time that the core computed, and the least that it waited: others use this machine.",
            "held_out: random networks that fits made in the same way had not seen. Kernels on OpenCL are as they are before tuning.",
        ],
    )
    sys.stderr.write(f"{options.out} written; fill the pages with python -m experiments.render\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
