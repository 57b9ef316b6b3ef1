"""The planner's own designs of one trained network: predicted speed-up, multiply-accumulates and accuracy of the same designs.

``plan`` writes the designs; ``job SEED`` trains the original, then calibrates every design and trains it on, with and without
labels; ``all SEED …`` runs the seeds side by side on one GPU, and again goes on with what is missing; ``record FOLDER`` makes the record.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.gpu import facts, fp32_accuracy, origin

HERE = Path(__file__).parent
DESIGNS = HERE / "designs"
#: ResNet-18 (He et al. 2016) of three quarters of its width, with the stem for 32×32 images: phones take milliseconds for it,
#: several exchanges long.
NAME, WIDTHS, DEPTH = "resnet18_48_cifar10", (48, 96, 192, 384), 2


class Epochs(NamedTuple):
    """How long is trained."""

    original: int  # The original.
    unlabelled: int  # A calibrated design without labels.
    labelled: int  # A calibrated design with labels.


class Case(NamedTuple):
    """The planner's options other than its defaults."""

    device: str
    processors: tuple[str, ...]
    join: str

    @property
    def name(self) -> str:
        """As the design's file and the record's row are called."""
        return f"{self.device} {'+'.join(self.processors)} {self.join}"

    @property
    def file(self) -> Path:
        """Its design."""
        return DESIGNS / f"{self.name.replace(' ', '_').replace('+', '_')}.toml"


CASES = (
    Case("a03s", ("cpu", "gpu"), "project"),
    Case("mi8se", ("cpu", "gpu"), "sum"),
    Case("mi9", ("cpu", "gpu"), "project"),
    Case("pixel6", ("cpu", "gpu"), "project"),
    Case("a03s", ("cpu", "gpu"), "sum"),
)
#: Training images that calibration looks at.
IMAGES = 2048
BATCH, WEIGHT_DECAY = 512, 5e-4
#: Highest learning rate of the original, and of what starts calibrated: without labels, where the loss grows with the square of the
#: temperature, and with labels.
RATE, RATE_ALONE, RATE_ON = 0.4, 0.02, 0.05
#: Options that keep a calibrated start: joins that were solved for have weights that large first steps tear apart (in 3 of 3 seeds).
GENTLY: dict[str, Any] = {"clip": 1.0, "warmup_epochs": 1.0}
#: Divides scores for soft labels.
TEMPERATURE = 4.0
#: Steps of a design, in order.
STATES = ("inherited", "calibrated", "without labels", "with labels")


def network() -> Any:
    """The original with fresh weights."""
    from stretch.network.models.tiny import BasicBlock, SmallResNet

    return SmallResNet(BasicBlock, WIDTHS, DEPTH)


def captured(module: Any) -> Any:
    """The original captured."""
    from stretch.network.capture import capture

    return capture(module.eval(), (1, 3, 32, 32), NAME)


def planned(case: Case, graph: Any) -> Any:
    """The planner's answer to a case, with its defaults for everything else."""
    from predictors.devices import load_device
    from stretch.planning.config import PlanConfig
    from stretch.planning.plan import plan

    return plan(graph, load_device(case.device), PlanConfig(processors=case.processors, join=case.join))


def write_designs() -> None:
    """Plan every case and write its design."""
    from stretch.planning.design.branch_design import design_to_toml

    graph = captured(network()).graph
    DESIGNS.mkdir(exist_ok=True)
    for case in CASES:
        case.file.write_text(design_to_toml(planned(case, graph).design))


