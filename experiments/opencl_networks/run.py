"""Whole networks on OpenCL (PoCL) and on ONNX Runtime, both on the same one core: `python -m experiments.opencl_networks.run`."""

import argparse
import multiprocessing
import random
import statistics
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from experiments.opencl_networks.networks import NETWORKS, Runner, difference, forget_own_tuning, onnxruntime, opencl, save_network
from experiments.records import About, Value, write_record
from scheduler.cores import available_cores, pinned

HERE = Path(__file__).parent
#: Number of runs for a row of the kernels.
PROFILED = 5

#: Variants of compiling a network, each with one changed option of the delegate.
VARIANTS: dict[str, dict[str, object]] = {
    "as it is": {},
    "without the package's schedules": {"tuned": False},
    "without Winograd": {"winograd": "off"},
    "Winograd wherever it can": {"winograd": "on"},
    "nothing fused": {"fuse": False},
    "padded copies instead of border checks": {"borders": "pad"},
    "tiles of paper 004 (VH 1, VW 4, VC 4 as half a vector)": {"schedule": "tvm"},
}


def interleaved(runners: dict[str, Runner], rounds: int) -> dict[str, list[float]]:
    """Return the times of all networks in ms, one run each per round in random order, because the previous run determines the caches."""
    names = list(runners)
    times: dict[str, list[float]] = {name: [] for name in names}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(names, len(names)):
            times[name].append(runners[name].ms())
    return times


def p90(times: list[float]) -> float:
    """Return the 90th percentile."""
    return statistics.quantiles(times, n=10)[-1]


Rows = list[dict[str, Value]]


def measure(name: str, core: int, rounds: int) -> tuple[Rows, Rows, Rows]:
    """Return the rows of a network, of its variants, and of the cost of each kind of kernel.

    Args:
        name: Name in `NETWORKS`.
        core: Core for all runs.
        rounds: Number of runs of each.
    """
    variants: Rows = []
    with tempfile.TemporaryDirectory() as folder, pinned((core,)):
        forget_own_tuning(core, folder)
        model = save_network(name, Path(folder))
        baseline, own = onnxruntime(model), opencl(model, core)
        times = interleaved({"ONNX Runtime": baseline, "OpenCL": own}, rounds)
        base, opencl_ms = statistics.median(times["ONNX Runtime"]), statistics.median(times["OpenCL"])
        network: dict[str, Value] = {
            "network": name,
            "OpenCL_ms": round(opencl_ms, 2),
            "OpenCL_p90_ms": round(p90(times["OpenCL"]), 2),
            "ONNX_Runtime_ms": round(base, 2),
            "ONNX_Runtime_p90_ms": round(p90(times["ONNX Runtime"]), 2),
            "speed_over_ONNX_Runtime": round(base / opencl_ms, 3),
            "max_error": difference(own, baseline),
            "launches": len(own.compiled.launches),
            "intermediates_MB": round(own.compiled.allocation.total_bytes / 1e6, 2),
        }
        kinds = by_kind(name, own)
        runners = {"ONNX Runtime": baseline} | {what: opencl(model, core, **options) for what, options in VARIANTS.items()}
        times = interleaved(runners, rounds)
        base, opencl_ms = statistics.median(times["ONNX Runtime"]), statistics.median(times["as it is"])
        for what in VARIANTS:
            median = statistics.median(times[what])
            variants.append(
                {
                    "network and variant": f"{name}, {what}",
                    "median_ms": round(median, 2),
                    "speed_over_as_it_is": round(opencl_ms / median, 3),
                    "speed_over_ONNX_Runtime": round(base / median, 3),
                    "max_error": difference(runners[what], baseline),
                }
            )
    return [network], variants, kinds


def by_kind(name: str, runner: Runner) -> list[dict[str, Value]]:
    """Return time and rate of each kernel of a network, by the device's clock."""
    total: dict[str, tuple[int, float, int]] = {}
    for launch, took in runner.compiled.profile(PROFILED):
        count, ms, macs = total.get(launch.kernel, (0, 0.0, 0))
        total[launch.kernel] = (count + 1, ms + took, macs + launch.macs)
    whole = sum(ms for _, ms, _ in total.values())
    return [
        {
            "network and kernel": f"{name}, {kernel}",
            "launches": count,
            "ms": round(ms, 3),
            "share": round(ms / whole, 3),
            "GFLOP_per_s": round(2 * macs / ms / 1e6, 1) if macs else None,
        }
        for kernel, (count, ms, macs) in sorted(total.items(), key=lambda item: -item[1][1])
    ]


def main(words: list[str] | None = None) -> None:
    """Measure and write ``results/host.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.opencl_networks.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--core", type=int, default=available_cores()[-1])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "host.json")
    options = parser.parse_args(words)
    tables: tuple[Rows, Rows, Rows] = ([], [], [])
    for name in NETWORKS:
        # PoCL takes longer to launch kernels in a process that has compiled hundreds of them, so each network has a separate process.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as child:
            for table, rows in zip(tables, child.submit(measure, name, options.core, options.rounds).result(), strict=True):
                table += rows
    networks, variants, kinds = tables
    write_record(
        options.out,
        {"networks": networks, "variants": variants, "kernels": kinds},
        source="measured",
        command="python -m experiments.opencl_networks.run",
        runs=options.rounds,
        interleaved=True,
        about={"kernels": About(runs=PROFILED, interleaved=False)},
        notes=[
            "fp32, batch 1, one thread of each on the same core, random weights, nothing tuned on the machine by its user. "
            f"Tile costs of our kernels were fitted to convolutions of these same networks ({', '.join(NETWORKS)}); no network here is held out."
        ],
    )


if __name__ == "__main__":
    main()
