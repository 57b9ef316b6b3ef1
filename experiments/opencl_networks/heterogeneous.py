"""A branched bundle, one branch on ONNX Runtime and one on OpenCL, a core each: `python -m experiments.opencl_networks.heterogeneous BUNDLE`."""

import argparse
import importlib.util
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from experiments.opencl_networks.networks import onnxruntime
from experiments.records import Value, write_record
from predictors.errors import StretchError
from scheduler.bundle.load import Bundle, load_bundle
from scheduler.checks.verify import random_input
from scheduler.cores import available_cores, pinned
from scheduler.runtime.session import Session

HERE = Path(__file__).parent


def openvino_run(model: Path, x: np.ndarray[Any, Any], threads: int) -> Callable[[], Any]:
    """One inference of a model on OpenVINO, tuned for latency, as a call."""
    import openvino

    core = openvino.Core()
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    request = core.compile_model(str(model), "CPU", settings).create_infer_request()
    return lambda: request.infer([x], share_inputs=True, share_outputs=True)


def timed(call: Callable[[], Any]) -> float:
    """Milliseconds of one call."""
    start = time.perf_counter_ns()
    call()
    return (time.perf_counter_ns() - start) / 1e6


def contestants(
    bundle: Bundle, sessions: dict[str, Session], x: np.ndarray[Any, Any], cores: tuple[int, int]
) -> dict[str, Callable[[], float]]:
    """What takes turns; each gives its time in milliseconds."""
    original, whole = bundle.file("original.onnx"), bundle.file(bundle.manifest.whole)
    result: dict[str, Callable[[], float]] = {}
    for name, session in sessions.items():
        result[name] = lambda session=session: _run(session, x)
    for name, model in (("original", original), ("same net as one graph", whole)):
        with pinned(cores):
            two = onnxruntime(model, cores)
        result[f"{name}, ONNX Runtime, 2 threads"] = two.ms
        if importlib.util.find_spec("openvino"):
            call = openvino_run(model, x, 2)
            result[f"{name}, OpenVINO, 2 threads"] = lambda call=call: timed(call)
    one = onnxruntime(original)
    result["original, ONNX Runtime, 1 thread"] = one.ms
    return result


def _run(session: Session, x: np.ndarray[Any, Any]) -> float:
    session.run(x)
    return session.trace.makespan_ms


def main(words: list[str] | None = None) -> int:
    """Measure and write ``results/heterogeneous.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.opencl_networks.heterogeneous", description=__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "heterogeneous.json")
    options = parser.parse_args(words)
    load = os.getloadavg()[0]
    cores = available_cores()[:2]
    if len(cores) < 2:
        sys.stderr.write("error: this needs two cores\n")
        return 1
    bundle = load_bundle(options.bundle, check_hashes=True)
    x = random_input(bundle)
    maps = {"branches on ONNX Runtime and OpenCL": f"opencl{cores[1]}", "branches on ONNX Runtime twice": f"cpu{cores[1]}"}
    sessions = {name: Session(bundle, {"gpu": target}) for name, target in maps.items()}
    try:
        rows, efficiency = measure(bundle, sessions, x, (cores[0], cores[1]), options.rounds)
    except StretchError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return error.exit_code
    finally:
        for session in sessions.values():
            session.close()
    model = bundle.manifest.model
    write_record(
        options.out,
        {"times": rows, "efficiency": efficiency},
        source="measured",
        command=f"python -m experiments.opencl_networks.heterogeneous {options.bundle.name}",
        runs=options.rounds,
        interleaved=True,
        load=load,
        notes=[
            f"{model.name} planned for {bundle.manifest.device}, {model.macs / model.original_macs:.3f} of the original's MACs, random weights."
        ],
    )
    sys.stderr.write(f"{options.out} written; fill the pages with python -m experiments.render\n")
    return 0


def measure(
    bundle: Bundle, sessions: dict[str, Session], x: np.ndarray[Any, Any], cores: tuple[int, int], rounds: int
) -> tuple[list[dict[str, Value]], list[dict[str, Value]]]:
    """Times of all contestants, and how close each session comes to perfect overlap."""
    calls = contestants(bundle, sessions, x, cores)
    times: dict[str, list[float]] = {name: [] for name in calls}
    alone: dict[str, dict[str, list[float]]] = {name: {} for name in sessions}
    for i in range(rounds + 3):
        names = list(calls)
        for name in names[i % len(names) :] + names[: i % len(names)]:
            spent = calls[name]()
            if i >= 3:
                times[name].append(spent)
        for name, session in sessions.items():
            for subgraph in session.plan.subgraphs:
                spent = session.time_alone(subgraph)
                if i >= 3:
                    alone[name].setdefault(subgraph, []).append(spent)
    first = statistics.median(times[next(iter(sessions))])
    rows: list[dict[str, Value]] = [
        {
            "contestant": name,
            "median_ms": round(statistics.median(spent), 2),
            "p90_ms": round(statistics.quantiles(spent, n=10)[-1], 2),
            "speed_relative_to_branches": round(first / statistics.median(spent), 3),
        }
        for name, spent in times.items()
    ]
    efficiency: list[dict[str, Value]] = []
    for name, session in sessions.items():
        slowest: dict[str, float] = {}
        per_processor: dict[str, float] = {}
        for subgraph, spent in alone[name].items():
            planned, median = session.plan.subgraphs[subgraph], statistics.median(spent)
            slowest[planned.segment] = max(slowest.get(planned.segment, 0.0), median)
            processor = planned.processor
            per_processor[processor] = per_processor.get(processor, 0.0) + median
        ideal, built = sum(slowest.values()), statistics.median(times[name])
        busy = ", ".join(f"{processor} {ms:.1f}" for processor, ms in per_processor.items())
        efficiency.append(
            {
                "session": name,
                "slowest_branches_ms": round(ideal, 2),
                "makespan_ms": round(built, 2),
                "efficiency": round(ideal / built, 3),
                "alone_ms": busy,
            }
        )
    return rows, efficiency


if __name__ == "__main__":
    sys.exit(main())
