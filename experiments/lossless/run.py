"""What exact, stretched and mixed designs gain: `python -m experiments.lossless.run [predict|bounds|floats|paths|measured PROFILE]`."""

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from math import exp, log
from pathlib import Path

from msgspec.structs import replace

from experiments.lossless.measured import measured
from experiments.lossless.paths import exact, own_precisions, paths
from experiments.records import ROOT, About, Value, write_record
from predictors.devices import DeviceProfile, load_device
from predictors.errors import InfeasibleError
from predictors.graph import OpGraph
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan
from stretch.planning.result import PlanResult

HERE = Path(__file__).parent
#: The networks of paper 003 by the names that load them, all at 224×224.
MODELS = {
    "resnet34": "ResNet-34",
    "resnet50": "ResNet-50",
    "regnet_x_1_6gf": "RegNetX-1.6GF",
    "timm:regnetx_040": "RegNetX-4GF",
    "timm:efficientnet_lite4": "EfficientNet-Lite4",
    "efficientnet_b5": "EfficientNet-B5",
}
INPUT = (1, 3, 224, 224)
DEVICES = (("mi9", "cpu,gpu"), ("mi9", "cpu,dsp"), ("mi9", "cpu,gpu,dsp"), ("pixel6", "cpu,gpu"))
#: Profiles: the one that version 0.1.0 had, which tests keep as a file, and today's.
PROFILES = ("0.1.0", "fitted")
#: What exact designs were to reach in the mean on the profile of version 0.1.0.
GOALS = {("mi9", "cpu,gpu"): 1.30, ("mi9", "cpu,dsp"): 1.30, ("mi9", "cpu,gpu,dsp"): 1.45}
KINDS = {"exact": ("rows", "channels", "graph"), "stretched": ("stretch",), "mixed": ("stretch", "rows", "channels", "graph")}
#: Factors on the time of every transfer.
LINKS = (0.5, 1.0, 2.0)
Row = dict[str, Value]


def profile(which: str, device: str) -> DeviceProfile:
    """The profile of a device as version 0.1.0 had it, as it is now, or calibrated by the NN-Stretch release."""
    if which == "release":
        return load_device(f"{device}-release")
    return load_device(str(ROOT / "tests" / "predictors" / "profiles" / f"{device}.toml") if which == "0.1.0" else device)


def graph_of(model: str) -> OpGraph:
    """A network as operators, weights left out."""
    from stretch.capture import capture
    from stretch.models.load import load_model

    return capture(load_model(model, weights="none").module, INPUT, model).graph


def planned(graph: OpGraph, device: DeviceProfile, processors: str, kinds: Sequence[str]) -> tuple[PlanResult | None, float]:
    """The fastest design of some kinds, None where there is none; and how long planning took, s."""
    start = time.perf_counter()
    try:
        result = plan(graph, device, PlanConfig(kinds=tuple(kinds), **own_precisions(device, processors)))
    except InfeasibleError:
        result = None
    return result, time.perf_counter() - start


def rows_of(model: str, graph: OpGraph, which: str, device: str, processors: str) -> tuple[Row, Row, Row]:
    """One network on some processors: speed-ups of each kind, what the designs are, and how long planning took."""
    name = f"{MODELS[model]}, {device} {processors}, {which}"
    speed: Row = {"network, device and profile": name}
    design: Row = {"network, device and profile": name}
    seconds: Row = {"network, device and profile": name}
    known = profile(which, device)
    for kind, kinds in KINDS.items():
        result, took = planned(graph, known, processors, kinds)
        seconds[f"{kind} s"] = round(took, 1)
        if kind == "exact" and result is not None:
            speed |= {"best single ms": round(result.best_single.ms, 2), "which": result.best_single.processor}
        for factor in LINKS:
            rows = None if result is None else result.at_links(factor).speedup
            speed[kind if factor == 1 else f"{kind}, links {factor:g}"] = None if rows is None else round(rows, 3)
        same = result.sequential if result is not None else None
        speed[f"{kind} over same MACs"] = None if result is None or same is None else round(same.single.ms / result.run.makespan_ms, 3)
        design |= _design(kind, result)
    return speed, design, seconds


def _design(kind: str, result: PlanResult | None) -> Row:
    if result is None:
        empty = ("MACs ratio", "halo %", "meetings", "moving %")
        return {f"{kind}: {what}": None for what in (*empty, "recommended")}
    return {
        f"{kind}: MACs ratio": round(result.macs_ratio, 3),
        f"{kind}: halo %": round(100 * result.run.halo_macs / result.graph.macs, 1),
        f"{kind}: meetings": result.design.n_meet,
        f"{kind}: moving %": round(100 * result.run.communication_ms / result.run.makespan_ms, 1),
        f"{kind}: recommended": result.recommended.replace("_", " "),
    }


def means(speeds: Sequence[Row], models: Sequence[str]) -> list[Row]:
    """Geometric means of the speed-ups: of exact designs over all networks, of others over those that have a stretched one."""
    result = []
    for which in PROFILES:
        for device, processors in DEVICES:
            names = [f"{MODELS[model]}, {device} {processors}, {which}" for model in models]
            some = [row for row in speeds if row["network, device and profile"] in names]
            both = [item for item in some if item["stretched"] is not None]
            row: Row = {
                "device and profile": f"{device} {processors}, {which}",
                "networks": len(some),
                "with a stretched design": len(both),
            }
            row["goal"] = GOALS.get((device, processors)) if which == "0.1.0" else None
            for kind in KINDS:
                for factor in LINKS:
                    column = kind if factor == 1 else f"{kind}, links {factor:g}"
                    values = [float(item[column] or 1.0) for item in (some if kind == "exact" else both)]
                    row[column] = round(exp(sum(map(log, values)) / len(values)), 3) if values else None
            result.append(row)
    return result


