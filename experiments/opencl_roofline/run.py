"""How close convolutions, networks and two cores come to what a core can do at most: `python -m experiments.opencl_roofline.run`."""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.opencl_networks.heterogeneous import openvino_run, timed
from experiments.opencl_networks.networks import Runner, forget_own_tuning, onnxruntime, opencl, save_network
from experiments.opencl_roofline.peaks import KERNEL_RUNS, PRODUCT_RUNS, counters, peaks
from experiments.records import About, Facts, Value, write_record
from predictors.errors import StretchError
from scheduler.cores import available_cores, pinned
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.launch import Launch

HERE = Path(__file__).parent
#: Runs behind a row of the launches.
PROFILED = 9
NETWORKS = ("resnet50", "mobilenet_v2", "efficientnet_b0")


class Roof:
    """The least time of a launch: its multiply-adds at the core's peak rate, or its bytes at the third cache's.

    Args:
        rows: Of `peaks`.
    """

    def __init__(self, rows: list[dict[str, Value]]) -> None:
        self.gflop_per_s = max(float(row["GFLOP_per_s"] or 0) for row in rows)
        self.gbyte_per_s = float(next(row["GB_per_s"] for row in rows if "third cache" in str(row["measurement"])) or 0)

    def ms(self, macs: int, moved: int) -> tuple[float, str]:
        """Milliseconds, and what bounds them."""
        compute, memory = 2 * macs / self.gflop_per_s / 1e6, moved / self.gbyte_per_s / 1e6
        return max(compute, memory), "compute" if compute >= memory else "memory"


def convolutions(network: str, runner: Runner, roof: Roof) -> list[dict[str, Value]]:
    """A row for each different launch with multiply-adds, by the device's clock within the network."""
    result: dict[tuple[str, str], list[Any]] = {}
    for item in runner.compiled.profile(PROFILED):
        if item.launch.macs:
            result.setdefault((item.launch.kernel, item.launch.shape), []).append(item)
    rows: list[dict[str, Value]] = []
    for (kernel, shape), times in result.items():
        launch: Launch = times[0].launch
        ms = statistics.mean(time.ms for time in times)
        moved = launch.traffic(4)
        least, bound = roof.ms(launch.macs, moved)
        rows.append(
            {
                "launch": f"{network}: {kernel} {shape}",
                "times": len(times),
                "ms": round(ms, 4),
                "GFLOP_per_s": round(2 * launch.macs / ms / 1e6, 1),
                "FLOP_per_byte": round(2 * launch.macs / moved, 1),
                "bound": bound,
                "share_of_roof": round(least / ms, 3),
            }
        )
    return rows


def network_rows(network: str, runners: dict[str, Any], roof: Roof, rounds: int) -> list[dict[str, Value]]:
    """Where a network's time goes on OpenCL, and how its rate compares with others' on the same core."""
    times: dict[str, list[float]] = {name: [] for name in runners}
    for _ in range(rounds):
        for name, call in runners.items():
            times[name].append(call())
    ours: Runner = runners["OpenCL"].__self__
    launches = ours.compiled.profile(PROFILED)
    # What a direct convolution computes, whatever the algorithm: the same work for all contestants.
    macs = direct_macs([launch.launch for launch in launches])
    least = 2 * macs / roof.gflop_per_s / 1e6
    inside = sum(launch.ms for launch in launches)
    convolution = sum(launch.ms for launch in launches if launch.launch.macs)
    rows: list[dict[str, Value]] = []
    for name, spent in times.items():
        ms = min(spent)
        mine = name == "OpenCL"
        rows.append(
            {
                "network and runtime": f"{network}, {name}",
                "least_ms": round(ms, 2),
                "share_of_peak": round(least / ms, 3),
                "in_convolutions": round(convolution / ms, 3) if mine else None,
                "in_other_kernels": round((inside - convolution) / ms, 3) if mine else None,
                "between_kernels": round(max(0.0, 1 - inside / ms), 3) if mine else None,
            }
        )
    return rows


def direct_macs(launches: list[Launch]) -> int:
    """Multiply-accumulates of the network's convolutions without Winograd's algorithm, which does 36 of 144."""
    winograd = {launch.node for launch in launches if launch.kernel == "winograd_in"}
    total = sum(launch.macs for launch in launches if launch.node not in winograd)
    for launch in launches:
        if launch.kernel == "winograd_in":
            total += words_macs(launch.shape)
    return total


def words_macs(shape: str) -> int:
    """Multiply-accumulates of a convolution by its shape in words, ``1x64x56x56->64x56x56 k3x3 s1x1 …``."""
    sides = shape.split()
    source, _, target = sides[0].partition("->")
    (n, c, _, _), (m, oh, ow), (kh, kw) = (tuple(map(int, text.split("x"))) for text in (source, target, sides[1].removeprefix("k")))
    return n * c * m * oh * ow * kh * kw


