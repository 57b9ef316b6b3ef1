"""Contenders of equal predicted latency: `python -m experiments.equal_latency.networks` writes ``results/networks.json``.

A network at speed s is predicted to take at most the original's time on the best single processor over s: branches on all
processors, plain networks on the best single one. Of those that do, the one with most multiply-accumulates is taken.
"""

import argparse
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from experiments.equal_latency.ideas import IDEAS, designed, with_idea
from experiments.equal_latency.parents import PARENTS, RESNETS, Parent
from experiments.records import Row, read_record, write_record
from predictors.devices import load_device
from predictors.errors import InfeasibleError
from predictors.graph import OpGraph
from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import timeline
from stretch.planning.design.branch_design import BranchDesign, BranchDraft, DesignDraft, SegmentDraft
from stretch.planning.design.scale import resolve_design, scaled_graph
from stretch.planning.plan import plan
from stretch.planning.result import PlanResult, ranked_singles

#: Blocks and channels of the stages of a plain network.
Shape = tuple[tuple[int, ...], tuple[int, ...]]

HERE = Path(__file__).parent
RECORD = HERE / "results" / "networks.json"
PROFILES = ("mi9-release", "pixel6")
SPEEDS = (1.25, 1.5, 1.8)
#: Side of the images for which latency is predicted, and of the training images, in pixels.
SIZE, TRAINED = 512, 32
#: Image sizes for which the fastest branches are shown.
SIZES = (TRAINED, 128, 256, SIZE)
#: Maximum share by which the latency of plain networks may be below the requested one.
NEAR = 0.03
#: Maximum difference between the stages' ratios of width to the original's.
APART = 0.26
#: Candidates for the minimum multiply-accumulates of branches over the original's; the first that is fast enough is taken.
MACS = tuple(round(1.8 - 0.01 * number, 2) for number in range(140))
#: Exchanges may take any share of a segment, as the planner allows if nothing else is faster than one processor.
ANY = 100.0
PLANNED: dict[str, dict[str, Any]] = {"branches": {"merge": "always", "alpha": ANY}, "stage-wise": {"merge": "never", "alpha": ANY}}
#: Ideas are tried at one speed: branches that only lose blocks and, for some originals, changes to the planner's branches.
TRIED = 1.5
CHANGED: dict[str, tuple[tuple[str, ...], tuple[float, ...]]] = dict.fromkeys(IDEAS, (("resnet20", "resnet32"), (TRIED,)))
CHANGED["normalised join"] = tuple(RESNETS), (1.25, TRIED)
#: Networks that start from the trained original's weights, as a pruned one does, instead of from scratch.
FINE_TUNED = ("fine-tuned branches", "fine-tuned shallower")
WHOLE_WIDTH = {"min_width": 1.0, "min_depth": 0.1}


@cache
def graph_of(parent: str, size: int) -> OpGraph:
    """Return the operator graph of an original, for one square image with this side in pixels."""
    from stretch.network.capture import capture

    return capture(PARENTS[parent].make(), (1, 3, size, size), parent).graph


