"""The simulator against this machine, and how fast it is: `python -m experiments.simulator.run`; a run that was ended goes on where it was."""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns, process_time

import numpy as np

from experiments.host_profile.run import stretch
from experiments.records import About, Facts, Row, write_record
from predictors.devices import DeviceProfile, load_device
from predictors.errors import StretchError
from scheduler.bundle.load import Bundle, load_bundle
from scheduler.checks.verify import random_input
from scheduler.measure.steady import preferred
from scheduler.runtime.plan import make_plan
from scheduler.runtime.session import Session
from scheduler.runtime.trace import Trace
from scheduler.simulate.answer import prepare
from scheduler.simulate.clock import Clock
from scheduler.simulate.networks import Network, StepTime, device_placements
from scheduler.simulate.scene import Arrivals, Load, Scene

try:
    import resource
except ImportError:  # no such module on Windows, where every run counts as undisturbed
    resource = None  # type: ignore[assignment]

HERE = Path(__file__).parent

#: Networks that are branched for two cores with ONNX Runtime on each.
NETWORKS = (
    "resnet18",
    "resnet34",
    "resnet50",
    "resnext50_32x4d",
    "regnet_x_400mf",
    "regnet_x_800mf",
    "regnet_y_400mf",
    "mobilenet_v2",
    "mnasnet1_0",
    "vgg11_bn",
)

#: Both processors of the profile.
PLACES = {"cpu": "cpu0", "gpu": "cpu1"}

#: Rounds that do not count, and inferences of a bundle in its turn: the last one counts, for the caches hold its weights then.
WARMUP, IN_A_ROW = 2, 3

#: Columns of the record that are simulated.
SIMULATED_COLUMNS = (
    "simulated, ms",
    "simulated with measured steps, ms",
    "with measured steps and hand-overs of the other bundles, ms",
)

#: Inferences of a simulation whose rate is measured, and how often it is.
SIMULATED, REPEATS = 20_000, 5


@dataclass
class Observed:
    """What was measured of a bundle."""

    traces: list[Trace] = field(default_factory=list)  # Of each inference that counts.
    disturbed: list[bool] = field(default_factory=list)  # For each, whether the system gave a core to somebody else meanwhile.

    @property
    def kept(self) -> list[Trace]:
        """Those that nobody disturbed, if there are enough of them; else all."""
        whole = [trace for trace, disturbed in zip(self.traces, self.disturbed, strict=True) if not disturbed]
        return whole if len(whole) * 3 >= len(self.traces) else self.traces


def profile(work: Path, minutes: float) -> DeviceProfile:
    """The profile of this machine's two cores, made by the project's own verb unless an earlier run did."""
    if not (work / "host.toml").exists():
        begun = ["--resume"] if (work / "host.measurements").exists() else []
        words = ["--name", "host", "--processors", "cpu[1core],gpu=cpu", "--budget", str(minutes), "--out", str(work), *begun]
        (work / "profile.json").write_text(json.dumps(stretch("profile", *words)))
    return load_device(work / "host.toml")


def make_bundles(work: Path) -> dict[str, Bundle]:
    """Each network's bundle for that profile."""
    for name in NETWORKS:
        if not (work / f"b_{name}").exists():
            common = ["--device", str(work / "host.toml"), "--weights", "none", "--alpha", "100", "--set", "controls=false"]
            stretch("branch", name, *common, "--out", str(work / f"b_{name}"))
    return {name: load_bundle(work / f"b_{name}") for name in NETWORKS}


def measure(bundles: Mapping[str, Bundle], rounds: int) -> dict[str, Observed]:
    """Inferences of all bundles by turns, one at a time on the two cores."""
    sessions, measurement = {}, {name: Observed() for name in bundles}
    with preferred():
        try:
            for name, bundle in bundles.items():
                sessions[name] = Session(bundle, PLACES)
            inputs = {name: random_input(bundle) for name, bundle in bundles.items()}
            order = list(bundles)
            for number in range(-WARMUP, rounds):
                turn = number % len(order)
                for name in order[turn:] + order[:turn]:
                    for _ in range(IN_A_ROW):
                        before = _switches()
                        sessions[name].run(inputs[name])
                    if number >= 0:
                        measurement[name].traces.append(sessions[name].trace)
                        measurement[name].disturbed.append(_switches() > before)
        finally:
            for session in sessions.values():
                session.close()
    return measurement


def _switches() -> int:
    """How often the system took a core away from this process."""
    return 0 if resource is None else resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def step_medians(traces: Sequence[Trace]) -> dict[str, float]:
    """What each step took, median, ms."""
    times: dict[str, list[float]] = {}
    for trace in traces:
        for span in trace.spans:
            times.setdefault(span.name, []).append(span.ms)
    return {name: statistics.median(time) for name, time in times.items()}


@dataclass(frozen=True)
class Handoffs:
    """What lies between steps, ms."""

    there: float  # From the end of what it waits for to the start of a step on the other core.
    back: float  # From the end of such a step to the start of the next one on the calling thread.
    inline: float  # Between two steps on the calling thread.