def easier(device: DeviceProfile, *, fixed: bool) -> DeviceProfile:
    """A device on which moving a tensor costs no time for its size, and with `fixed` none at all."""
    links = {}
    for name, link in device.links.items():
        quick = replace(link, convert_gbs=replace(link.convert_gbs, value=1e9), convert_back_gbs=None)
        nothing = {part: replace(getattr(link, part), value=0.0) for part in ("map_ms", "unmap_ms", "sync_ms")}
        links[name] = replace(quick, **nothing) if fixed else quick
    return dataclasses.replace(device, links=links)


def bounds(models: Sequence[str]) -> None:
    """Record what exact designs would gain if exchanges were cheaper, so that it is seen what limits them."""
    rows: list[Row] = []
    for model in models:
        graph = graph_of(model)
        for device, processors in DEVICES:
            base = profile("0.1.0", device)
            row: Row = {"network and device": f"{MODELS[model]}, {device} {processors}"}
            for column, known in (("as stated", base), ("only fixed costs", easier(base, fixed=False)), ("free", easier(base, fixed=True))):
                result, _ = planned(graph, known, processors, KINDS["exact"])
                single = None if result is None else result.best_single.ms / result.run.makespan_ms
                row[column] = None if single is None else round(single, 3)
                if result is not None and column == "as stated":
                    row["of ideal"] = round(result.ideal_split_ms / result.run.makespan_ms, 3)
            rows.append(row)
            sys.stderr.write(json.dumps(row) + "\n")
    table: list[Row] = []
    for device, processors in DEVICES:
        some = [row for row in rows if str(row["network and device"]).endswith(f", {device} {processors}")]
        mean: Row = {"device": f"{device} {processors}"}
        for column in ("as stated", "only fixed costs", "free"):
            mean[column] = round(exp(sum(log(float(row[column] or 1.0)) for row in some) / len(some)), 3)
        table.append(mean)
    write_record(
        HERE / "results" / "bounds.json",
        {"means": table, "networks": rows},
        source="predicted",
        command="python -m experiments.lossless.run bounds",
        runs=None,
        load=None,
        notes=[
            "Exact designs on the profile of version 0.1.0, planned anew for each column; the best single processor has the same links.",
            "`only fixed costs`: a tensor crosses in the fixed time of its link, whatever its size. No exchange of halo rows alone can be cheaper.",
            "`free`: nothing that crosses takes any time.",
        ],
    )


def main(words: Sequence[str] | None = None) -> int:
    """Plan everything, or measure, and write a record; gives the exit code."""
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["measured"]:
        return measured(words[1:])
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["predict", "bounds", "floats", "paths", "exact"], nargs="?", default="predict")
    parser.add_argument("--models", default=",".join(MODELS), help="networks, separated by commas")
    options = parser.parse_args(words)
    if options.what == "paths":
        paths()
    elif options.what == "exact":
        exact()
    else:
        {"predict": predict, "bounds": bounds, "floats": floats}[options.what](options.models.split(","))
    return 0


def floats(models: Sequence[str]) -> None:
    """Record what exact designs gain in precisions that need no images, as `--lossless` plans them."""
    rows: list[Row] = []
    for model in models:
        result = plan(graph_of(model), load_device("mi9"), PlanConfig(processors=("cpu", "gpu"), lossless=True))
        figures = {factor: round(result.at_links(factor).speedup or 0.0, 3) for factor in LINKS}
        rows.append(
            {
                "network": MODELS[model],
                "best single ms": round(result.best_single.ms, 2),
                "which": result.best_single.processor,
                "exact": figures[1.0],
                "exact, links 0.5": figures[0.5],
                "exact, links 2": figures[2.0],
                "recommended": result.recommended.replace("_", " "),
            }
        )
        sys.stderr.write(json.dumps(rows[-1]) + "\n")
    write_record(
        HERE / "results" / "floats.json",
        {"floats": rows},
        source="predicted",
        command="python -m experiments.lossless.run floats",
        runs=None,
        load=None,
        notes=[
            "`--lossless` as it is by default, for the CPU in fp32 and the GPU in fp16 of the Mi 9, fitted profile: no images are needed.",
            "Speed-ups are over the original on the best single processor in the same precisions; `links` as in the other tables.",
        ],
    )


def predict(models: Sequence[str]) -> None:
    """Record what is planned for every network, device and profile."""
    load = os.getloadavg()[0]
    speeds, designs, seconds = [], [], []
    for model in models:
        graph = graph_of(model)
        for which in PROFILES:
            for device, processors in DEVICES:
                speed, design, took = rows_of(model, graph, which, device, processors)
                speeds.append(speed)
                designs.append(design)
                seconds.append(took)
                sys.stderr.write(json.dumps(speed) + "\n")
    write_record(
        HERE / "results" / "predicted.json",
        {"means": means(speeds, models), "speed-ups": speeds, "designs": designs, "seconds": seconds},
        source="predicted",
        command="python -m experiments.lossless.run predict",
        runs=None,
        load=load,
        about={"seconds": About(source="measured", runs=1)},
        notes=[
            "Speed-ups are over the original on the best single processor, core set and precision at least as wide; nothing was measured on a phone.",
            "`exact` designs compute the original's output in bands of rows or along its own paths; `stretched` ones are other networks, which want training; `mixed` ones have segments of every kind.",
            "`links 0.5` and `links 2` are the same designs where every transfer takes half or twice the time that the profile states.",
            "Means of exact designs are over all networks, those of stretched and mixed ones over the networks that have a stretched design within the default rules.",
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
