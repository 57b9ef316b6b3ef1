"""Real pretrained networks and natural photographs: how often branched networks agree with the original, and how fast they are predicted to be.

`python -m experiments.real_networks.run measure --weights FOLDER --images FOLDER --out FILE`, on a machine with a GPU, writes numbers;
`python -m experiments.real_networks.run record FILE…` makes them a record. With ``--at-length`` few jobs are measured that
refine as long as there is time, into a record of their own.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.command import program
from experiments.gpu import Origin, facts, origin, side_by_side
from experiments.records import About, Facts, Row, write_record
from predictors.errors import StretchError

if TYPE_CHECKING:
    import torch

    from scheduler.bundle.preprocessing import Preprocessing
    from stretch.network.capture import Captured
    from stretch.stages.network import CapturedNetwork
    from stretch.transform.calibrate.split import Images
    from stretch.transform.model import BranchedModel

HERE = Path(__file__).parent

#: Number of photographs that no fit uses.
HELD_BACK = 200


@dataclass(frozen=True)
class Real:
    """A network with published ImageNet weights."""

    name: str  # Name for `stretch branch`.
    weights: str  # File in the folder of weights.
    preprocessing: dict[str, Any]  # Differences from the network's own statement.


NETWORKS = {
    "mobilenet_v2": Real("mobilenet_v2", "mobilenet_v2.safetensors", {}),
    "efficientnet_lite0": Real(
        "timm:tf_efficientnet_lite0", "efficientnet_lite0.safetensors", {"mean": [127 / 255] * 3, "std": [128 / 255] * 3}
    ),
}

#: Seconds for a comparison after a refinement, on a busy machine.
_COMPARING = 25

#: Options of the planner; the processors are those of `PROCESSORS`.
DESIGNS: dict[str, dict[str, Any]] = {
    "default": {},
    "sum": {"join": "sum"},
    "milder": {"min_depth": 0.75},
}
DEVICE, PROCESSORS = "mi9", ("cpu", "gpu")

#: Baseline of each design: the plain sequential network of equal multiply-accumulates.
SEQUENTIAL = "sequential"


@dataclass(frozen=True)
class Job:
    """One network that is calibrated and optionally refined."""

    network: str  # Key of `NETWORKS`.
    design: str  # Key of `DESIGNS`, or `SEQUENTIAL` for the baseline of the default design.
    images: int  # Maximum number of photographs for fits.
    channels: bool = True  # Whether kept channels are chosen by activations.
    blocks: bool = True  # Whether kept blocks are chosen by activations.
    refine: float | None = None  # Share of the refinement in which each segment is refined alone; None without refinement.

    @property
    def name(self) -> str:
        """Name of the job's row."""
        steps = {"channels": self.channels, "blocks": self.blocks}
        without = "".join(f", {step} by position" for step, chosen in steps.items() if not chosen)
        refined = "" if self.refine is None else f", refined {REFINED.get(self.refine, self.refine)}"
        return f"{self.network} {self.design} {self.images}{without}{refined}"


#: Name of a refinement in its row, by its share.
#: The setting with the same steps as `stretch train` has the name of its length.
REFINED = {0.0: "together", 0.3: "at length", 0.5: "by segments, then together", 1.0: "by segments"}

#: Design and number of photographs for which single steps are switched on and off.
STEPS_ON, MOST = "sum", 300

#: For each network: forms of refinement, then each choice by position, fewer photographs, and the other designs.
#: The longest jobs come first.
JOBS = (
    *(Job(network, STEPS_ON, MOST, refine=apart) for network in NETWORKS for apart in (0.5, 1.0)),
    Job("mobilenet_v2", STEPS_ON, MOST, refine=0.0),
    *(Job(network, STEPS_ON, 64, refine=0.5) for network in NETWORKS),
    *(
        Job(network, STEPS_ON, count, channels, blocks)
        for count, channels, blocks in (
            (MOST, False, False),
            (MOST, True, False),
            (MOST, False, True),
            (64, False, False),
            (16, True, True),
            (16, False, False),
        )
        for network in NETWORKS
    ),
    *(Job(network, design, MOST) for design in (*DESIGNS, SEQUENTIAL) for network in NETWORKS),
)