def gaps(bundle: Bundle, traces: Sequence[Trace]) -> dict[str, list[float]]:
    """What lay between the steps of a bundle, ms, by the fields of `Handoffs`."""
    plan = make_plan(bundle.manifest)
    writers = {tensor: name for name in plan.order for tensor in plan.step(name).outputs}
    far = {name for name, entry in plan.subgraphs.items() if entry.processor == "gpu"}
    result: dict[str, list[float]] = {"there": [], "back": [], "inline": []}
    for trace in traces:
        spans = {span.name: span for span in trace.spans}
        for name in plan.order:
            before = [spans[writers[tensor]] for tensor in plan.step(name).inputs if tensor in writers]
            if not before:
                continue
            last = max(before, key=lambda span: span.end_ns)
            gap = (spans[name].start_ns - last.end_ns) / 1e6
            if name in far and last.name not in far:
                result["there"].append(gap)
            elif name not in far:
                result["back" if last.name in far else "inline"].append(gap)
    return result


def handoffs(known: Sequence[Mapping[str, Sequence[float]]]) -> Handoffs:
    """Medians over several bundles."""
    return Handoffs(**{field: statistics.median(gap for item in known for gap in item[field]) for field in ("there", "back", "inline")})


def from_traces(bundle: Bundle, device: DeviceProfile, medians: Mapping[str, float], between: Handoffs) -> float:
    """The simulation of an inference whose steps take what was measured, ms, with what other bundles take between them."""
    plan = make_plan(bundle.manifest)
    times = {}
    for name, entry in plan.subgraphs.items():
        ms = medians.get(name, 0.0)
        if entry.processor == "gpu":
            times[name] = StepTime("gpu", (("in", between.there), ("subgraph", ms), ("out", between.back)))
        else:
            times[name] = StepTime(entry.processor, (("in", between.inline), ("subgraph", ms)))
    times |= {name: StepTime(join.processor, (("join", medians.get(name, 0.0)),)) for name, join in plan.joins.items()}
    network = Network(str(bundle.path), plan, device_placements(bundle.manifest, device), times)
    (ms,) = Clock(network, Scene()).run().latencies_ms
    return ms


def row_of(name: str, bundle: Bundle, device: DeviceProfile, observed: Observed, others: Handoffs) -> Row:
    """A bundle's makespan: measured, simulated by the profile, and simulated with measured steps.

    Args:
        name: The network.
        bundle: Its bundle.
        device: The profile.
        observed: What was measured.
        others: What lies between the steps of the other bundles.
    """
    network = prepare(bundle, device, False, lambda text: None)
    (simulated,) = Clock(network, Scene()).run().latencies_ms
    kept = observed.kept
    spans = [trace.makespan_ms for trace in kept]
    measured = statistics.median(spans)
    medians = step_medians(kept)
    bare = from_traces(bundle, device, medians, Handoffs(0.0, 0.0, 0.0))
    current = from_traces(bundle, device, medians, others)
    computing = sum(ms for time in network.times.values() for doing, ms in time.parts if doing == "subgraph")
    return {
        "network": name,
        "branched segments": len(bundle.manifest.joins),
        "inferences": len(observed.traces),
        "undisturbed": len(observed.traces) - sum(observed.disturbed),
        "measured, ms": round(measured, 3),
        "p90, ms": round(float(np.percentile(spans, 90)), 3),
        "simulated, ms": round(simulated, 3),
        "simulated over measured": round(simulated / measured, 4),
        "subgraphs by the profile over measured": round(computing / sum(medians.get(name, 0.0) for name in network.plan.subgraphs), 4),
        "simulated with measured steps, ms": round(bare, 3),
        "that over measured": round(bare / measured, 4),
        "with measured steps and hand-overs of the other bundles, ms": round(current, 3),
        "this over measured": round(current / measured, 4),
    }


def summary(rows: Sequence[Row]) -> list[Row]:
    """Mean errors of both."""
    result: list[Row] = []
    for what, column in (
        ("times by the fitted profile", "simulated over measured"),
        ("times of the steps as measured", "that over measured"),
        ("the same, and the hand-overs between steps as measured in the other bundles", "this over measured"),
    ):
        errors = [abs(float(row[column] or 0) - 1) for row in rows]
        result.append(
            {
                "simulated with": what,
                "bundles": len(rows),
                "mean error": round(statistics.mean(errors), 4),
                "median error": round(statistics.median(errors), 4),
                "largest error": round(max(errors), 4),
                "mean of the ratios": round(statistics.mean(float(row[column] or 0) for row in rows), 4),
            }
        )
    return result


