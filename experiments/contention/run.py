"""Gain of changing between plans while others use a processor: `python -m experiments.contention.run`."""

import argparse
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from experiments.command import program, stretch
from experiments.records import Row, write_record
from predictors.devices import load_device
from predictors.thermal import read_thermal
from scheduler.bundle.load import load_bundle
from scheduler.simulate.answer import prepare
from scheduler.simulate.clock import Clock, SimulationResult
from scheduler.simulate.networks import Network
from scheduler.simulate.scene import Arrivals, Heat, Load, Scene, parse_loads, powers

HERE = Path(__file__).parent

#: Network and phone of the paper's figure 13.
MODEL, DEVICE = "resnet34", "mi9-release"

#: Plans for the network, by the processors that they may use.
PLANS = ("gpu,dsp", "cpu,dsp", "cpu,gpu")

#: Plan that works for half an hour; the profile states the power of both of its processors.
HOT = "cpu,gpu"

SWITCHING = "changing between them"

#: Phases of figure 13: the processor that others use, and the first and last inference.
PHASES = (("gpu", 0, 50), ("cpu", 50, 155), ("gpu", 155, 200))

#: Time between two requests in ms: far more than any undisturbed plan takes, so that each inference is in its own phase.
EVERY_MS = 200.0

#: Share of a processor that others use in their phase.
SHARES = (0.5, 0.75, 0.9)

#: Share for which inferences are listed one by one.
LISTED = SHARES[-1]

#: Minutes of work between which means are listed.
MINUTES = (0, 1, 2, 5, 10, 20, 30)

#: Loads in ms while inferences follow each other without pause, and numbers of inferences: a load that ends after a few
#: inferences, and one of ten times its length.
BUSY = {"gpu=0.9@50:155": 30, "gpu=0.9@500:1550": 200}


def make_networks(work: Path) -> dict[str, Network]:
    """Return the bundle of each plan, by its processors."""
    device = load_device(DEVICE)
    networks = {}
    for processors in PLANS:
        folder = work / f"{MODEL}_{processors.replace(',', '_')}"
        if not folder.exists():
            words = ["--device", DEVICE, "--processors", processors, "--weights", "none", "--set", "controls=false", "--out", str(folder)]
            stretch("branch", MODEL, *words)
        bundle = load_bundle(folder)
        network = prepare(bundle, device, False, [])
        networks[processors] = Network(processors, network.plan, network.placements, network.times)
    return networks


def phases(networks: Mapping[str, Network], share: float, every_ms: float = EVERY_MS) -> dict[str, SimulationResult]:
    """Simulate the three phases with each plan alone, and with all plans to choose from.

    Args:
        networks: The plans.
        share: Share of a processor that others take in their phase.
        every_ms: Time between two requests, ms.
    """
    loads = tuple(Load(name, share, first * every_ms, last * every_ms) for name, first, last in PHASES)
    scene = Scene(runs=PHASES[-1][2], arrivals=Arrivals("periodic", every_ms), loads=loads)
    current = {name: Clock(network, replace(scene, loads=_met(network, loads))).run() for name, network in networks.items()}
    return current | {SWITCHING: Clock(tuple(networks.values()), scene).run()}


def _met(network: Network, loads: Sequence[Load]) -> tuple[Load, ...]:
    """Return the loads on processors that a plan uses; other loads do not affect it."""
    used = {time.processor for time in network.times.values()}
    return tuple(load for load in loads if load.processor in used)


def at_once(networks: Mapping[str, Network]) -> list[Row]:
    """Simulate the loads of the command line, in ms, without and with other plans."""
    first, rows = next(iter(networks.values())), []
    for busy, runs in BUSY.items():
        scene = Scene(runs=runs, loads=parse_loads([busy]))
        for name, current in ((first.name, (first,)), (SWITCHING, tuple(networks.values()))):
            run_result = Clock(current, scene).run()
            row: Row = {
                "load and plan": f"{busy}, {name}",
                "inferences": runs,
                "elapsed, ms": round(run_result.elapsed_ms, 1),
                "median, ms": round(statistics.median(run_result.latencies_ms), 2),
                "worst, ms": round(max(run_result.latencies_ms), 2),
                "over twice the undisturbed": sum(ms > 2 * run_result.latencies_ms[0] for ms in run_result.latencies_ms),
            }
            rows.append(row)
    return rows


