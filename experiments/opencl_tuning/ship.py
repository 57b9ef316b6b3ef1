"""Writes the tuned schedules that come with the package, for devices like this machine's: `python -m experiments.opencl_tuning.ship`.

Run it on a quiet machine, and again whenever a kernel's source has changed.
"""

import argparse
import multiprocessing
import statistics
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from experiments.opencl_networks.networks import NETWORKS, Runner, save_network
from experiments.opencl_networks.run import interleaved
from experiments.records import Value, write_record
from scheduler.cores import available_cores, pinned
from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.opencl.compiled import OpenCLCompiled
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.schedule import Options
from scheduler.delegates.opencl.tuner import ScheduleTuner, TunedSchedule, device_kind, node_times, schedule_entries, tuned_key
from scheduler.tuning import ANY_DRIVER, BETTER, shipped_path, write_entries

HERE = Path(__file__).parent

Key = tuple[str, str]


def tune(models: dict[str, Path], core: int) -> dict[Key, TunedSchedule]:
    """Tune the convolutions of all networks, each by itself."""
    delegate = OpenCLDelegate((core,), options=Options(tuned=False))
    result: dict[Key, TunedSchedule] = {}
    for name, model in models.items():
        tuned_already = {key: item.choice for key, item in result.items()}
        for item in ScheduleTuner(open_device((core,))).tune(delegate.prepare(model), tuned_already, budget_s=3600.0):
            result[item.kernel, item.shape] = item
        sys.stderr.write(f"{name}: {len(result) - len(tuned_already)} schedules\n")
    return {key: item for key, item in result.items() if item.choice != item.default}


def keys_of(compiled: OpenCLCompiled, tuneds: dict[Key, TunedSchedule]) -> dict[str, set[Key]]:
    """Return the tuned schedules that each node of a network depends on."""
    used: dict[str, set[Key]] = {}
    for launch in compiled.launches:
        keys = {tuned_key(launch), ("winograd", launch.shape.removesuffix(" input"))}
        used.setdefault(launch.node, set()).update(keys & tuneds.keys())
    return used


def helpful(
    delegate: OpenCLDelegate, models: dict[str, Path], tuneds: dict[Key, TunedSchedule], rounds: int, share: float
) -> dict[Key, TunedSchedule]:
    """Return the schedules with which the nodes that depend on them take at most `share` of their time, measured within the networks."""
    sums: dict[Key, list[float]] = {key: [0.0, 0.0] for key in tuneds}
    choices = {key: tuned.choice for key, tuned in tuneds.items()}
    for model in models.values():
        forms = delegate.compile_with(model, {}), delegate.compile_with(model, choices)
        before, after = node_times(*forms, rounds)
        for node, keys in keys_of(forms[1], tuneds).items():
            for key in keys:
                sums[key] = [sums[key][0] + before.get(node, 0.0), sums[key][1] + after[node]]
    return {key: tuneds[key] for key, (before, after) in sums.items() if 0.0 < after <= share * before}


def compare(
    delegate: OpenCLDelegate, models: dict[str, Path], tuneds: dict[Key, TunedSchedule], rounds: int
) -> tuple[list[dict[str, Value]], dict[Key, TunedSchedule]]:
    """Return the times of whole networks without and with the schedules, in turns; and the schedules that slow no network down."""
    rows: list[dict[str, Value]] = []
    good = dict(tuneds)
    for name, model in models.items():
        forms = delegate.compile_with(model, {}), delegate.compile_with(model, {key: tuned.choice for key, tuned in tuneds.items()})
        times = interleaved(dict(zip(("without", "with"), map(Runner, forms), strict=True)), rounds)
        before, after = (statistics.median(times[key]) for key in ("without", "with"))
        used = set().union(*keys_of(forms[1], tuneds).values())
        if before < after:
            good = {key: item for key, item in good.items() if key not in used}
        rows.append(
            {
                "network": name,
                "schedules": len(used),
                "without_ms": round(before, 2),
                "with_ms": round(after, 2),
                "without_over_with": round(before / after, 3),
            }
        )
    return rows, good


def main(words: list[str] | None = None) -> None:
    """Tune, keep the helpful schedules, and write the package's file and ``results/shipped.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.opencl_tuning.ship", description=__doc__)
    parser.add_argument("--rounds", type=int, default=101)
    parser.add_argument("--core", type=int, default=available_cores()[-1])
    options = parser.parse_args(words)
    kind = device_kind(open_device((options.core,)), half=False)
    delegate = OpenCLDelegate((options.core,), options=Options(tuned=False))
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, pinned((options.core,)):
        models = {name: save_network(name, Path(folder)) for name in NETWORKS}
        # PoCL takes longer to launch kernels in a process that has compiled hundreds of them, so tuning has a separate process.
        with ProcessPoolExecutor(1, mp_context=context) as child:
            result = child.submit(tune, models, options.core).result()
        result = helpful(delegate, models, result, rounds=9, share=BETTER)
        # Measured again with fewer others, so that lucky schedules are dropped.
        result = helpful(delegate, models, result, rounds=9, share=1.0)
        rows, good = compare(delegate, models, result, options.rounds)
        while len(good) < len(result):
            result = good
            rows, good = compare(delegate, models, result, options.rounds)
    write_entries(shipped_path(kind), kind, ANY_DRIVER, schedule_entries(list(result.values())))
    shipped_path(kind).chmod(0o644)
    write_record(
        HERE / "results" / "shipped.json",
        {"networks": rows},
        source="measured",
        command="python -m experiments.opencl_tuning.ship",
        runs=options.rounds,
        interleaved=True,
        notes=[f"{kind}: {len(result)} schedules, fp32, batch 1, one core, whole networks in turns, medians."],
    )


if __name__ == "__main__":
    main()
