"""Profile, plan and run on a machine with two processors of different kinds: `python -m experiments.real_processors.run FOLDER`.

Needs a CPU with several cores and a GPU with an OpenCL driver. Everything goes through the command line, as a user would go. With
`--runtime openvino:half` the CPU computes in bfloat16 by OpenVINO, which needs AMX or AVX-512 with bfloat16, and with
`--runtime openvino/int8` in eight bits.
"""

import argparse
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from experiments.command import stretch
from experiments.records import About, Facts, Row, write_record
from predictors.fits import fit_path, read_fits
from scheduler.delegates.opencl.device import find_device

HERE = Path(__file__).parent
#: Network in a file of this folder, and the option that allows its execution.
UNET, TRUSTED = f"{HERE / 'unet.py'}:unet", ("--trust-code",)
#: Networks, each with the side of its input in pixels.
NETWORKS = (
    ("resnet50", 224),
    ("resnet50", 448),
    ("timm:regnetx_040", 224),
    ("timm:efficientnet_lite4", 300),
    ("efficientnet_b5", 456),
    ("mobilenet_v2", 224),
    ("densenet121", 224),
    (UNET, 512),
)
#: Options of the two kinds of designs: exact ones, and one stretched segment of merged stages.
KINDS = {"exact": ("--lossless",), "stretched": ("--kinds", "stretch", "--alpha", "100", "--beta", "5", "--set", "merge=always")}
#: Precision of the CPU by its runtime; the GPU computes in fp32, because NVIDIA's driver has no half precision in OpenCL.
PRECISIONS = {"cpu": "fp32", "openvino": "fp32", "openvino:half": "fp16", "openvino/int8": "int8"}


def within(*words: object) -> dict[str, Any]:
    """Run a verb in this process, in which everything is loaded, and return its answer; preparation is not timed."""
    from typer.testing import CliRunner

    from stretch.cli import app

    answer = CliRunner().invoke(app, [*map(str, words), "--json", "--quiet"])
    if answer.exit_code:
        raise RuntimeError(f"stretch {' '.join(map(str, words))} failed: {answer.output.strip()}")
    return json.loads(answer.stdout)


def alone(answer: dict[str, Any], ending: str) -> float | None:
    """Return the median time of the original on a processor in ms, from the networks that took turns; None if it was not measured."""
    rows = [row for row in (answer["sequential"], answer["best_sequential"], *answer["others"]) if row]
    return next((row["median_ms"] for row in rows if row["name"] == f"original, {ending}"), None)


def label(network: str, side: int, kind: str) -> str:
    """Return the name of a row, without the folder of a network's file."""
    return f"{network.rpartition('/')[2]}, {side}, {kind}"


def error(predicted: float, measured: float | None) -> float | None:
    """Return the error of a prediction in percent; None without a measurement."""
    return None if measured is None else round(100 * (predicted / measured - 1), 1)


def noise(folder: Path, side: int) -> Path:
    """Write random numbers like those of `stretch run`, for the ranges of int8, and return their folder."""
    images = folder / f"noise_{side}"
    images.mkdir(exist_ok=True)
    for number in range(8):
        np.save(images / f"{number}.npy", np.random.default_rng(1 + number).standard_normal((3, side, side), np.float32))
    return images


def prepare(network: str, side: int, kind: str, folder: Path, runtime: str) -> dict[str, Any]:
    """Return the predictions of a network, and the bundle of one kind of design."""
    profile, precision = folder / "here.toml", PRECISIONS[runtime]
    size = ("--input", f"3x{side}x{side}")
    bundle = folder / f"{Path(network.rpartition(':')[0 if '.py' in network else 2]).stem}_{side}_{kind}"
    cached = bundle.with_name(f"{bundle.name}.json")
    if cached.exists():
        return json.loads(cached.read_text())
    predicted = within("predict", network, "--device", profile, *size, *TRUSTED)["processors"]
    arguments = ("--weights", "none", "--precision", f"cpu={precision},gpu=fp32", *KINDS[kind], "--out", bundle)
    planned = within("branch", network, "--device", profile, *size, *TRUSTED, *arguments)
    if precision != "fp32":
        # in the planned precision; weights are random, so the loss in int8 is high
        written = bundle.with_name(f"{bundle.name}_{precision}")
        within("export", bundle, "--images", noise(folder, side), "--min-cosine", 0.5, "--out", written)
        bundle = written
    result = {"bundle": str(bundle), "predicted": predicted, "planned": planned}
    cached.write_text(json.dumps(result))
    return result


