"""Subnets of one supernet against the same designs trained alone: accuracy and GPU minutes.

``job SEED`` trains a supernet and evaluates every subnet as an extracted network;
``record FOLDER ALONE`` makes the record, ALONE being the folder of `experiments.cifar_accuracy`.
"""

import argparse
import copy
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cifar_accuracy.run import HERE as MEASURED
from experiments.cifar_accuracy.run import MODEL, design_of, short
from experiments.cifar_accuracy.scaling import recorded_before
from experiments.gpu import device_and_images, facts, origin, read_runs
from experiments.records import Row, read_record, write_record
from stretch.train.recipe import SandwichConfig

HERE = Path(__file__).parent
#: Designs with two processors, the same three meeting points, and 0.98 to 1.02 of the original's cost.
POOL = ("depth_only", "third", "two_thirds", "seven_ninths", "eight_ninths", "width_only", "quarter_width", "deep_narrow_shallow_wide")
#: Row of the original's training, from which supernets start, in the record of experiments/cifar_accuracy.
PARENT = "sequential, 100 epochs"
#: Maximum learning rate.
RATE = 0.1
#: Number of images for the batch-norm statistics of an extracted subnet.
IMAGES = 4096


def job(seed: int, data: Path, out: Path, epochs: int, parent: Path | None, sandwich: SandwichConfig) -> None:
    """Train one supernet and write the accuracy of its subnets."""
    import torch
    from safetensors.torch import load_file

    from stretch.network.capture import capture
    from stretch.network.models.tiny import CifarFamily
    from stretch.train.distributed import World
    from stretch.train.loop import Run, evaluate
    from stretch.train.recipe import TrainConfig
    from stretch.train.supernet import Supernet

    device, images = device_and_images(data)
    torch.manual_seed(seed)
    original = CifarFamily().build(MODEL)
    if parent is not None:
        original.load_state_dict(load_file(parent), strict=False)
    captured = capture(original, (1, 3, 32, 32), MODEL)
    designs = [design_of(name, captured.graph) for name in POOL]
    world = World(device=device)
    config = TrainConfig(
        epochs=epochs, weight_decay=5e-4, learning_rate=RATE, warmup_epochs=0 if parent else min(5, epochs / 10), seed=seed
    )
    start = time.perf_counter()
    supernet = Supernet(captured, designs, world.device, scratch=parent is None, channels_last=True).train()
    teacher = copy.deepcopy(original) if not sandwich.largest else None
    run = Run(supernet, images, config, teacher=teacher, world=world, sandwich=sandwich)
    prepared = time.perf_counter() - start
    for row in run.steps(1000):
        if row is not None and row.epoch % 5 == 1:
            sys.stderr.write(f"supernet seed {seed}: epoch {row.epoch}, loss {row.loss:.3f}, {row.seconds:.2f} s\n")
    trained = time.perf_counter() - start
    choice = torch.randperm(len(run.train_set), generator=torch.Generator().manual_seed(seed))[:IMAGES]
    batches = [run.normalise(part) for part in run.train_set.images[choice.to(world.device)].split(256)]
    plain = TrainConfig(channels_last=False)
    rows = []
    for name, subnet in zip(("largest", "smallest", *POOL), supernet.subnets, strict=True):
        model = supernet.extract(subnet.design, batches)
        subnet.load(supernet.flat)
        rows.append(
            {
                "design": name,
                "macs_ratio": model.graph.macs / captured.graph.macs,
                "extracted": evaluate(model, run.test_set, run.normalise, plain),
                "inside": evaluate(subnet.model, run.test_set, run.normalise, config),
            }
        )
    result = {
        "seed": seed,
        "start": "parent" if parent else "scratch",
        "epochs": epochs,
        "random": sandwich.random,
        "largest": sandwich.largest,
        "rate": RATE,
        "rows": rows,
        "seconds_per_epoch": float(np.median([e.seconds for e in run.history])),
        "minutes": trained / 60,
        "prepared_minutes": prepared / 60,
        "gpu_memory_gib": torch.cuda.max_memory_allocated() / 2**30 if world.device.type == "cuda" else 0.0,
    } | facts()
    out.mkdir(parents=True, exist_ok=True)
    (out / f"supernet-{result['start']}-{epochs}-{'' if sandwich.largest else 'taught-'}{seed}.json").write_text(json.dumps(result))
    best = " ".join(f"{row['design']} {row['extracted']:.4f}/{row['inside']:.4f}" for row in rows)
    sys.stderr.write(f"supernet seed {seed}: {trained / 60:.2f} min, {result['gpu_memory_gib']:.1f} GiB; extracted/inside: {best}\n")


def parent_minutes() -> float:
    """Return the GPU minutes of training the original, from the record of that training."""
    rows = read_record(MEASURED / "results" / "h200.json").tables["accuracy"]
    return float(next(row for row in rows if row["variant"] == PARENT)["GPU minutes a run"] or 0)


