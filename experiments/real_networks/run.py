"""Real pretrained networks and natural photographs: how often branched networks agree with the original, and how fast they are predicted to be.

`python -m experiments.real_networks.run measure --weights FOLDER --images FOLDER --out FILE`, on a machine with a GPU, writes numbers;
`python -m experiments.real_networks.run record FILE…` makes them a record. With ``--at-length`` few jobs are measured that
refine as long as there is time, into a record of their own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from experiments.command import program
from experiments.gpu import facts, origin
from experiments.records import About, Facts, Row, write_record
from predictors.errors import StretchError

HERE = Path(__file__).parent

#: Photographs that nothing is fitted to.
HELD_BACK = 200


@dataclass(frozen=True)
class Real:
    """A network that others trained on ImageNet."""

    name: str  # As `stretch branch` takes it.
    weights: str  # File of weights in the folder of weights.
    preprocessing: dict[str, Any]  # Differences from the network's own statement.


NETWORKS = {
    "mobilenet_v2": Real("mobilenet_v2", "mobilenet_v2.safetensors", {}),
    "efficientnet_lite0": Real(
        "timm:tf_efficientnet_lite0", "efficientnet_lite0.safetensors", {"mean": [127 / 255] * 3, "std": [128 / 255] * 3}
    ),
}

#: Seconds that a comparison needs behind a refinement, on a busy machine.
_COMPARING = 25

#: Options of the planner; the processors are those of `PROCESSORS`.
DESIGNS: dict[str, dict[str, Any]] = {
    "default": {},
    "sum": {"join": "sum"},
    "milder": {"min_depth": 0.75},
}
DEVICE, PROCESSORS = "mi9", ("cpu", "gpu")

#: Baseline of each design: the plain sequential network of the same multiply-accumulates.
SEQUENTIAL = "sequential"


@dataclass(frozen=True)
class Job:
    """One network, calibrated and perhaps refined."""

    network: str  # A key of `NETWORKS`.
    design: str  # A key of `DESIGNS`, or `SEQUENTIAL` for the control of the default design.
    images: int  # Photographs that it may look at.
    channels: bool = True  # Whether the channels that stay are chosen on activations.
    blocks: bool = True  # Whether the blocks that stay are.
    refine: float | None = None  # Share of a refinement in which each segment is refined by itself; None for no refinement.

    @property
    def name(self) -> str:
        """Name of its row."""
        steps = {"channels": self.channels, "blocks": self.blocks}
        without = "".join(f", {step} by position" for step, chosen in steps.items() if not chosen)
        refined = "" if self.refine is None else f", refined {REFINED.get(self.refine, self.refine)}"
        return f"{self.network} {self.design} {self.images}{without}{refined}"


#: How the row of a refined network says what its share means.
#: The setting that takes steps as `stretch train` does now is marked by its length.
REFINED = {0.0: "together", 0.3: "at length", 0.5: "by segments, then together", 1.0: "by segments"}

#: The design and the photographs that single steps are switched on and off for.
STEPS_ON, MOST = "sum", 300

#: Of each network: ways to refine, then each choice by position, fewer photographs, and the other designs.
#: The longest come first.
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

#: Refined as `stretch train` does it, with most of a GPU.
AT_LENGTH = tuple(Job(network, design, MOST, refine=0.3) for design in (STEPS_ON, SEQUENTIAL) for network in NETWORKS)


def measure(job: Job, weights: Path, images: Path, end: float) -> Row:
    """One job, on the GPU where there is one.

    Args:
        job: The job.
        weights: Folder of weights.
        images: Folder of photographs.
        end: When it must be done, by this machine's monotonic clock; a refinement goes on until shortly before.
    """
    import torch

    from predictors.devices import load_device
    from scheduler.bundle.preprocessing import requested_preprocessing
    from stretch.evaluation.agreement import compare
    from stretch.planning.config import PlanConfig
    from stretch.planning.plan import plan
    from stretch.stages.build import divide_images
    from stretch.stages.network import read_network
    from stretch.transform import build
    from stretch.transform.calibrate import ChoiceSettings, calibrate
    from stretch.transform.calibrate.split import Images
    from stretch.transform.refine import Refinement, refine

    real = NETWORKS[job.network]
    network = read_network(real.name, weights=str(weights / real.weights))
    config = PlanConfig(processors=PROCESSORS, **DESIGNS.get(job.design, {}))
    planned = plan(network.graph, load_device(DEVICE), config)
    control = planned.sequential
    if job.design == SEQUENTIAL and control is None:
        raise StretchError(f"`{job.network}` has no sequential control")
    design = control.design if job.design == SEQUENTIAL and control is not None else planned.design
    ms = control.single.ms if job.design == SEQUENTIAL and control is not None else planned.run.makespan_ms
    preprocessing = requested_preprocessing(network.loaded.preprocessing, real.preprocessing, network.graph.input.shape)
    result = divide_images(images, network.captured, MOST, preprocessing, HELD_BACK)
    fitted = list(torch.cat(result.fitted)[:: MOST // job.images][: job.images].split(32))
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = build(network.captured, design).to(device)
    row: Row = {"design": job.name, "network": job.network, "kind": job.design, "images": job.images}
    row |= {
        "predicted_ms": round(ms, 3),
        "best_single_ms": round(planned.best_single.ms, 3),
        "speedup": round(planned.best_single.ms / ms, 3),
    }
    row |= {"macs_ratio": round(model.graph.macs / network.graph.macs, 4), "segments": _described(design)}

    def agree(when: str) -> None:
        agreement = compare(model, network.captured, result.held_back).agreement
        for key in ("value", "low", "high", "error"):
            row[f"{when}_{key}"] = round(getattr(agreement, key), 4)

    agree("built")
    start = time.perf_counter()
    calibrate(model, network.captured, fitted, choices=ChoiceSettings(job.channels, job.blocks))
    row["calibration_s"] = round(time.perf_counter() - start, 1)
    agree("calibrated")
    if job.refine is not None:
        refined = refine(
            model, network.captured, Images(fitted), Refinement(max(end - _COMPARING - time.monotonic(), 1) / 60, apart=job.refine)
        )
        row |= {"refinement_s": round(refined.seconds, 1), "steps": refined.steps}
        agree("refined")
    return row


def _described(design: Any) -> str:
    """Segments that are not the original's, with depths and widths."""
    parts = [
        f"{part.name}: " + " ".join(f"{b.processor} {b.depth}×{b.width}" for b in part.branches)
        for part in design.segments
        if len(part.branches) > 1 or part.join != "none"
    ]
    return "; ".join(parts)