def heat(network: Network) -> list[Row]:
    """Simulate inferences without pause for half an hour on a chip that heats up; return means over some minutes."""
    device, thermal = load_device(DEVICE), read_thermal(HERE / "heat.toml")
    used = dict.fromkeys(time.processor for time in network.times.values())
    (alone,) = Clock(network, Scene()).run().latencies_ms
    body = Heat(thermal, powers(device, thermal, used))
    run_result = Clock(network, Scene(runs=round(MINUTES[-1] * 6e4 / alone)), heat=body).run()
    ends = np.cumsum(run_result.latencies_ms) / 6e4
    rows: list[Row] = []
    for first, last in pairwise(MINUTES):
        part = np.asarray(run_result.latencies_ms)[(ends > first) & (ends <= last)]
        rows.append({"minutes": f"{first} to {last}", "mean, ms": round(float(np.mean(part)), 2), "over the first": None})
    return [row | {"over the first": round(float(row["mean, ms"] or 0) / float(rows[0]["mean, ms"] or 1), 2)} for row in rows]


def rows_of(what: str, latencies: Sequence[float]) -> Row:
    """Return the median and worst latency in each phase."""
    row: Row = {"plan": what}
    for name, first, last in PHASES:
        part = latencies[first:last]
        row[f"{first} to {last}, {name} contended: median, ms"] = round(statistics.median(part), 2)
        row[f"{first} to {last}: worst, ms"] = round(max(part), 2)
    row["mean, ms"] = round(statistics.mean(latencies), 2)
    return row


def main(words: list[str] | None = None) -> None:
    """Simulate and write ``results/simulated.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.contention.run", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/contention"), help="folder of the bundles")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "simulated.json")
    options = parser.parse_args(words)
    options.work.mkdir(parents=True, exist_ok=True)
    networks = make_networks(options.work)
    mapping = {share: phases(networks, share) for share in SHARES}
    listed = mapping[LISTED]
    changed = listed[SWITCHING].clients[0]
    undisturbed: list[Row] = [
        {"plan": name, "undisturbed, ms": round(Clock(network, Scene()).run().latencies_ms[0], 2), "inferences": changed.ran[name]}
        for name, network in networks.items()
    ]
    tables: dict[str, list[Row]] = {
        "plans": undisturbed,
        "phases": [rows_of(name, item.latencies_ms) for name, item in listed.items()],
        "shares": [
            {"share taken": f"{share:g}"} | {f"{name}, mean ms": round(statistics.mean(run.latencies_ms), 2) for name, run in runs.items()}
            for share, runs in mapping.items()
        ],
        "decisions": [
            {
                "after inference": decision.inference,
                "what": decision.kind,
                "plan": decision.after,
                "why": decision.reason,
            }
            for _, decision in changed.decisions
        ],
        "latencies": [
            {"inference": number} | {name: round(item.latencies_ms[number], 3) for name, item in listed.items()}
            for number in range(PHASES[-1][2])
        ],
        "at_once": at_once(networks),
        "heat": heat(networks[HOT]),
    }
    write_record(
        options.out,
        tables,
        source="simulated",
        command="python -m experiments.contention.run",
        runs=1,
        notes=[
            f"{MODEL} planned for {DEVICE} with {', '.join(PLANS)}; a request every {EVERY_MS:g} ms; {LISTED:g} of a processor taken where "
            "nothing else is said.",
            "heat: inferences follow each other for half an hour on a chip of assumed round numbers, experiments/contention/heat.toml.",
            "at_once: inferences follow each other without a pause, and others take the GPU between the stated milliseconds.",
        ],
    )
    sys.stderr.write(json.dumps(tables["phases"], indent=1) + "\n")


if __name__ == "__main__":
    program(main)