class Seed:
    """One seed: its original and the rows measured so far, which a file keeps.

    Args:
        seed: Of training and of the choice of images.
        data: The prepared images.
        out: Where the rows and the original's weights are or will be.
        epochs: How long is trained.
        only: Names of the cases that are measured; all if there are none.
    """

    def __init__(self, seed: int, data: Path, out: Path, epochs: Epochs, only: Sequence[str] = ()) -> None:
        import torch

        from stretch.train.images import Normalise, load_arrays

        torch.backends.cudnn.benchmark = True
        torch.manual_seed(seed)
        out.mkdir(parents=True, exist_ok=True)
        self.seed, self.out, self.epochs = seed, out, epochs
        self.cases = [case for case in CASES if not only or case.name in only]
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.train_set, self.test_set = (part.to(self.device) for part in load_arrays(data, 10))
        self.normalise = Normalise(*self.train_set.moments(), self.device)
        self.file = out / f"planned-{seed}.json"
        self.rows: list[dict[str, Any]] = json.loads(self.file.read_text())["rows"] if self.file.exists() else []
        self.captured = captured(self._original(epochs.original))
        choice = torch.randperm(len(self.train_set), generator=torch.Generator().manual_seed(seed))[:IMAGES]
        self.images = [self.normalise(part) for part in self.train_set.images[choice.to(self.device)].split(256)]

    def _original(self, epochs: int) -> Any:
        """The trained original, trained now if it is not there."""
        import torch
        from safetensors.torch import load_file, save_file

        from stretch.train.loop import Run
        from stretch.train.prepare import initialise

        module, weights = network(), self.out / f"original-{self.seed}.safetensors"
        if weights.exists():
            module.load_state_dict(load_file(weights), strict=False)
            return module
        initialise(module)
        run = Run(module.to(self.device), (self.train_set, self.test_set), self.config(epochs, RATE, warmup_epochs=2.0))
        list(run.steps())
        module.to("cpu", memory_format=torch.contiguous_format)
        save_file({key: value.contiguous() for key, value in module.state_dict().items()}, weights)
        self.add("original", "original", run.history.accuracy, sum(e.seconds for e in run.history.epochs))
        return module

    def config(self, epochs: int, rate: float, **more: Any) -> Any:
        """A run of so many epochs."""
        from stretch.train.recipe import TrainConfig

        return TrainConfig(epochs=epochs, batch=BATCH, learning_rate=rate, weight_decay=WEIGHT_DECAY, seed=self.seed, **more)

    def add(self, name: str, state: str, accuracy: float, seconds: float) -> None:
        """Add a row, and write all rows."""
        self.rows.append({"name": name, "state": state, "accuracy": accuracy, "seconds": seconds})
        partial = self.file.with_suffix(".part")
        answer = {"seed": self.seed, "images": len(self.train_set), "epochs": self.epochs._asdict(), "rows": self.rows}
        partial.write_text(json.dumps(answer | facts()))
        partial.replace(self.file)
        sys.stderr.write(f"seed {self.seed}: {name}, {state}: {accuracy:.4f}, {seconds:.1f} s\n")

    def has(self, name: str, state: str) -> bool:
        """Whether a row is there."""
        return any((row["name"], row["state"]) == (name, state) for row in self.rows)

    def done(self, case: Case) -> bool:
        """Whether there is nothing left to measure of a design."""
        return all(self.has(case.name, state) for state in STATES)

    def measure(self, case: Case) -> None:
        """Every state of a design that is not there yet."""
        import torch

        from predictors.devices import load_device
        from stretch.stages.design import read_design
        from stretch.transform import build
        from stretch.transform.calibrate import calibrate

        design = read_design(case.file, self.captured.graph, load_device(case.device))
        start = time.perf_counter()
        model = build(self.captured, design).to(self.device)
        if not self.has(case.name, STATES[0]):
            self.add(case.name, STATES[0], fp32_accuracy(model, self.test_set, self.normalise), time.perf_counter() - start)
        start = time.perf_counter()
        calibrate(model, self.captured, self.images)
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        if not self.has(case.name, STATES[1]):
            self.add(case.name, STATES[1], fp32_accuracy(model, self.test_set, self.normalise), time.perf_counter() - start)
        self._train_on(case, design, model.state_dict())

    def _train_on(self, case: Case, design: Any, state: dict[str, Any]) -> None:
        """Both runs from the calibrated start, side by side."""
        import copy

        from experiments.gpu import train_side_by_side
        from stretch.train.loop import Run
        from stretch.transform import BranchedModel

        runs = {}
        for what, epochs in zip(STATES[2:], self.epochs[1:], strict=True):
            if self.has(case.name, what):
                continue
            model = BranchedModel(self.captured.graph, design)
            model.load_state_dict(state)
            alone = what == STATES[2]
            more: dict[str, Any] = {"distill": 1.0, "temperature": TEMPERATURE} if alone else {}
            teacher = copy.deepcopy(self.captured.module) if alone else None
            config = self.config(epochs, RATE_ALONE if alone else RATE_ON, **more, **GENTLY)
            runs[what] = Run(model.to(self.device), (self.train_set, self.test_set), config, teacher=teacher, labelled=not alone)
        train_side_by_side(list(runs.values()), evaluate_every=max(self.epochs))
        for what, run in runs.items():
            # in fp32, as the other rows
            self.add(case.name, what, fp32_accuracy(run.model, self.test_set, self.normalise), sum(e.seconds for e in run.history.epochs))