def cost_rows(alone: float, supernets: dict[str, float], parent: float) -> list[dict[str, Any]]:
    """Return the cost of each training relative to one stand-alone training, without and with the original's own training.

    Args:
        alone: GPU minutes of one design trained alone, the mean over designs.
        supernets: GPU minutes of a supernet, by its teacher.
        parent: GPU minutes of training the original.
    """
    minutes = {"one design alone, 40 epochs (mean of those above)": alone, "the original, 100 epochs": parent}
    for kind, total in supernets.items():
        name = f"supernet of 8, 20 epochs from the original, {kind}"
        minutes |= {name: total, f"{name}, and the original's training": total + parent}
    return [{"training": name, "GPU minutes": round(spent, 2), "over one": round(spent / alone, 2)} for name, spent in minutes.items()]


def record(folder: Path, alone: Path) -> None:
    """Write the record of the supernets in one folder and the stand-alone runs in another."""
    from scipy import stats

    runs, single, before = read_runs(folder, "supernet-*.json"), read_runs(alone), recorded_before()
    kinds = {"largest teaches": [r for r in runs if r["largest"]], "original teaches": [r for r in runs if not r["largest"]]}
    rows: list[Row] = []
    minutes = []
    for name in POOL:
        current = [r for r in single if short(r["variant"]) == name and not r["kd"] and r["epochs"] == 40]
        accuracy = (
            float(np.mean([100 * r["accuracy"] for r in current])) if current else before["top-1 %"] if name == "depth_only" else None
        )
        minutes.append(float(np.median([r["minutes"] for r in current])) if current else float(before["GPU minutes a run"] or 0))
        result: Row = {"design": name, "alone, 40 epochs": round(float(accuracy), 2) if accuracy is not None else None}
        result["seeds alone"] = len(current) or (3 if name == "depth_only" else 0)
        for kind, those in kinds.items():
            values = [100 * next(r["inside"] for r in run["rows"] if r["design"] == name) for run in those]
            result[f"subnet, {kind}"] = round(float(np.mean(values)), 2)
            result[f"± of {len(values)}"] = round((max(values) - min(values)) / 2, 2)
        again = [100 * next(r["extracted"] for r in run["rows"] if r["design"] == name) for run in kinds["largest teaches"]]
        result["statistics of plain images"] = round(float(np.mean(again)), 2)
        rows.append(result)
    both = [row for row in rows if row["alone, 40 epochs"] is not None]
    agreement: list[Row] = []
    for kind in kinds:
        rank = stats.spearmanr([row[f"subnet, {kind}"] for row in both], [row["alone, 40 epochs"] for row in both])
        numbers: Row = {"rank correlation": round(float(rank.statistic), 2), "p": round(float(rank.pvalue), 3)}
        agreement.append({"subnets": kind, "designs": len(both)} | numbers)
    mean = float(np.mean([m for m in minutes if m]))
    totals = {kind: float(np.median([run["minutes"] for run in those])) for kind, those in kinds.items()}
    cost = cost_rows(mean, totals, parent_minutes())
    write_record(
        HERE / "results" / "h200.json",
        {"subnets": rows, "agreement": agreement, "cost": cost},
        source="measured",
        command="python -m experiments.supernet.run job 0 --parent PARENT --epochs 20 --random 1 && python -m experiments.supernet.run record OUT ALONE",
        runs=min(len(those) for those in kinds.values()),
        **origin(runs),
        notes=[
            "resnet56_cifar10 on CIFAR-10 re-encoded as JPEG; every supernet starts from one original with 90.1 % top-1 after 100 epochs",
            "± is half the range over seeds; subnets are evaluated with the batch-norm statistics of training",
            "stand-alone minutes are of seeds trained side by side, which share the GPU; supernets trained alone",
            f"the original's minutes are the median of the runs of `{PARENT}` in experiments/cifar_accuracy/results/h200.json",
        ],
    )


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["job", "record"])
    parser.add_argument("names", nargs="+")
    parser.add_argument("--data", type=Path, default=Path("cifar.npz"))
    parser.add_argument("--out", type=Path, default=Path("runs/supernet"))
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--parent", type=Path, help="weights of the original to start from; from scratch without")
    parser.add_argument("--random", type=int, default=2, help="random subnets in every step")
    parser.add_argument("--taught", action="store_true", help="by the original, without the largest subnet")
    options = parser.parse_args()
    if options.what == "record":
        record(Path(options.names[0]), Path(options.names[1]))
        return
    sandwich = SandwichConfig(random=options.random, largest=not options.taught, smallest=False)
    job(int(options.names[0]), options.data, options.out, options.epochs, options.parent, sandwich)


if __name__ == "__main__":
    main()
