"""Profile, plan and run on a machine with two processors of different kinds: `python -m experiments.real_processors.run FOLDER`.

Needs a CPU with several cores and a GPU with an OpenCL driver. Everything goes through the command line, as a user would go.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from experiments.records import About, Facts, Row, write_record
from predictors.fits import read_fits
from scheduler.delegates.opencl.device import find_device

HERE = Path(__file__).parent
#: Networks with the side of their input.
NETWORKS = (
    ("resnet50", 224),
    ("resnet50", 448),
    ("timm:regnetx_040", 224),
    ("timm:efficientnet_lite4", 300),
    ("efficientnet_b5", 456),
    ("mobilenet_v2", 224),
    ("densenet121", 224),
)
#: Options of the designs that are run: exact ones, and one stretched segment of merged stages.
KINDS = {"exact": ("--lossless",), "stretched": ("--kinds", "stretch", "--alpha", "100", "--beta", "5", "--set", "merge=always")}
#: Floating point on both, as our OpenCL kernels and ONNX Runtime compute here.
PRECISION = ("--precision", "cpu=fp32,gpu=fp32")
#: Code that starts the command line with the interpreter that runs this.
COMMAND = (sys.executable, "-c", "import sys; from stretch.cli import app; sys.argv[0] = 'stretch'; app()")


def stretch(*words: object) -> dict[str, Any]:
    """The answer of a verb."""
    answer = subprocess.run([*COMMAND, *map(str, words), "--json", "--quiet"], capture_output=True, text=True, check=False)
    if answer.returncode:
        raise SystemExit(f"stretch {' '.join(map(str, words))} failed: {answer.stderr.strip()}")
    return json.loads(answer.stdout)


def alone(answer: dict[str, Any], ending: str) -> float | None:
    """Median time of the original on a processor, of those that took turns."""
    rows = [row for row in (answer["sequential"], answer["best_sequential"], *answer["others"]) if row]
    return next((row["median_ms"] for row in rows if row["name"].startswith("original, ") and row["name"].endswith(ending)), None)


def error(predicted: float, measured: float | None) -> float | None:
    """How far a prediction is off, per cent."""
    return None if measured is None else round(100 * (predicted / measured - 1), 1)


def rows_of(network: str, side: int, profile: Path, folder: Path, core_set: str) -> tuple[list[Row], list[Row]]:
    """One network: each processor alone, and each kind of design, predicted and measured."""
    size = ("--input", f"3x{side}x{side}")
    predicted = stretch("predict", network, "--device", profile, *size)["processors"]
    singles: list[Row] = []
    plans: list[Row] = []
    for kind, options in KINDS.items():
        bundle = folder / f"{network.rpartition(':')[2]}_{side}_{kind}"
        planned = stretch("branch", network, "--device", profile, *size, "--weights", "none", *PRECISION, *options, "--out", bundle)
        ran = stretch("run", bundle, "--repeat", 30)
        threads = f"{len(ran['cores'])} threads"
        by_place = {"gpu": alone(ran, "gpu on opencl"), core_set: alone(ran, threads)}
        if not singles:
            for place, measured in by_place.items():
                ms = predicted[place]["latency_ms"]
                singles.append(
                    {
                        "network, input, processor": f"{network}, {side}, {place}",
                        "predicted ms": round(ms, 2),
                        "measured ms": measured and round(measured, 2),
                        "error %": error(ms, measured),
                    }
                )
        best = ran["sequential"]
        plans.append(
            {
                "network, input, design": f"{network}, {side}, {kind}",
                "MACs ratio": round(ran["macs_ratio"], 3),
                "predicted ms": round(planned["predicted"]["makespan_ms"], 2),
                "measured ms": round(ran["median_ms"], 2),
                "p90 ms": round(ran["p90_ms"], 2),
                "error %": error(planned["predicted"]["makespan_ms"], ran["median_ms"]),
                "best single": best["name"].removeprefix("original, "),
                "best single ms": round(best["median_ms"], 2),
                "speed-up over it": round(best["median_ms"] / ran["median_ms"], 3),
                "over sequential of the same MACs": round(ran["sequential_same_macs"]["median_ms"] / ran["median_ms"], 3),
                "efficiency": ran["efficiency"] and round(ran["efficiency"], 3),
                "largest error": ran["max_error"],
                "recommended": planned["recommended"].replace("_", " "),
            }
        )
    return singles, plans


def main() -> int:
    """Profile the machine, then plan and run every network."""
    parser = argparse.ArgumentParser(prog="python -m experiments.real_processors.run", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the profile and the bundles go")
    parser.add_argument("--minutes", type=float, default=3.0, help="for the measurements of the profile")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "measured.json", help="the record")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which no further network is begun")
    options = parser.parse_args()
    gpu = find_device()
    end, load = time.monotonic() + options.seconds, os.getloadavg()[0]
    core_set = f"cpu[{len(os.sched_getaffinity(0))}cores]"
    options.folder.mkdir(parents=True, exist_ok=True)
    stretch("profile", "--name", "here", "--processors", f"{core_set},gpu", "--budget", options.minutes, "--out", options.folder)
    profile: list[Row] = [
        {
            "processor": f"{family}[{cores}]",
            "networks left out": fit.held_out.networks,
            "mean error %": round(100 * fit.held_out.mape, 1),
            "in the 90 % interval %": round(100 * fit.held_out.coverage),
        }
        for (family, cores, _), fit in read_fits(options.folder / "here.toml", "here").items()
    ]
    tables: dict[str, list[Row]] = {"profile": profile, "singles": [], "plans": []}
    for network, side in NETWORKS:
        if time.monotonic() > end:
            break
        singles, plans = rows_of(network, side, options.folder / "here.toml", options.folder, "cpu")
        tables["singles"] += singles
        tables["plans"] += plans
        write_record(
            options.out,
            tables,
            source="measured",
            command="python -m experiments.real_processors.run FOLDER",
            runs=30,
            load=load,
            interleaved=True,
            about={name: About(columns={"predicted ms": Facts(source="predicted")}) for name in ("singles", "plans")},
            notes=[
                "Weights are random. The GPU runs our OpenCL kernels in fp32, the CPU ONNX Runtime in fp32 on all cores but one.",
                "predicted: from the profile that the same command measured before.",
                f"GPU: {gpu.name.strip()}, driver {gpu.driver_version}.",
            ],
        )
        sys.stderr.write(json.dumps(plans) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
