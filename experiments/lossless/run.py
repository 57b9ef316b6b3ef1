"""Gain of exact designs: `python -m experiments.lossless.run [floats|paths|exact|measured PROFILE]`."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.command import program
from experiments.lossless.measured import measured
from experiments.lossless.paths import exact, paths
from experiments.networks import MODELS, graph_of
from experiments.records import Row, write_record
from predictors.devices import load_device
from stretch.planning.config import PlanConfig
from stretch.planning.plan import plan

HERE = Path(__file__).parent
#: Phones, boards and a laptop whose processors have similar speeds for some networks, and the paper's phones.
DEVICES = {
    "a03s": "cpu,gpu",
    "mi8se": "cpu,gpu",
    "pixel4": "cpu,gpu",
    "rk3588": "cpu,gpu",
    "n5105": "cpu,gpu",
    "core-ultra-155h": "gpu,npu",
    "mi9": "cpu,gpu",
    "mi9-release": "cpu,gpu",
    "pixel6": "cpu,gpu",
    "s23": "cpu,gpu",
}
#: Factors on the time of every transfer.
LINKS = (0.5, 1.0, 2.0)


def main(words: Sequence[str] | None = None) -> None:
    """Plan everything, or measure, and write a record."""
    words = sys.argv[1:] if words is None else words
    if words[:1] == ["measured"]:
        measured(words[1:])
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("what", choices=["floats", "paths", "exact"])
        {"floats": floats, "paths": paths, "exact": exact}[parser.parse_args(words).what]()


def floats() -> None:
    """Record the gain of exact designs in precisions that need no images, as `--lossless` plans them."""
    rows = []
    for model, name in MODELS.items():
        graph = graph_of(model)
        for device, processors in DEVICES.items():
            result = plan(graph, load_device(device), PlanConfig(processors=tuple(processors.split(",")), lossless=True))
            speed = {factor: round(result.at_links(factor).speedup or 0.0, 3) for factor in LINKS}
            single = next(control for control in result.recommendation.compared if control.name.startswith("single"))
            same = result.sequential
            row: Row = {
                "network and device": f"{name}, {device} {processors}",
                "best single ms": round(result.best_single.ms, 2),
                "which": result.best_single.processor,
                "exact": speed[1.0],
                "exact, links 0.5": speed[0.5],
                "exact, links 2": speed[2.0],
                "low": round(single.low, 3),
                "high": round(single.high, 3),
                "over same MACs": None if same is None else round(same.single.ms / result.run.makespan_ms, 3),
                "MACs ratio": round(result.macs_ratio, 3),
                "halo %": round(100 * result.run.halo_macs / result.graph.macs, 1),
                "meetings": result.design.n_meet,
                "recommended": result.recommended.replace("_", " "),
            }
            rows.append(row)
            sys.stderr.write(json.dumps(row) + "\n")
    write_record(
        HERE / "results" / "floats.json",
        {"floats": rows},
        source="predicted",
        command="python -m experiments.lossless.run floats",
        notes=[
            "`--lossless` as it is by default, in fp32 and fp16: no images are needed. Networks at 224×224; nothing was measured.",
            "Speed-ups are over the original on the best single processor in the same precisions; `links 0.5` and `links 2` are the same designs where every transfer takes half or twice the time; low and high are the ends of the 90 % interval.",
        ],
    )


if __name__ == "__main__":
    program(main)