#: Jobs that are refined like `stretch train`, with most of a GPU.
AT_LENGTH = tuple(Job(network, design, MOST, refine=0.3) for design in (STEPS_ON, SEQUENTIAL) for network in NETWORKS)


def command_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of a script that measures into a file and makes a record of such files."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("what", choices=["measure", "record"])
    parser.add_argument("files", type=Path, nargs="*", help="for record: what measure wrote")
    parser.add_argument("--weights", type=Path, help="folder of weights")
    parser.add_argument("--images", type=Path, help="folder of photographs")
    parser.add_argument("--out", type=Path, help="for measure: file of the numbers")
    return parser


def keep_rows(rows: Iterable[Row], out: Path) -> None:
    """Write rows to a file as they come, after the facts of this machine."""
    about, done = facts(), list[Row]()
    out.parent.mkdir(parents=True, exist_ok=True)
    for row in rows:
        done.append(row)
        sys.stderr.write(f"{json.dumps(row)}\n")
        out.write_text(json.dumps(about | {"rows": done}))


def kept_rows(files: Sequence[Path]) -> tuple[list[Row], Origin]:
    """Return the rows of such files, and the machine and time of their measurement."""
    runs = [json.loads(file.read_text()) for file in files]
    return [row for run in runs for row in run["rows"]], origin(runs)


def opened(
    real: Real, weights: Path, images: Path, count: int, held_back: int = HELD_BACK, **options: Any
) -> "tuple[CapturedNetwork, Preprocessing, Images]":
    """Return a network with its weights, its preprocessing, and photographs for calibration and for comparison."""
    from scheduler.bundle.preprocessing import requested_preprocessing
    from stretch.stages.build import divide_images
    from stretch.stages.network import read_network

    network = read_network(real.name, weights=str(weights / real.weights), **options)
    preprocessing = requested_preprocessing(network.loaded.preprocessing, real.preprocessing, network.graph.input.shape)
    return network, preprocessing, divide_images(images, network.captured, count, preprocessing, held_back)


def agreement(original: "Captured", model: "BranchedModel", images: "Sequence[torch.Tensor]", when: str) -> Row:
    """Return the share of images for which a network answers the original's class, its 95 % interval, and the error of its scores.

    Args:
        images: Batches that no fit used.
        when: Prefix of the columns' names.
    """
    from stretch.evaluation.agreement import compare

    share = compare(model, original, images)[0]
    return {f"{when}_{key}": round(getattr(share, key), 4) for key in ("value", "low", "high", "error")}


