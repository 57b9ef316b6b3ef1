"""How close is a branched network to its trained original before any training, and after a little?

``queue SEED …`` runs one seed per GPU: it trains the original where OUT has no ``parent-SEED.safetensors``,
calibrates branched networks, and trains one further, and from scratch. ``record FOLDER`` makes the record.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.cifar_accuracy.run import MODEL, design_of
from experiments.gpu import device_and_images, facts, fp32_accuracy, origin, read_runs, side_by_side, train_side_by_side
from experiments.records import write_record

if TYPE_CHECKING:
    from torch import nn

    from stretch.network.capture import Captured
    from stretch.planning.design.branch_design import BranchDesign
    from stretch.train.loop import Epoch
    from stretch.train.recipe import TrainConfig
    from stretch.transform import BranchedModel

HERE = Path(__file__).parent
#: (design file, join, whether refined too)
BRANCHED = (
    ("depth_only", "sum", True),
    ("deep_narrow_shallow_wide", "sum", False),
    ("width_only", "concat", False),
    ("meets_6", "sum", True),
    ("meets_9", "project", False),
    ("meets_9", "sum", True),
    ("quarter_width", "project", False),
    ("quarter_width", "sum", True),
)
#: Number of training images for calibration.
IMAGES = 2048
#: Steps of Adam for the rows called refined.
REFINE = 600
#: Design and join of the network that is trained, and its numbers of epochs, from the calibrated start and from scratch.
TRAINED = ("depth_only", "sum")
EPOCHS = (1, 5, 20, 100)


class Seed:
    """One seed: its images, its trained original, and the rows measured so far, which are kept in a file.

    Args:
        seed: Seed of the training and of the choice of images.
        data: The prepared images.
        file: File of the rows.
        about: Further facts for the file.
    """

    def __init__(self, seed: int, data: Path, file: Path, **about: Any) -> None:
        import torch

        from stretch.train.images import Normalise

        torch.manual_seed(seed)
        file.parent.mkdir(parents=True, exist_ok=True)
        self.seed, self.file = seed, file
        self.device, self.sets = device_and_images(data)
        train_set, self.test_set = self.sets
        self.about = {"seed": seed, "images": len(train_set)} | about
        self.normalise = Normalise(*train_set.moments(), self.device)
        choice = torch.randperm(len(train_set), generator=torch.Generator().manual_seed(seed))[:IMAGES]
        self.images = [self.normalise(part) for part in train_set.images[choice.to(self.device)].split(256)]
        self.rows: list[dict[str, Any]] = []

    def trained(self, module: "nn.Module", name: str, weights: Path, config: "TrainConfig") -> "tuple[Captured, list[Epoch] | None]":
        """Return the original with the weights in a file; if there is no file, train it and write one."""
        import torch
        from safetensors.torch import load_file, save_file

        from stretch.network.capture import capture
        from stretch.train.loop import Run
        from stretch.train.prepare import initialise

        history = None
        if weights.exists():
            module.load_state_dict(load_file(weights), strict=False)
        else:
            initialise(module)
            run = Run(module.to(self.device), self.sets, config)
            list(run.steps())
            history = run.history
            module.to("cpu", memory_format=torch.contiguous_format)
            save_file({key: value.contiguous() for key, value in module.state_dict().items()}, weights)
        return capture(module.eval(), (1, 3, 32, 32), name), history

    def accuracy(self, model: "nn.Module") -> float:
        """Return the top-1 accuracy of a network on the test images, in fp32."""
        return fp32_accuracy(model, self.test_set, self.normalise)

    def timed(self, make: "Callable[[], BranchedModel]") -> "tuple[BranchedModel, float]":
        """Return a network and the time of making it, in seconds."""
        import torch

        start = time.perf_counter()
        model = make()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return model, time.perf_counter() - start

    def keep(self, row: dict[str, Any]) -> None:
        """Add a row, and write all rows."""
        self.rows.append(row)
        partial = self.file.with_suffix(".part")
        partial.write_text(json.dumps(self.about | {"rows": self.rows} | facts()))
        partial.replace(self.file)
        sys.stderr.write(f"seed {self.seed}: {json.dumps(row)}\n")


class Job(Seed):
    """One seed of this experiment."""

    def __init__(self, seed: int, data: Path, out: Path, epochs: int) -> None:
        from stretch.network.models.tiny import CifarFamily
        from stretch.train.recipe import TrainConfig

        super().__init__(seed, data, out / f"calibration-{seed}.json")
        config = TrainConfig(epochs=epochs, weight_decay=5e-4, warmup_epochs=min(5, epochs / 10), seed=seed)
        self.captured, history = self.trained(CifarFamily().build(MODEL), MODEL, out / f"parent-{seed}.safetensors", config)
        self.parent = self.accuracy(self.captured.module.to(self.device))
        self.captured.module.to("cpu")
        self.add("parent", self.parent, self.captured.graph.macs, None if history is None else sum(e.seconds for e in history))

    def add(self, what: str, accuracy: float, macs: int, seconds: float | None) -> None:
        """Add a row with ratios to the original."""
        ratios = {"of_parent": accuracy / self.parent, "macs_ratio": macs / self.captured.graph.macs}
        self.keep({"what": what, "accuracy": accuracy} | ratios | {"seconds": seconds})

    def calibrated(self, design: "BranchDesign", steps: int = 0, **options: Any) -> "BranchedModel":
        """Return a network that is built, calibrated and refined by this many steps."""
        from stretch.transform import build
        from stretch.transform.calibrate import calibrate
        from stretch.transform.calibrate.split import Images
        from stretch.transform.refine import Refinement, refine

        model = build(self.captured, design).to(self.device)
        calibrate(model, self.captured, self.images, **options)
        if steps:
            refine(model, self.captured, Images(self.images), Refinement(steps=steps, seed=self.seed))
        return model

    def calibrate(self) -> None:
        """Measure every design as built, with only joins fitted, with fitted layers, and some with refinement."""
        from stretch.transform import build

        for name, join, refined in BRANCHED:
            design = design_of(name, self.captured.graph, join=join)
            makers: dict[str, Callable[[], BranchedModel]] = {
                "inherited": lambda design=design: build(self.captured, design).to(self.device),
                "joins alone": lambda design=design: self.calibrated(design, layers=False),
                "calibrated": lambda design=design: self.calibrated(design),
            }
            if refined:
                makers["refined"] = lambda design=design: self.calibrated(design, REFINE)
            for label, make in makers.items():
                model, seconds = self.timed(make)
                self.add(f"{name}, {join}: {label}", self.accuracy(model), model.graph.macs, seconds)

    def train(self) -> None:
        """Train from the calibrated start and from scratch, with equal numbers of epochs, in parallel."""
        from stretch.train.loop import Run
        from stretch.train.prepare import initialise
        from stretch.train.recipe import TrainConfig
        from stretch.transform import BranchedModel

        name, join = TRAINED
        design = design_of(name, self.captured.graph, join=join)
        state = {key: value.clone() for key, value in self.calibrated(design).state_dict().items()}
        for epochs in EPOCHS:
            tuned, scratch = (BranchedModel(self.captured.graph, design) for _ in range(2))
            tuned.load_state_dict(state)
            initialise(scratch)
            common: dict[str, Any] = {"epochs": epochs, "weight_decay": 5e-4, "seed": self.seed}
            configs = (TrainConfig(learning_rate=0.05, **common), TrainConfig(warmup_epochs=min(5, epochs / 10), **common))
            runs = [Run(start.to(self.device), self.sets, config) for start, config in zip((tuned, scratch), configs, strict=True)]
            train_side_by_side(runs)
            for label, run in zip((f"calibrated + {epochs} epochs", f"from scratch, {epochs} epochs"), runs, strict=True):
                seconds = sum(e.seconds for e in run.history)
                self.add(f"{name}, {join}: {label}", run.history[-1].accuracy, tuned.graph.macs, seconds)


def job(gpu: int, seed: int, data: Path, out: Path, epochs: int) -> None:
    """Measure one seed on one GPU; its file grows row by row."""
    os.environ["CUDA_VISIBLE_DEVICES"] = str(gpu)
    work = Job(seed, data, out, epochs)
    work.calibrate()
    work.train()


def record(folder: Path) -> None:
    """Write the record of the seeds in a folder."""
    runs = read_runs(folder, "calibration-*.json")
    result: dict[str, dict[int, dict[str, Any]]] = {}
    for run in runs:
        for row in run["rows"]:
            result.setdefault(row["what"], {}).setdefault(run["seed"], row)
    rows = []
    for what, by_seed in result.items():
        current = list(by_seed.values())
        seconds = [row["seconds"] for row in current if row["seconds"] is not None]
        rows.append(
            {
                "network": what,
                "seeds": len(current),
                "top-1 % (mean)": round(100 * float(np.mean([r["accuracy"] for r in current])), 2),
                "lowest": round(100 * min(r["accuracy"] for r in current), 2),
                "highest": round(100 * max(r["accuracy"] for r in current), 2),
                "of the parent's %": round(100 * float(np.mean([r["of_parent"] for r in current])), 2),
                "MACs ratio": round(current[0]["macs_ratio"], 3),
                "s": round(float(np.median(seconds)), 1) if seconds else None,
            }
        )
    write_record(
        HERE / "results" / "h200.json",
        {"calibration": rows},
        source="measured",
        command="python -m experiments.calibration.run queue 0 1 2",
        runs=min(row["seeds"] for row in rows),
        **origin(runs),
        notes=[
            f"{MODEL} on CIFAR-10 re-encoded as JPEG; calibration sees {IMAGES} training images without labels; refined: {REFINE} steps of Adam, too",
            "s: building and calibrating, or training alone (the two of as many epochs side by side); further training starts at learning rate 0.05, scratch at 0.2",
        ],
    )


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["queue", "record"])
    parser.add_argument("names", nargs="+", help="seeds, or the folder of their results")
    parser.add_argument("--data", type=Path, default=Path("cifar.npz"))
    parser.add_argument("--out", type=Path, default=Path("runs/calibration"))
    parser.add_argument("--epochs", type=int, default=100, help="of the parent")
    options = parser.parse_args()
    if options.what == "record":
        record(Path(options.names[0]))
        return
    jobs = [(gpu, int(seed), options.data, options.out, options.epochs) for gpu, seed in enumerate(options.names)]
    sys.exit(len(list(side_by_side(job, jobs, len(jobs)))) < len(jobs))


if __name__ == "__main__":
    main()