def run_all(options: argparse.Namespace) -> None:
    """Every job in a process of its own, side by side: small networks leave most of a GPU idle.

    Those that refine go on until the time is over, with the time that the others leave. Each result is written as it comes.
    """
    end = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        jobs = AT_LENGTH if options.at_length else JOBS
        waiting = [(job, Path(folder) / f"{number}.json") for number, job in enumerate(jobs)]
        running: list[tuple[Job, Path, subprocess.Popen[bytes]]] = []
        rows: list[Row] = []
        while (waiting or running) and time.monotonic() < end:
            while waiting and len(running) < options.side_by_side:
                job, out = waiting.pop(0)
                words = ["one", "--job", json.dumps(msgspec.to_builtins(job)), "--out", str(out), "--end", str(end)]
                words += ["--weights", str(options.weights), "--images", str(options.images)]
                command = [sys.executable, "-m", "experiments.real_networks.run", *words]
                running.append((job, out, subprocess.Popen(command, env=os.environ | {"OMP_NUM_THREADS": "2"})))
            for item in [item for item in running if item[2].poll() is not None]:
                running.remove(item)
                job, out, process = item
                if process.returncode:
                    sys.stderr.write(f"{job.name} failed\n")
                elif out.exists():
                    rows.append(json.loads(out.read_text()))
                    options.out.write_text(json.dumps(facts() | {"rows": rows}))
            time.sleep(0.2)
        for job, _, process in running:
            sys.stderr.write(f"{job.name} was not done in time\n")
            process.kill()


def record(files: Sequence[Path], out: Path | None, at_length: bool) -> None:
    """Make a record of what was measured."""
    runs = [json.loads(file.read_text()) for file in files]
    rows = [row for run in runs for row in run["rows"]]
    order = [job.name for job in (AT_LENGTH if at_length else JOBS)]
    rows.sort(key=lambda row: order.index(str(row["design"])))
    tables = {"refined": [row for row in rows if "steps" in row]}
    if not at_length:
        tables |= {"designs": [row for row in rows if "steps" not in row]}
    out = out or HERE / "results" / ("at_length.json" if at_length else "agreement.json")
    write_record(
        out,
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
        **origin(runs),
    )
    sys.stderr.write(f"{out} written; fill the pages with python -m experiments.render\n")


#: Remark on refinement before it went on at length.
OLD = (
    "Refinement took steps of one size, and batch-norms normalised by batches, in both of its phases, on views of larger "
    "parts with nothing of others pasted in.",
)

#: Columns that nobody measured.
PREDICTED = ("predicted_ms", "best_single_ms", "speedup")


def main(words: list[str] | None = None) -> None:
    """Measure, or make a record."""
    parser = argparse.ArgumentParser(prog="python -m experiments.real_networks.run", description=__doc__)
    parser.add_argument("what", choices=["measure", "one", "record"])
    parser.add_argument("files", type=Path, nargs="*", help="for record: what measure wrote")
    parser.add_argument("--weights", type=Path, help="folder of weights")
    parser.add_argument("--images", type=Path, help="folder of photographs")
    parser.add_argument("--seconds", type=float, default=500, help="for measure: time that all jobs together may take")
    parser.add_argument("--side-by-side", type=int, default=16, help="for measure: jobs at a time")
    parser.add_argument("--end", type=float, help="for one: when it must be done, by this machine's monotonic clock")
    parser.add_argument("--job", help="for one: the job as JSON")
    parser.add_argument("--at-length", action="store_true", help="the few jobs that refine as long as there is time")
    parser.add_argument("--out", type=Path, help="for measure and one: file of the numbers; for record: another record")
    options = parser.parse_args(words)
    if options.what == "record":
        record(options.files, options.out, options.at_length)
    elif options.what == "one":
        job = msgspec.convert(json.loads(options.job), Job)
        options.out.write_text(json.dumps(measure(job, options.weights, options.images, options.end)))
    else:
        run_all(options)


if __name__ == "__main__":
    program(main)
