"""The planner's own designs of one trained network: predicted speed-up, multiply-accumulates and accuracy of the same designs.

``plan`` writes the designs. ``all SEED …`` runs seeds side by side on one GPU: each trains the original, then calibrates every design
and trains it further, with and without labels; a second call continues with missing rows. ``record FOLDER`` makes the record.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.calibration.run import IMAGES, Seed
from experiments.gpu import origin, read_runs, side_by_side, train_side_by_side
from experiments.records import About, Facts, write_record

HERE = Path(__file__).parent
DESIGNS = HERE / "designs"
#: ResNet-18 (He et al. 2016) of three quarters of its width, with the stem for 32×32 images: on phones it takes milliseconds,
#: several times as many as an exchange.
NAME, WIDTHS, DEPTH = "resnet18_48_cifar10", (48, 96, 192, 384), 2


class Epochs(NamedTuple):
    """Numbers of training epochs."""

    original: int  # Epochs of the original.
    unlabelled: int  # Epochs of a calibrated design without labels.
    labelled: int  # Epochs of a calibrated design with labels.


class Case(NamedTuple):
    """Options of the planner that differ from its defaults."""

    device: str
    processors: tuple[str, ...]
    join: str

    @property
    def name(self) -> str:
        """Name of the design's file and of the record's row."""
        return f"{self.device} {'+'.join(self.processors)} {self.join}"

    @property
    def file(self) -> Path:
        """File of the case's design."""
        return DESIGNS / f"{self.name.replace(' ', '_').replace('+', '_')}.toml"


CASES = (
    Case("a03s", ("cpu", "gpu"), "project"),
    Case("mi8se", ("cpu", "gpu"), "sum"),
    Case("mi9", ("cpu", "gpu"), "project"),
    Case("pixel6", ("cpu", "gpu"), "project"),
    Case("a03s", ("cpu", "gpu"), "sum"),
)
BATCH, WEIGHT_DECAY = 512, 5e-4
#: Maximum learning rate of the original, and of calibrated networks without and with labels. Without labels, the loss grows with
#: the square of the temperature.
RATE, RATE_ALONE, RATE_ON = 0.4, 0.02, 0.05
#: Options that preserve a calibrated start: large first steps destroy joins that were solved for (with 3 of 3 seeds).
GENTLY: dict[str, Any] = {"clip": 1.0, "warmup_epochs": 1.0}
#: Divisor of scores for soft labels.
TEMPERATURE = 4.0
#: States of a design, in order.
STATES = ("inherited", "calibrated", "without labels", "with labels")


def network() -> Any:
    """Return the original with new weights."""
    from stretch.network.models.tiny import BasicBlock, SmallResNet

    return SmallResNet(BasicBlock, WIDTHS, DEPTH)


def original_graph() -> Any:
    """Return the operator graph of the original."""
    from stretch.network.capture import capture

    return capture(network().eval(), (1, 3, 32, 32), NAME).graph


def planned(case: Case, graph: Any) -> Any:
    """Return the planner's result for a case, with defaults for all other options."""
    from predictors.devices import load_device
    from stretch.planning.config import PlanConfig
    from stretch.planning.plan import plan

    return plan(graph, load_device(case.device), PlanConfig(processors=case.processors, join=case.join))


def write_designs() -> None:
    """Plan every case and write its design."""
    from stretch.planning.design.branch_design import design_to_toml

    graph = original_graph()
    DESIGNS.mkdir(exist_ok=True)
    for case in CASES:
        case.file.write_text(design_to_toml(planned(case, graph).design))


class Job(Seed):
    """One seed of this experiment; rows in its file are not measured again."""

    def __init__(self, seed: int, data: Path, out: Path, epochs: Epochs) -> None:
        super().__init__(seed, data, out / f"planned-{seed}.json", epochs=epochs._asdict())
        self.epochs = epochs
        if self.file.exists():
            self.rows = json.loads(self.file.read_text())["rows"]
        config = self.config(epochs.original, RATE, warmup_epochs=2.0)
        self.captured, history = self.trained(network(), NAME, out / f"original-{seed}.safetensors", config)
        if history is not None:
            self.add("original", "original", history[-1].accuracy, sum(e.seconds for e in history))

    def config(self, epochs: int, rate: float, **more: Any) -> Any:
        """Return the configuration of a run with this many epochs."""
        from stretch.train.recipe import TrainConfig

        return TrainConfig(epochs=epochs, batch=BATCH, learning_rate=rate, weight_decay=WEIGHT_DECAY, seed=self.seed, **more)

    def add(self, name: str, state: str, accuracy: float, seconds: float) -> None:
        """Add a row to the results."""
        self.keep({"name": name, "state": state, "accuracy": accuracy, "seconds": seconds})

    def has(self, name: str, state: str) -> bool:
        """Return whether the results contain a row."""
        return any((row["name"], row["state"]) == (name, state) for row in self.rows)

    def measure(self, case: Case) -> None:
        """Measure every state of a design that is not yet in the results."""
        from predictors.devices import load_device
        from stretch.stages.design import read_design
        from stretch.transform import BranchedModel, build
        from stretch.transform.calibrate import calibrate

        design = read_design(case.file, self.captured.graph, load_device(case.device))
        model, seconds = self.timed(lambda: build(self.captured, design).to(self.device))
        if not self.has(case.name, STATES[0]):
            self.add(case.name, STATES[0], self.accuracy(model), seconds)

        def calibrated() -> BranchedModel:
            calibrate(model, self.captured, self.images)
            return model

        _, seconds = self.timed(calibrated)
        if not self.has(case.name, STATES[1]):
            self.add(case.name, STATES[1], self.accuracy(model), seconds)
        self._train_on(case, design, model.state_dict())

    def _train_on(self, case: Case, design: Any, state: dict[str, Any]) -> None:
        """Train from the calibrated start without and with labels, in parallel."""
        import copy

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
            runs[what] = Run(model.to(self.device), self.sets, config, teacher=teacher, labelled=not alone)
        train_side_by_side(list(runs.values()), evaluate_every=max(self.epochs))
        for what, run in runs.items():
            # in fp32, like the other rows
            self.add(case.name, what, self.accuracy(run.model), sum(e.seconds for e in run.history))


def job(seed: int, data: Path, out: Path, epochs: Epochs) -> None:
    """Measure one seed."""
    work = Job(seed, data, out, epochs)
    for case in CASES:
        if not all(work.has(case.name, state) for state in STATES):
            work.measure(case)


def record(folder: Path) -> None:
    """Write the record of the seeds in a folder, with predictions for comparison."""
    from stretch.planning.design.scale import scaled_graph

    runs = read_runs(folder, "planned-*.json")
    graph = original_graph()
    epochs = Epochs(**runs[0]["epochs"])
    # a seed that was started again has a different original, so each run is compared with its own
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


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["plan", "all", "record"])
    parser.add_argument("names", nargs="*", help="seeds, or the folder of their results")
    parser.add_argument("--data", type=Path, default=Path("cifar.npz"))
    parser.add_argument("--out", type=Path, default=Path("runs/planned"))
    parser.add_argument("--epochs", type=int, nargs=3, default=[25, 5, 20], help="of the original, of a design without and with labels")
    options = parser.parse_args()
    if options.what == "plan":
        write_designs()
    elif options.what == "record":
        record(Path(options.names[0]))
    else:
        jobs = [(int(seed), options.data, options.out, Epochs(*options.epochs)) for seed in options.names]
        sys.exit(len(list(side_by_side(job, jobs, len(jobs)))) < len(jobs))


if __name__ == "__main__":
    main()
