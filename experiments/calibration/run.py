"""How close is a branched network to its trained original before any training, and after a little?

``job SEED`` trains the original where OUT has no ``parent-SEED.safetensors``, then calibrates
branched networks (``--part calibrate``) or trains one on, and from scratch (``--part train``);
``queue SEED …`` runs one seed a GPU; ``record FOLDER`` makes the record.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cifar_accuracy.run import ALIGN, MODEL
from experiments.gpu import facts, fp32_accuracy, origin

HERE = Path(__file__).parent
DESIGNS = HERE.parent / "cifar_accuracy" / "designs"
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
IMAGES = 2048
#: Steps of Adam in the rows called refined.
REFINE = 600
#: The network that is trained on, and epochs of that, from the calibrated start and from scratch.
TRAINED = ("depth_only", "sum")
EPOCHS = (1, 5, 20, 100)
PARTS = ("calibrate", "train")


class Job:
    """One seed: its original, its images, and the rows measured so far.

    Args:
        seed: Of training and of the choice of images.
        data: The prepared images.
        out: Where the original's weights are or will be.
        epochs: Of the original's training.
    """

    def __init__(self, seed: int, data: Path, out: Path, epochs: int) -> None:
        import torch
        from safetensors.torch import load_file, save_file

        from stretch.network.capture import capture
        from stretch.network.models.tiny import CifarFamily
        from stretch.train.images import Normalise, load_arrays
        from stretch.train.loop import Run
        from stretch.train.prepare import initialise
        from stretch.train.recipe import TrainConfig

        torch.backends.cudnn.benchmark = True
        torch.manual_seed(seed)
        self.seed = seed
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.train_set, self.test_set = (part.to(self.device) for part in load_arrays(data, 10))
        parent, weights = CifarFamily().build(MODEL), out / f"parent-{seed}.safetensors"
        seconds = None
        if weights.exists():
            parent.load_state_dict(load_file(weights), strict=False)
        else:
            initialise(parent)
            config = TrainConfig(epochs=epochs, weight_decay=5e-4, warmup_epochs=min(5, epochs / 10), seed=seed)
            run = Run(parent.to(self.device), (self.train_set, self.test_set), config)
            list(run.steps())
            seconds = sum(e.seconds for e in run.history.epochs)
            parent.to("cpu", memory_format=torch.contiguous_format)
            save_file({key: value.contiguous() for key, value in parent.state_dict().items()}, weights)
        self.captured = capture(parent.eval(), (1, 3, 32, 32), MODEL)
        self.normalise = Normalise(*self.train_set.moments(), self.device)
        choice = torch.randperm(len(self.train_set), generator=torch.Generator().manual_seed(seed))[:IMAGES]
        self.images = [self.normalise(part) for part in self.train_set.images[choice.to(self.device)].split(256)]
        self.rows: list[dict[str, Any]] = []
        self.file: Path | None = None
        self.parent = fp32_accuracy(parent.to(self.device), self.test_set, self.normalise)
        parent.to("cpu")
        self.add("parent", self.parent, self.captured.graph.macs, seconds)

    def add(self, what: str, accuracy: float, macs: int, seconds: float | None) -> None:
        """Add a row, and write all rows."""
        self.rows.append(
            {
                "what": what,
                "accuracy": accuracy,
                "of_parent": accuracy / self.parent,
                "macs_ratio": macs / self.captured.graph.macs,
                "seconds": seconds,
            }
        )
        if self.file is not None:
            self.file.write_text(json.dumps({"seed": self.seed, "rows": self.rows} | facts()))
        sys.stderr.write(f"seed {self.seed}: {what}: {accuracy:.4f}, {100 * accuracy / self.parent:.2f} % of the parent's\n")

    def design(self, name: str, join: str) -> Any:
        """A design file with other joins."""
        import msgspec

        from stretch.planning.design.branch_design import load_draft
        from stretch.planning.design.scale import resolve_design

        draft = load_draft(DESIGNS / f"{name}.toml")
        draft = msgspec.structs.replace(draft, segments=[msgspec.structs.replace(s, join=join) for s in draft.segments])
        return resolve_design(draft, self.captured.graph, "mi9", ALIGN, "cpu")

    def calibrated(self, design: Any, steps: int = 0, **options: Any) -> tuple[Any, float]:
        """A network built, calibrated and refined by so many steps, and the seconds that took."""
        import torch

        from stretch.transform import build
        from stretch.transform.calibrate import calibrate
        from stretch.transform.calibrate.split import Images
        from stretch.transform.refine import Refinement, refine

        start = time.perf_counter()
        model = build(self.captured, design).to(self.device)
        calibrate(model, self.captured, self.images, **options)
        if steps:
            refine(model, self.captured, Images(self.images), Refinement(steps=steps, seed=self.seed))
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return model, time.perf_counter() - start

    def calibrate(self) -> None:
        """Every design as built, with joins alone, with fitted layers, and some refined."""
        from stretch.transform import build

        for name, join, refined in BRANCHED:
            design = self.design(name, join)
            start = time.perf_counter()
            model = build(self.captured, design).to(self.device)
            self.add(
                f"{name}, {join}: inherited",
                fp32_accuracy(model, self.test_set, self.normalise),
                model.graph.macs,
                time.perf_counter() - start,
            )
            segment_options: dict[str, dict[str, Any]] = {"joins alone": {"layers": False}, "calibrated": {}}
            if refined:
                segment_options["refined"] = {"steps": REFINE}
            for label, options in segment_options.items():
                model, seconds = self.calibrated(design, **options)
                self.add(f"{name}, {join}: {label}", fp32_accuracy(model, self.test_set, self.normalise), model.graph.macs, seconds)

    def train(self) -> None:
        """Some epochs from the calibrated start and as many from scratch, the two side by side."""
        from experiments.gpu import train_side_by_side
        from stretch.train.loop import Run
        from stretch.train.prepare import initialise
        from stretch.train.recipe import TrainConfig
        from stretch.transform import BranchedModel

        name, join = TRAINED
        design = self.design(name, join)
        model, _ = self.calibrated(design)
        state = {key: value.clone() for key, value in model.state_dict().items()}
        for epochs in EPOCHS:
            tuned, scratch = (BranchedModel(self.captured.graph, design) for _ in range(2))
            tuned.load_state_dict(state)
            initialise(scratch)
            common: dict[str, Any] = {"epochs": epochs, "weight_decay": 5e-4, "seed": self.seed}
            configs = (TrainConfig(learning_rate=0.05, **common), TrainConfig(warmup_epochs=min(5, epochs / 10), **common))
            runs = [
                Run(start.to(self.device), (self.train_set, self.test_set), config)
                for start, config in zip((tuned, scratch), configs, strict=True)
            ]
            train_side_by_side(runs)
            for label, run in zip((f"calibrated + {epochs} epochs", f"from scratch, {epochs} epochs"), runs, strict=True):
                seconds = sum(e.seconds for e in run.history.epochs)
                self.add(f"{name}, {join}: {label}", run.history.accuracy, tuned.graph.macs, seconds)


def job(seed: int, data: Path, out: Path, epochs: int, parts: tuple[str, ...]) -> None:
    """Measure one seed; its results are in one file per part, row by row."""
    out.mkdir(parents=True, exist_ok=True)
    work = Job(seed, data, out, epochs)
    parent = work.rows[0]
    for number, part in enumerate(parts):
        work.rows, work.file = [] if number else [parent], out / f"calibration-{seed}-{part}.json"
        getattr(work, part)()


def queue(seeds: list[str], data: Path, out: Path, epochs: int, parts: tuple[str, ...]) -> int:
    """One process a seed, each on a GPU of its own; returns how many failed."""
    words = ["--data", str(data), "--out", str(out), "--epochs", str(epochs), "--part", *parts]
    command = [sys.executable, "-m", "experiments.calibration.run", "job"]
    processes = [
        subprocess.Popen([*command, seed, *words], env=os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu)}) for gpu, seed in enumerate(seeds)
    ]
    return sum(process.wait() != 0 for process in processes)


def record(folder: Path) -> None:
    """Make the record of the seeds in a folder."""
    from experiments.records import write_record

    runs = [json.loads(file.read_text()) for file in sorted(folder.glob("calibration-*.json"))]
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


def main() -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["job", "queue", "record"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data", type=Path, default=Path("cifar.npz"))
    parser.add_argument("--out", type=Path, default=Path("runs/calibration"))
    parser.add_argument("--epochs", type=int, default=100, help="of the parent")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args()
    parts = tuple(options.part)
    if options.what == "job":
        job(int(options.names[0]), options.data, options.out, options.epochs, parts)
    elif options.what == "queue":
        return queue(options.names, options.data, options.out, options.epochs, parts)
    else:
        record(Path(options.names[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