def measure(job: Job, weights: Path, images: Path, end: float) -> Row:
    """Measure one job, on the GPU if there is one.

    Args:
        job: The job.
        weights: Folder of weights.
        images: Folder of photographs.
        end: Deadline by this machine's monotonic clock; a refinement continues until shortly before.
    """
    import torch

    from predictors.devices import load_device
    from stretch.planning.config import PlanConfig
    from stretch.planning.plan import plan
    from stretch.transform import build
    from stretch.transform.calibrate import ChoiceSettings, calibrate
    from stretch.transform.calibrate.split import Images
    from stretch.transform.refine import Refinement, refine

    network, _, result = opened(NETWORKS[job.network], weights, images, MOST)
    config = PlanConfig(processors=PROCESSORS, **DESIGNS.get(job.design, {}))
    planned = plan(network.graph, load_device(DEVICE), config)
    control = planned.sequential
    if job.design == SEQUENTIAL and control is None:
        raise StretchError(f"`{job.network}` has no sequential control")
    design = control.design if job.design == SEQUENTIAL and control is not None else planned.design
    ms = control.single.ms if job.design == SEQUENTIAL and control is not None else planned.run.makespan_ms
    fitted = list(torch.cat(result.fitted)[:: MOST // job.images][: job.images].split(32))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build(network.captured, design).to(device)
    row: Row = {"design": job.name, "network": job.network, "kind": job.design, "images": job.images}
    row |= {
        "predicted_ms": round(ms, 3),
        "best_single_ms": round(planned.best_single.ms, 3),
        "speedup": round(planned.best_single.ms / ms, 3),
    }
    row |= {"macs_ratio": round(model.graph.macs / network.graph.macs, 4), "segments": _design_text(design)}
    row |= agreement(network.captured, model, result.held_back, "built")
    start = time.perf_counter()
    calibrate(model, network.captured, fitted, choices=ChoiceSettings(job.channels, job.blocks))
    row["calibration_s"] = round(time.perf_counter() - start, 1)
    row |= agreement(network.captured, model, result.held_back, "calibrated")
    if job.refine is not None:
        refined = refine(
            model, network.captured, Images(fitted), Refinement(max(end - _COMPARING - time.monotonic(), 1) / 60, apart=job.refine)
        )
        row |= {"refinement_s": round(refined.seconds, 1), "steps": refined.steps}
        row |= agreement(network.captured, model, result.held_back, "refined")
    return row


def _design_text(design: Any) -> str:
    """Return the segments that differ from the original's, with depths and widths."""
    parts = [
        f"{part.name}: " + " ".join(f"{b.processor} {b.depth}×{b.width}" for b in part.branches)
        for part in design.segments
        if len(part.branches) > 1 or part.join != "none"
    ]
    return "; ".join(parts)


def run_all(options: argparse.Namespace) -> None:
    """Run all jobs in parallel; refinements continue until the time is over, on the GPU time that other jobs leave."""
    os.environ["OMP_NUM_THREADS"] = "2"
    end = time.monotonic() + options.seconds
    jobs = [(job, options.weights, options.images, end) for job in (AT_LENGTH if options.at_length else JOBS)]
    keep_rows(side_by_side(measure, jobs, options.side_by_side, options.seconds), options.out)


def record(files: Sequence[Path], at_length: bool) -> None:
    """Write a record of the measurements."""
    rows, where = kept_rows(files)
    order = [job.name for job in (AT_LENGTH if at_length else JOBS)]
    rows.sort(key=lambda row: order.index(str(row["design"])))
    tables = {"refined": [row for row in rows if "steps" in row]}
    if not at_length:
        tables |= {"designs": [row for row in rows if "steps" not in row]}
    write_record(
        HERE / "results" / ("at_length.json" if at_length else "agreement.json"),
        tables,
        source="measured",
        command=f"python -m experiments.real_networks.run measure{' --at-length' * at_length}",
        runs=1,
        about={table: About(columns={name: Facts(source="predicted") for name in PREDICTED}) for table in tables},
        notes=[
            f"Agreement on {HELD_BACK} photographs that nothing was fitted to, with 95 % intervals; float32; one seed.",
            f"Times are predictions for {DEVICE}, {' and '.join(PROCESSORS)}, by the profile of this version.",
            "All jobs ran side by side, with others: seconds and steps say how far each came, not how fast it can be.",
            *(() if at_length else OLD),
        ],
        **where,
    )


#: Note on refinements before those of full length.
OLD = (
    "Refinement took steps of one size, and batch-norms normalised by batches, in both of its phases, on views of larger "
    "parts with nothing of others pasted in.",
)

#: Columns that are predicted, not measured.
PREDICTED = ("predicted_ms", "best_single_ms", "speedup")


def main() -> None:
    """Measure, or write a record."""
    parser = command_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=500, help="for measure: time that all jobs together may take")
    parser.add_argument("--side-by-side", type=int, default=16, help="for measure: jobs at a time")
    parser.add_argument("--at-length", action="store_true", help="the few jobs that refine as long as there is time")
    options = parser.parse_args()
    if options.what == "record":
        record(options.files, options.at_length)
    else:
        run_all(options)


if __name__ == "__main__":
    program(main)