def job(work: Seed, until: float) -> None:
    """Measure one seed, as far as the time goes."""
    start = time.monotonic()
    for case in work.cases:
        if work.done(case):
            continue
        if time.monotonic() - start > until:
            sys.stderr.write(f"seed {work.seed}: no time for {case.name} and what follows; the same command goes on there\n")
            return
        work.measure(case)


def main() -> int:
    """Run one of the commands; several seeds run in processes side by side."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["plan", "job", "all", "record"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data", type=Path, default=Path("cifar.npz"))
    parser.add_argument("--out", type=Path, default=Path("runs/planned"))
    parser.add_argument("--epochs", type=int, nargs=3, default=[25, 5, 20], help="of the original, of a design without and with labels")
    parser.add_argument("--only", nargs="*", default=[], help="names of the designs that are measured; all if left out")
    parser.add_argument("--until", type=float, default=3600.0, help="seconds after which no further design is begun")
    options = parser.parse_args()
    if options.what == "plan":
        write_designs()
    elif options.what == "job":
        job(Seed(int(options.names[0]), options.data, options.out, Epochs(*options.epochs), options.only), options.until)
    elif options.what == "record":
        record(Path(options.names[0]))
    else:
        words = ["--data", str(options.data), "--out", str(options.out), "--until", str(options.until)]
        words += ["--epochs", *map(str, options.epochs), "--only", *options.only]
        processes = [
            subprocess.Popen([sys.executable, "-m", "experiments.calibration.planned", "job", number, *words]) for number in options.names
        ]
        return sum(process.wait() != 0 for process in processes)
    return 0


def record(folder: Path) -> None:
    """Make the record of the seeds in a folder, with predictions for comparison."""
    from experiments.records import About, Facts, write_record
    from stretch.planning.design.scale import scaled_graph

    runs = [json.loads(file.read_text()) for file in sorted(folder.glob("planned-*.json"))]
    graph = captured(network()).graph
    epochs = Epochs(**runs[0]["epochs"])
    # a seed that was started again has another original: each run is compared with its own
    originals = [next(row["accuracy"] for row in run["rows"] if row["state"] == "original") for run in runs]
    rows = []
    for case in CASES:
        plan = planned(case, graph)
        row: dict[str, Any] = {
            "design": case.name,
            "speed-up over the best single processor": round(plan.best_single.ms / plan.run.makespan_ms, 3),
            "speed-up over sequential": round(plan.sequential.single.ms / plan.run.makespan_ms, 3) if plan.sequential else None,
            "recommended": plan.recommended,
            "meeting points": plan.design.n_meet,
            "MACs ratio": round(scaled_graph(graph, plan.design).macs / graph.macs, 3),
        }
        result = [{r["state"]: r["accuracy"] for r in run["rows"] if r["name"] == case.name} for run in runs]
        whole = [(current, original) for current, original in zip(result, originals, strict=True) if current.keys() >= set(STATES)]
        for state in STATES if whole else ():
            row[f"{state} %"] = round(100 * float(np.mean([current[state] for current, _ in whole])), 2)
            row[f"{state}, of the original's %"] = round(
                100 * float(np.mean([current[state] / original for current, original in whole])), 2
            )
        if whole:
            rows.append(row | {"seeds": len(whole)})
    predicted = Facts(source="predicted")
    columns = ("speed-up over the best single processor", "speed-up over sequential", "recommended", "meeting points", "MACs ratio")
    write_record(
        HERE / "results" / "planned.json",
        {
            "planned": rows,
            "originals": [{"original": NAME, "top-1 %": round(100 * float(np.mean(originals)), 2), "seeds": len(originals)}],
        },
        source="measured",
        command="python -m experiments.calibration.planned all 0 1 2",
        runs=min(row["seeds"] for row in rows),
        about={"planned": About(columns=dict.fromkeys(columns, predicted))},
        **origin(runs),
        notes=[
            f"ResNet-18 of three quarters of its width with the stem for 32×32 images, trained for {epochs.original} epochs on {runs[0]['images']} "
            "images of CIFAR-10 re-encoded as JPEG; the designs are the planner's own with its default limits; each run is compared with its own original",
            f"calibrated: {IMAGES} training images without labels; without labels: {epochs.unlabelled} epochs of the original's soft labels at "
            f"temperature {TEMPERATURE:g}, learning rate {RATE_ALONE:g}; with labels: {epochs.labelled} epochs, learning rate {RATE_ON:g}; both from the "
            f"calibrated start, batch {BATCH}, an epoch of warm-up, gradients cut at a norm of {GENTLY['clip']:g}",
        ],
    )


if __name__ == "__main__":
    sys.exit(main())