def rates(bundles: Mapping[str, Bundle], device: DeviceProfile) -> list[Row]:
    """Inferences that a second simulates."""
    names = list(bundles)
    networks = {name: prepare(bundle, device, True, lambda text: None) for name, bundle in bundles.items()}
    alone = {name: Clock(networks[name], Scene()).run().latencies_ms[0] for name in names}
    first, other = names[0], names[-3]
    busy = (Load("gpu", 0.5, 10.0, 1e6),)
    scenes: dict[str, tuple[str, Scene, bool]] = {
        f"{name}, undisturbed": (name, Scene(runs=SIMULATED), False) for name in (first, names[2], other)
    }
    scenes |= {
        f"{first}, jitter and a load": (first, Scene(runs=SIMULATED, jitter=0.1, loads=busy), False),
        f"{first}, three in flight, random requests": (
            first,
            Scene(runs=SIMULATED, in_flight=3, arrivals=Arrivals("poisson", alone[first])),
            False,
        ),
        f"{first} with {other} beside": (first, Scene(runs=SIMULATED), True),
    }
    return [
        _rate(what, networks[name], scene, [networks[other]] if concurrent else []) for what, (name, scene, concurrent) in scenes.items()
    ]


def _rate(what: str, network: Network, scene: Scene, workloads: Sequence[Network]) -> Row:
    seconds, ended = [], 0
    for _ in range(REPEATS):
        clock = Clock(network, scene, [(workload, Scene(runs=scene.runs)) for workload in workloads])
        start = process_time()
        run_result = clock.run()
        seconds.append(process_time() - start)
        ended = sum(len(served.latencies_ms) for served in run_result.clients)
    return {
        "simulation": what,
        "steps of an inference": len(network.plan.order),
        "inferences": ended,
        "inferences a second": round(ended / statistics.median(seconds)),
    }


def main(words: list[str] | None = None) -> int:
    """Profile, branch, measure, simulate, and write ``results/host.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.simulator.run", description=__doc__)
    parser.add_argument("--budget", type=float, default=10, help="minutes of measuring for the profile")
    parser.add_argument("--rounds", type=int, default=30, help="measured inferences of each bundle")
    parser.add_argument("--work", type=Path, default=Path("runs/simulator"), help="what is kept between runs: remove it to begin anew")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "host.json")
    options = parser.parse_args(words)
    options.work.mkdir(parents=True, exist_ok=True)
    try:
        device = profile(options.work, options.budget)
        bundles = make_bundles(options.work)
        load, start = os.getloadavg()[0], perf_counter_ns()
        observed = measure(bundles, options.rounds)
    except StretchError as error:
        sys.stderr.write(f"error: {error.message}\n\nhint: {error.hint}\n")
        return error.exit_code
    sys.stderr.write(f"measured for {(perf_counter_ns() - start) / 1e9:.0f} s\n")
    between = {name: gaps(bundle, observed[name].kept) for name, bundle in bundles.items()}
    rows = [
        row_of(name, bundle, device, observed[name], handoffs([gap for other, gap in between.items() if other != name]))
        for name, bundle in bundles.items()
    ]
    every = handoffs(list(between.values()))
    links: list[Row] = [
        {"hand-over": what, "median, µs": round(1e3 * ms, 1)}
        for what, ms in (("to the other core", every.there), ("back from it", every.back), ("on the calling thread", every.inline))
    ]
    link = device.links["gpu"]
    stated = link.map_ms.value + link.unmap_ms.value + link.sync_ms.value
    links.append({"hand-over": "there and back, as the profile has it", "median, µs": round(1e3 * stated, 1)})
    factors: list[Row] = [
        {
            "processor": name,
            "factor on computing": slowing.arithmetic,
            "factor on moving memory": slowing.memory,
        }
        for name, slowing in (("cpu", device.slowing("cpu", ["gpu"])), ("gpu", device.slowing("gpu", ["cpu"])))
    ]
    predicted = Facts(source="simulated")
    write_record(
        options.out,
        {"bundles": rows, "summary": summary(rows), "handovers": links, "contention": factors, "rate": rates(bundles, device)},
        source="measured",
        command=f"chrt -r 1 python -m experiments.simulator.run --budget {options.budget:g} --rounds {options.rounds}",
        runs=options.rounds,
        interleaved=True,
        about={
            "bundles": About(
                columns=dict.fromkeys(SIMULATED_COLUMNS, predicted),
            ),
            "rate": About(runs=REPEATS, interleaved=False),
            "handovers": About(interleaved=False),
        },
        load=load,
        notes=[
            f"The profile is of this machine ({device.soc}), made by `stretch profile`: ONNX Runtime on one core as the cpu, on the other as the gpu.",
            f"All bundles take turns, {IN_A_ROW} inferences each, of which the last counts; inferences during which the system gave a core to "
            "somebody else are left out where a third and more are left.",
            "Run at real-time priority (chrt -r 1) beside other work on the same two cores, so that no other process delays a hand-over; what it "
            "takes of caches and memory stays.",
            "Rates are per second of computing time of one core.",
        ],
    )
    sys.stderr.write(f"{options.out} written; fill the pages with python -m experiments.render\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