def rows_of(network: str, side: int, kind: str, prepared: dict[str, Any], runtime: str, rounds: int) -> tuple[list[Row], Row]:
    """Return the rows of each processor alone, and the row of a design, with predictions and measurements."""
    planned, precision = prepared["planned"], PRECISIONS[runtime]
    # the U-Net takes seconds on one core
    rounds, warmup = (max(5, rounds // 4), 1) if network == UNET else (rounds, 5)
    ran = stretch("run", prepared["bundle"], "--repeat", rounds, "--warmup", warmup, "--quiet")
    delegate, rounded = runtime.partition("/")[0], " in int8" if precision == "int8" else ""
    by_place = {
        "gpu": alone(ran, "gpu on opencl"),
        "cpu": alone(ran, f"{len(ran['cores'])} threads" if runtime == "cpu" else f"cpu{rounded} on {delegate}"),
    }
    singles: list[Row] = []
    for place, measured in by_place.items():
        predicted = prepared["predicted"][place]
        row: Row = {"network, input, processor": label(network, side, place), "precision": predicted["precision"]}
        times = {"predicted ms": round(predicted["latency_ms"], 2), "measured ms": measured and round(measured, 2)}
        singles.append(row | times | {"error %": error(predicted["latency_ms"], measured)})
    best, alone_ms = ran["sequential"], list(by_place.values())
    return singles, {
        "network, input, design": label(network, side, kind),
        "MACs ratio": round(ran["macs_ratio"], 3),
        "predicted ms": round(planned["predicted"]["makespan_ms"], 2),
        "measured ms": round(ran["median_ms"], 2),
        "p90 ms": round(ran["p90_ms"], 2),
        "error %": error(planned["predicted"]["makespan_ms"], ran["median_ms"]),
        "best single": best["name"].removeprefix("original, "),
        "best single ms": round(best["median_ms"], 2),
        "ideal speed-up": round(1 + min(alone_ms) / max(alone_ms), 2) if None not in alone_ms else None,
        "speed-up over it": round(best["median_ms"] / ran["median_ms"], 3),
        "over sequential of the same MACs": round(ran["sequential_same_macs"]["median_ms"] / ran["median_ms"], 3),
        "efficiency": ran["efficiency"] and round(ran["efficiency"], 3),
        "largest error": ran["max_error"],
        "recommended": planned["recommended"].replace("_", " "),
    }


def main() -> int:
    """Profile the machine, then plan and run every network."""
    parser = argparse.ArgumentParser(prog="python -m experiments.real_processors.run", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the profile and the bundles go")
    parser.add_argument("--runtime", choices=PRECISIONS, default="cpu", help="delegate of the CPU")
    parser.add_argument("--rounds", type=int, default=30, help="in which a bundle and its baselines take turns")
    parser.add_argument("--minutes", type=float, default=3.0, help="for the measurements of the profile")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "measured.json", help="the record")
    parser.add_argument("--seconds", type=float, default=540.0, help="after which no further network is begun")
    options = parser.parse_args()
    gpu = find_device()
    end = time.monotonic() + options.seconds
    # one core is reserved for the thread that feeds the GPU
    cores = len(os.sched_getaffinity(0)) - 1
    core_set = f"cpu[{cores}core{'s' if cores > 1 else ''}]={options.runtime}"
    options.folder.mkdir(parents=True, exist_ok=True)
    if not (options.folder / "here.toml").exists():
        arguments = ("--processors", f"{core_set},gpu", "--budget", options.minutes, "--out", options.folder, "--quiet")
        stretch("profile", "--name", "here", *arguments)
    profile: list[Row] = [
        {
            "processor": f"{family}[{cores}]",
            "networks left out": fit.held_out.networks,
            "mean error %": round(100 * fit.held_out.mape, 1),
            "in the 90 % interval %": round(100 * fit.held_out.coverage),
        }
        for (family, cores, _), fit in read_fits(fit_path(options.folder / "here.toml"), "here").items()
    ]
    kept = options.folder / "rows.json"
    # a stopped run continues
    tables = json.loads(kept.read_text()) if kept.exists() else {"profile": profile, "singles": [], "plans": []}
    done = {row["network, input, design"] for row in tables["plans"]}
    missing = [(network, side, kind) for (network, side), kind in product(NETWORKS, KINDS) if label(network, side, kind) not in done]
    # preparation is not timed, so all cores may take part; child processes have torch loaded
    workers = min(max(1, cores // 3), max(1, len(missing)))
    os.environ["OMP_NUM_THREADS"] = str(max(1, cores // workers))
    import torch  # noqa: F401
    import torchvision  # noqa: F401

    with ProcessPoolExecutor(workers, get_context("fork")) as pool:
        jobs = {entry: pool.submit(prepare, *entry, options.folder, options.runtime) for entry in missing}
    del os.environ["OMP_NUM_THREADS"]
    for entry, job in jobs.items():
        if (problem := job.exception()) is not None:
            sys.stderr.write(f"{entry}: {problem}\n")
    for network, side, kind in [entry for entry, job in jobs.items() if job.exception() is None]:
        if time.monotonic() > end:
            break
        singles, plan = rows_of(network, side, kind, jobs[network, side, kind].result(), options.runtime, options.rounds)
        recorded = {row["network, input, processor"] for row in tables["singles"]}
        tables["singles"] += [row for row in singles if row["network, input, processor"] not in recorded]
        tables["plans"].append(plan)
        kept.write_text(json.dumps(tables))
        write_record(
            options.out,
            tables,
            source="measured",
            command="python -m experiments.real_processors.run FOLDER",
            runs=options.rounds,
            interleaved=True,
            about={name: About(columns={"predicted ms": Facts(source="predicted")}) for name in ("singles", "plans")},
            notes=[
                "A round measures each network once, after inferences of 50 ms that are not measured. The U-Net has a quarter of the rounds.",
                f"Weights are random. The GPU runs our OpenCL kernels in fp32; the CPU runs on all cores but one, on {options.runtime}.",
                "predicted: from the profile that the same command measured before.",
                f"GPU: {gpu.name.strip()}, driver {gpu.driver_version}.",
            ],
        )
        sys.stderr.write(json.dumps(plan) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