def on_both_cores(model: Path, cores: tuple[int, int], rounds: int) -> dict[str, float]:
    """Least milliseconds of a whole network on two threads; before the process is pinned to one core, for OpenVINO counts cores once.

    Args:
        model: The network.
        cores: Both.
        rounds: Repetitions.
    """
    with pinned(cores):
        known = onnxruntime(model, cores)
        vino = openvino_run(model, known.inputs[0], 2)
        calls = {"ONNX Runtime, 2 threads": known.ms, "OpenVINO, 2 threads": lambda: timed(vino)}
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                times[name].append(call())
    return {name: min(spent) for name, spent in times.items()}


def two_cores(measured: dict[str, float], one: dict[str, float], roof: Roof, macs: int) -> list[dict[str, Value]]:
    """ResNet-50 on both cores: whole graphs on two threads, and splits that are perfect by assumption.

    Args:
        measured: Milliseconds on both cores.
        one: Milliseconds of each runtime on one core.
        roof: Of one core.
        macs: Of the network.
    """
    best = min(measured.values())
    pairs = (("ONNX Runtime", "OpenCL"), ("OpenVINO", "OpenCL"), ("OpenCL", "OpenCL"))
    perfect = {f"perfect split, {a} and {b}": 1 / (1 / one[a] + 1 / one[b]) for a, b in pairs}
    least = 2 * macs / (2 * roof.gflop_per_s) / 1e6
    return [
        {
            "on both cores": name,
            "source": source,
            "ms": round(ms, 2),
            "share_of_both_peaks": round(least / ms, 3),
            "speed_over_best_sequential": round(best / ms, 3),
        }
        for source, table in (("measured", measured), ("predicted", perfect))
        for name, ms in table.items()
    ]


def about(limits: list[dict[str, Value]], both: list[dict[str, Value]]) -> dict[str, About]:
    """What differs between the tables of the record."""
    products = {str(row["measurement"]): Facts(runs=PRODUCT_RUNS) for row in limits if "product" in str(row["measurement"])}
    computed = {str(row["on both cores"]): Facts(source="predicted") for row in both if row["source"] == "predicted"}
    return {
        "peaks": About(runs=KERNEL_RUNS, interleaved=False, rows=products),
        "two_cores": About(rows=computed),
        "launches": About(runs=PROFILED, interleaved=False),
        "counters": About(runs=1, interleaved=False),
    }


def main(words: list[str] | None = None) -> int:
    """Measure and write ``results/host.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.opencl_roofline.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--out", type=Path, default=HERE / "results" / "host.json")
    options = parser.parse_args(words)
    load = os.getloadavg()[0]
    cores = available_cores()[:2]
    if len(cores) < 2:
        raise StretchError("this experiment needs two cores")
    core = cores[1]
    launches: list[dict[str, Value]] = []
    networks: list[dict[str, Value]] = []
    with tempfile.TemporaryDirectory() as folder:
        models = {name: save_network(name, Path(folder)) for name in NETWORKS}
        both = on_both_cores(models["resnet50"], (cores[0], core), options.rounds)
        forget_own_tuning(core, folder)
        with pinned((core,)):
            limits = peaks(open_device((core,)), Path(folder))
            roof = Roof(limits)
            for name, model in models.items():
                ours, known = opencl(model, core), onnxruntime(model)
                vino = openvino_run(model, ours.inputs[0], 1)
                runners = {"OpenCL": ours.ms, "ONNX Runtime": known.ms, "OpenVINO": lambda vino=vino: timed(vino)}
                for call in runners.values():
                    call()
                networks += network_rows(name, runners, roof, options.rounds)
                launches += convolutions(name, ours, roof)
                if name == "resnet50":
                    macs = direct_macs(list(ours.compiled.launches))
        one = {str(row["network and runtime"]).removeprefix("resnet50, "): float(row["least_ms"] or 0) for row in networks[:3]}
    both_cores = two_cores(both, one, roof, macs)
    write_record(
        options.out,
        {
            "peaks": limits,
            "networks": networks,
            "two_cores": both_cores,
            "launches": launches,
            "counters": counters(),
        },
        source="measured",
        command="python -m experiments.opencl_roofline.run",
        runs=options.rounds,
        interleaved=True,
        about=about(limits, both_cores),
        load=load,
        notes=[
            f"fp32, batch 1, random weights, the least time of all runs, in turns. The roof of a launch: its multiply-adds at {roof.gflop_per_s:g} GFLOP/s or its bytes, each moved once, at {roof.gbyte_per_s:g} GB/s, whichever takes longer. "
            "Share of peak: the multiply-adds of direct convolutions at that rate, over the time taken; Winograd's algorithm does fewer."
        ],
    )
    sys.stderr.write(f"{options.out} written; fill the pages with python -m experiments.render\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