def plain(graph: OpGraph, depths: Sequence[int], widths: Sequence[int]) -> BranchDesign:
    """Return an original with this many blocks and channels in each stage, as a design of one branch."""
    parent = PARENTS[graph.name]
    stem = -(-parent.stem * widths[0] // parent.widths[0] // parent.step) * parent.step
    shapes = {"stem": (None, stem)} | {f"s{number}": shape for number, shape in enumerate(zip(depths, widths, strict=True), 1)}
    parts = [SegmentDraft(name=name, branches=[BranchDraft("cpu", depth, width)]) for name, (depth, width) in shapes.items()]
    return resolve_design(DesignDraft(model=graph.name, segments=parts), graph, "any", {"cpu": parent.step}, "cpu")


def shallower(most: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the numbers of blocks per stage for which all stages have lost nearly the same number."""
    lost = (range(number + 1) for number in most)
    return (
        tuple(a - b for a, b in zip(most, removed, strict=True))
        for removed in itertools.product(*lost)
        if max(removed) - min(removed) < 3 and all(a > b for a, b in zip(most, removed, strict=True))
    )


def narrower(most: tuple[int, ...], step: int) -> Iterator[tuple[int, ...]]:
    """Yield the widths of stages for which all stages have lost nearly the same share."""
    for widths in itertools.product(*(range(step, width + 1, step) for width in most)):
        ratios = [a / b for a, b in zip(widths, most, strict=True)]
        if max(ratios) - min(ratios) < APART:
            yield widths


class Plain:
    """Plain networks of one original on the best single processor of one device."""

    def __init__(self, planned: PlanResult) -> None:
        self._planned = planned
        self._known: dict[Shape, tuple[float, OpGraph]] = {}

    def look(self, depths: tuple[int, ...], widths: tuple[int, ...]) -> tuple[float, OpGraph]:
        """Return the predicted latency in ms, and the network."""
        if (depths, widths) not in self._known:
            graph = scaled_graph(self._planned.graph, plain(self._planned.graph, depths, widths))
            self._known[depths, widths] = ranked_singles(graph, self._planned.costs, self._planned.config.processors)[0].ms, graph
        return self._known[depths, widths]

    def largest(self, shapes: Iterable[Shape], ms: float) -> dict[str, tuple[int, ...]]:
        """Return the shape with most multiply-accumulates, then parameters, among those that take at most, and nearly, this time."""
        fast = [(*self.look(*shape), shape) for shape in shapes if self.look(*shape)[0] <= ms]
        whole, slowest = self._planned.graph.macs, max(item[0] for item in fast)
        near = [item for item in fast if item[0] >= min((1 - NEAR) * ms, slowest)]
        _, _, (depths, widths) = max(near, key=lambda item: (round(item[1].macs / whole, 2), item[1].params))
        return {"depths": depths, "widths": widths}

    def contenders(self, parent: Parent, speed: float) -> dict[str, dict[str, Any]]:
        """Return the original made shallower, narrower and both; and a pruned ResNet, which has the shape of the narrower one."""
        ms = self.look(parent.depths, parent.widths)[0] / speed
        depths, widths = list(shallower(parent.depths)), list(narrower(parent.widths, parent.step))
        # half of the speed-up by depth, the other half by width
        halfway = min(depths, key=lambda option: abs(self.look(option, parent.widths)[0] - ms * speed**0.5))
        narrow = self.largest(((parent.depths, option) for option in widths), ms)
        made = {
            "shallower": self.largest(((option, parent.widths) for option in depths), ms),
            "narrower": narrow,
            "shallower and narrower": self.largest(((halfway, option) for option in widths), ms),
        }
        return made | ({"pruned": narrow | {"pruned": True}} if parent in RESNETS.values() else {})


def branched(graph: OpGraph, profile: str, ms: float, options: dict[str, Any]) -> PlanResult | None:
    """Return the planner's design with most multiply-accumulates that takes at most this time; None if there is none."""

    def fast(least: float) -> PlanResult | None:
        request = PlanConfig(macs=(least, 3.0), segment_macs=min(0.9, least), **options)
        try:
            planned = plan(graph, load_device(profile), request)
        except InfeasibleError:
            return None
        return planned if planned.design.n_meet and planned.run.makespan_ms <= ms else None

    low, high, best = 0, len(MACS) - 1, fast(MACS[-1])
    if best is None:
        return None
    while low < high:
        middle = (low + high) // 2
        if (found := fast(MACS[middle])) is not None:
            high, best = middle, found
        else:
            low = middle + 1
    return best


def written(built: Any) -> str:
    """Return a network's definition as text for the record."""
    return json.dumps(built, separators=(",", ":"))


def whole(parent: str) -> str:
    """Return the definition of an original as text for the record."""
    return written({"depths": PARENTS[parent].depths, "widths": PARENTS[parent].widths})


def row(graph: OpGraph, where: tuple[str, str, float], contender: str, ms: float, single: float, made: OpGraph, built: str) -> Row:
    """Return the row of one network of the comparison."""
    parent, profile, speed = where
    return {
        "network": f"{parent} {profile} {speed:g} {contender}",
        "parent": parent,
        "profile": profile,
        "speed": speed,
        "contender": contender,
        "predicted ms": round(ms, 2),
        "over best single": round(single / ms, 3),
        "MACs ratio": round(made.macs / graph.macs, 3),
        "parameters": made.params,
        "built": built,
    }


def rows_of(graph: OpGraph, parent: str, profile: str) -> tuple[list[Row], list[Row]]:
    """Return all networks of one original on one device, and the recommendations for the planner's branches."""
    start = plan(graph, load_device(profile), PlanConfig(**PLANNED["branches"]))
    others, single = Plain(start), start.best_single.ms
    rows, recommended = [row(graph, (parent, profile, 1.0), "parent", single, single, graph, whole(parent))], []
    for speed in SPEEDS:
        ideas = {"whole width": PLANNED["branches"] | WHOLE_WIDTH} if speed == TRIED else {}
        for contender, options in (PLANNED | ideas).items():
            planned = branched(graph, profile, single / speed, options)
            if planned is None:
                sys.stderr.write(f"{parent} on {profile}: no {contender} at {speed:g}\n")
                continue
            made, built, ms = scaled_graph(graph, planned.design), written(asdict(planned.design)), planned.run.makespan_ms
            rows.append(row(graph, (parent, profile, speed), contender, ms, single, made, built))
            if contender == "branches":
                recommended.append({"network": f"{parent} {profile} {speed:g}", "recommended": planned.recommended})
            for idea, (parents, speeds) in CHANGED.items():
                if contender == "branches" and parent in parents and speed in speeds:
                    changed = with_idea(built, idea)
                    design = designed(changed)
                    made, ms = scaled_graph(graph, design), timeline(graph, design, planned.costs).makespan_ms
                    rows.append(row(graph, (parent, profile, speed), idea, ms, single, made, changed))
        for contender, shape in others.contenders(PARENTS[parent], speed).items():
            ms, made = others.look(shape["depths"], shape["widths"])
            rows.append(row(graph, (parent, profile, speed), contender, ms, single, made, written(shape)))
    return rows + fine_tuned(rows), recommended


def fine_tuned(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of `FINE_TUNED`, which are the networks of other rows with another start."""
    return [
        row | {"network": f"{row['parent']} {row['profile']} {TRIED:g} {name}", "contender": name, "built": built}
        for row, name in itertools.product(rows, FINE_TUNED)
        if (row["contender"], row["speed"]) == (name.removeprefix("fine-tuned "), TRIED) and row["parent"] in RESNETS
        for built in (written(json.loads(str(row["built"])) | {"fine_tuned": True}),)
    ]


def size_row(parent: str, profile: str, size: int) -> Row:
    """Return the speed of the fastest branches with equal computation on images of one size."""
    planned = plan(graph_of(parent, size), load_device(profile), PlanConfig(**PLANNED["branches"]))
    row: Row = {"network": f"{parent}, {profile}, {size}×{size}", "best single ms": round(planned.best_single.ms, 2)}
    row |= {"branches ms": round(planned.run.makespan_ms, 2), "of it exchange ms": round(planned.run.communication_ms, 2)}
    return row | {"over best single": round(planned.speedup, 2)}


def main() -> int:
    """Write the record; rows of other originals stay, because their networks may already be trained."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=RECORD)
    parser.add_argument("--parents", nargs="+", choices=PARENTS, default=list(PARENTS))
    options = parser.parse_args()
    load = os.getloadavg()[0]
    kept = read_record(options.out).tables if options.out.exists() else {}
    pairs = [rows_of(graph_of(parent, SIZE), parent, profile) for parent in options.parents for profile in PROFILES]
    networks, recommended = ([item for rows in side for item in rows] for side in zip(*pairs, strict=True))
    sizes = [size_row(*case) for case in itertools.product(options.parents, PROFILES, SIZES)]
    made = {"networks": networks, "recommended": recommended, "sizes": sizes}
    others = {
        name: [row for row in rows if str(row["network"]).replace(",", "").split()[0] not in options.parents] for name, rows in kept.items()
    }
    write_record(
        options.out,
        {name: others.get(name, []) + rows for name, rows in made.items()},
        source="predicted",
        command="python -m experiments.equal_latency.networks",
        runs=None,
        load=load,
        notes=[
            f"latency of one image of {SIZE}×{SIZE} pixels; accuracy is that of the same layers on {TRAINED}×{TRAINED}",
            "branches: most multiply-accumulates within the latency, merged stages allowed; stage-wise: each stage a segment of its own",
            "wider view, gated and normalised join: latency, multiply-accumulates and parameters are those of the branches that they change; a gate adds less than one multiply-accumulate in a thousand",
        ],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
