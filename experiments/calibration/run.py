"""How close is a branched network to its trained original before any training, and after a little?

``job SEED`` trains the original, calibrates branched ones and trains them on;
``queue SEED …`` runs one seed a GPU; ``record FOLDER`` makes the record.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cifar_accuracy.run import ALIGN, MODEL, initialise

HERE = Path(__file__).parent
DESIGNS = HERE.parent / "cifar_accuracy" / "designs"
#: (design file, join)
BRANCHED = (
    ("depth_only", "project"),
    ("depth_only", "sum"),
    ("deep_narrow_shallow_wide", "project"),
    ("deep_narrow_shallow_wide", "sum"),
    ("meets_9", "sum"),
)
IMAGES = 2048
#: Epochs of further training, from the calibrated start and from scratch.
EPOCHS = (1, 5, 20)


def job(seed: int, data: Path, out: Path, epochs: int) -> None:
    """Everything of one seed."""
    import msgspec
    import torch

    from stretch.capture import capture
    from stretch.models.cifar import CifarFamily
    from stretch.planning.design import load_draft
    from stretch.planning.resolve import resolve_design
    from stretch.train.augment import Normalise
    from stretch.train.config import TrainConfig
    from stretch.train.data import load_arrays
    from stretch.train.loop import evaluate, train
    from stretch.transform import BranchedModel, build
    from stretch.transform.calibrate import calibrate

    torch.backends.cudnn.benchmark = True
    torch.manual_seed(seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, test_set = load_arrays(data, 10)
    config = TrainConfig(epochs=epochs, weight_decay=5e-4, warmup_epochs=min(5, epochs / 10), seed=seed)
    parent = CifarFamily().build(MODEL)
    initialise(parent)
    history = train(parent.to(device), train_set, test_set, config)
    parent.to("cpu", memory_format=torch.contiguous_format)
    captured = capture(parent, (1, 3, 32, 32), MODEL)
    normalise = Normalise(*train_set.moments(), device)
    test = test_set.to(device)
    choice = torch.randperm(len(train_set), generator=torch.Generator().manual_seed(seed))[:IMAGES]
    images = [normalise(part) for part in train_set.images[choice].to(device).split(256)]
    rows: list[dict[str, Any]] = []

    def add(what: str, accuracy: float, macs: int, seconds: float) -> None:
        rows.append(
            {
                "what": what,
                "accuracy": accuracy,
                "of_parent": accuracy / history.accuracy,
                "macs_ratio": macs / captured.graph.macs,
                "seconds": seconds,
            }
        )

    add("parent", history.accuracy, captured.graph.macs, sum(e.seconds for e in history.epochs))
    for name, join in BRANCHED:
        draft = load_draft(DESIGNS / f"{name}.toml")
        draft = msgspec.structs.replace(draft, segments=[msgspec.structs.replace(s, join=join) for s in draft.segments])
        design = resolve_design(draft, captured.graph, "mi9", ALIGN, "cpu")
        label = f"{name}, {join}"
        start = time.perf_counter()
        model = build(captured, design).to(device)
        built = time.perf_counter() - start
        plain = TrainConfig(amp="none", channels_last=False)
        add(f"{label}: inherited", evaluate(model, test, normalise, plain), model.graph.macs, built)
        start = time.perf_counter()
        calibrate(model, captured, images)
        if device.type == "cuda":
            torch.cuda.synchronize()
        add(f"{label}: calibrated", evaluate(model, test, normalise, plain), model.graph.macs, built + time.perf_counter() - start)
        if (name, join) != BRANCHED[0]:
            continue
        state = {key: value.clone() for key, value in model.state_dict().items()}
        for more in EPOCHS:
            model.load_state_dict(state)
            tuned = train(model, train_set, test_set, TrainConfig(epochs=more, learning_rate=0.05, weight_decay=5e-4, seed=seed))
            add(f"{label}: calibrated + {more} epochs", tuned.accuracy, model.graph.macs, sum(e.seconds for e in tuned.epochs))
            scratch = BranchedModel(captured.graph, design)
            initialise(scratch)
            found = train(
                scratch.to(device),
                train_set,
                test_set,
                TrainConfig(epochs=more, weight_decay=5e-4, warmup_epochs=min(5, more / 10), seed=seed),
            )
            add(f"{label}: from scratch, {more} epochs", found.accuracy, model.graph.macs, sum(e.seconds for e in found.epochs))
    out.mkdir(parents=True, exist_ok=True)
    facts = {
        "seed": seed,
        "rows": rows,
        "gpu": torch.cuda.get_device_name() if device.type == "cuda" else "none",
        "cores": os.cpu_count(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "cpu_load": os.getloadavg()[0],
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    (out / f"calibration-{seed}.json").write_text(json.dumps(facts))


def queue(seeds: list[str], data: Path, out: Path, epochs: int) -> int:
    """One process a seed, each on a GPU of its own; returns how many failed."""
    processes = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "experiments.calibration.run",
                "job",
                seed,
                "--data",
                str(data),
                "--out",
                str(out),
                "--epochs",
                str(epochs),
            ],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": str(gpu)},
        )
        for gpu, seed in enumerate(seeds)
    ]
    return sum(process.wait() != 0 for process in processes)


def record(folder: Path) -> None:
    """Make the record of the seeds in a folder."""
    from experiments.records import Machine, write_record

    runs = [json.loads(file.read_text()) for file in sorted(folder.glob("calibration-*.json"))]
    rows = []
    for number, first in enumerate(runs[0]["rows"]):
        own = [run["rows"][number] for run in runs]
        rows.append(
            {
                "network": first["what"],
                "top-1 % (mean)": round(100 * float(np.mean([r["accuracy"] for r in own])), 2),
                "lowest": round(100 * min(r["accuracy"] for r in own), 2),
                "highest": round(100 * max(r["accuracy"] for r in own), 2),
                "of the parent's %": round(100 * float(np.mean([r["of_parent"] for r in own])), 1),
                "MACs ratio": round(first["macs_ratio"], 3),
                "s": round(float(np.median([r["seconds"] for r in own])), 1),
            }
        )
    write_record(
        HERE / "results" / "h200.json",
        {"calibration": rows},
        source="measured",
        command="python -m experiments.calibration.run queue 0 1 2",
        runs=len(runs),
        load=max(run["cpu_load"] for run in runs),
        machine=Machine(runs[0]["gpu"], runs[0]["cores"], runs[0]["memory_gib"], "Linux x86_64"),
        versions=runs[0]["versions"],
        notes=[
            f"{MODEL} on CIFAR-10 re-encoded as JPEG; calibration sees {IMAGES} training images without labels",
            "s: training alone, or building and calibrating; further training starts at learning rate 0.05, scratch at 0.2",
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
    options = parser.parse_args()
    if options.what == "job":
        job(int(options.names[0]), options.data, options.out, options.epochs)
    elif options.what == "queue":
        return queue(options.names, options.data, options.out, options.epochs)
    else:
        record(Path(options.names[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
