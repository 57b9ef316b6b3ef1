"""Does branching keep the accuracy of ResNet-56 on CIFAR-10 at equal cost?

``job VARIANT SEEDS`` trains one network. ``queue DESIGN:SEEDS:EPOCHS[:soft|:weighted] …`` trains
one network per GPU at a time, its seeds (0+1+2) side by side. ``record FOLDER`` makes the record of the results.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.gpu import device_and_images, facts, origin, read_runs
from experiments.records import Row, write_record

if TYPE_CHECKING:
    from predictors.graph import OpGraph
    from stretch.planning.design.branch_design import BranchDesign

HERE = Path(__file__).parent
MODEL = "resnet56_cifar10"
#: Design file of each variant; the original has none.
MAIN: dict[str, str | None] = {
    "sequential": None,
    "branched, deep-narrow + shallow-wide": "deep_narrow_shallow_wide",
    "branched, depth only": "depth_only",
    "sequential control, shallow-wide": "shallow_wide_control",
}
#: Meeting points (paper 003, table 3): two branches of full width and half depth, divided where nine blocks per stage allow.
MEETS: dict[str, str | None] = {
    "9 meeting points": "meets_9",
    "6 meeting points": "meets_6",
    "2 meeting points": "meets_2",
    "1 meeting point": "meets_1",
    "1 meeting point, branched stem": "meets_1_branched_stem",
}
#: Scaling ratios at equal cost (paper 003, tables 4 and 9): the lowest ratio of any branch.
RATIOS: dict[str, str | None] = {
    "depth 0.33 in both, wider": "both_third",
    "depth 0.33 and 0.67": "third",
    "depth 0.67 in both, narrower": "two_thirds",
    "depth 0.78 in both, narrower": "seven_ninths",
    "depth 0.89 in both, narrower": "eight_ninths",
    "width only": "width_only",
    "width 0.25 and almost whole": "quarter_width",
}
#: Before scaling (paper 003, table 8), at twice the cost.
REPLICATED: dict[str, str | None] = {"replicated, not scaled": "replicated"}
VARIANTS = MAIN | MEETS | RATIOS | REPLICATED
#: Multiples of 8 keep the GPU's matrix units busy; the designs are compared by accuracy, not by latency on a phone.
ALIGN = {"cpu": 8, "gpu": 8, "dsp": 8}

#: Weight and temperature of a teacher's labels, as in Zhou et al. 2021 for CIFAR.
SHARE, TEMPERATURE = 0.7, 4.0


def short(variant: str) -> str:
    """Return a variant's name in file names."""
    return VARIANTS[variant] or "sequential"


def original_graph() -> "OpGraph":
    """Return the operator graph of the original."""
    from stretch.network.capture import capture
    from stretch.network.models.tiny import CifarFamily

    return capture(CifarFamily().build(MODEL), (1, 3, 32, 32), MODEL).graph


def design_of(name: str, graph: "OpGraph", device: str = "mi9", join: str = "") -> "BranchDesign":
    """Return a design of this experiment for the original.

    Args:
        name: Name of the design's file.
        graph: The original.
        device: Device of the design.
        join: Join for all segments; empty keeps those of the file.
    """
    from msgspec.structs import replace

    from stretch.planning.design.branch_design import load_draft
    from stretch.planning.design.scale import resolve_design

    draft = load_draft(HERE / "designs" / f"{name}.toml")
    if join:
        draft = replace(draft, segments=[replace(segment, join=join) for segment in draft.segments])
    return resolve_design(draft, graph, device, ALIGN, "cpu")


def teacher_file(out: Path) -> Path:
    """Return the file of the sequential network's weights with seed 0, which is the teacher."""
    return out / "teacher.safetensors"


def job(variant: str, seeds: list[int], data: Path, out: Path, epochs: int, kd: str = "") -> None:
    """Train one variant from scratch, once per seed, in parallel on one GPU, and write the results."""
    import torch
    from safetensors.torch import load_file, save_file

    from experiments.gpu import train_side_by_side
    from stretch.network.models.tiny import CifarFamily
    from stretch.train.loop import Run
    from stretch.train.prepare import initialise
    from stretch.train.recipe import TrainConfig
    from stretch.transform import BranchedModel

    device, images = device_and_images(data)
    out.mkdir(parents=True, exist_ok=True)
    graph, name = original_graph(), VARIANTS[variant]
    design = design_of(name, graph) if name else None
    teacher = None
    if kd:
        teacher = CifarFamily().build(MODEL)
        teacher.load_state_dict(load_file(teacher_file(out)), strict=False)
    start = time.perf_counter()
    runs, built = [], graph
    for seed in seeds:
        torch.manual_seed(seed)
        model: torch.nn.Module = BranchedModel(graph, design) if design else CifarFamily().build(MODEL)
        built = model.graph if isinstance(model, BranchedModel) else graph
        initialise(model)
        config = TrainConfig(
            epochs=epochs,
            weight_decay=5e-4,
            warmup_epochs=min(5, epochs / 10),
            seed=seed,
            distill=SHARE if kd else 0.0,
            distill_kind="weighted" if kd == "weighted" else "soft",
            temperature=TEMPERATURE,
        )
        runs.append(Run(model.to(device), images, config, teacher=teacher))
    train_side_by_side(runs)
    for seed, run in zip(seeds, runs, strict=True):
        if design is None and seed == 0 and not teacher_file(out).exists():
            partial = out / f".teacher.{os.getpid()}"
            save_file({k: v.contiguous() for k, v in run.model.state_dict().items()}, partial)
            partial.replace(teacher_file(out))
        result = {
            "variant": variant,
            "kd": kd,
            "seed": seed,
            "epochs": epochs,
            "accuracy": run.history[-1].accuracy,
            "macs": built.macs,
            "macs_ratio": built.macs / graph.macs,
            "params_ratio": built.params / graph.params,
            "side_by_side": len(seeds),
            "seconds_per_epoch": float(np.median([e.seconds for e in run.history])),
            "minutes": (time.perf_counter() - start) / 60 / len(seeds),
            "log": [asdict(epoch) for epoch in run.history],
        } | facts()
        label = f"{short(variant)}-{epochs}-{seed}{f'-{kd}' if kd else ''}"
        (out / f"{label}.json").write_text(json.dumps(result))
        sys.stderr.write(f"{label}: {result['accuracy']:.4f}, {result['minutes']:.2f} GPU min\n")


def result_file(out: Path, token: str) -> Path:
    """Return the file to which a job writes the result of its last seed."""
    design, seeds, epochs, *kd = token.split(":")
    return out / f"{'-'.join([design, epochs, seeds.split('+')[-1], *kd])}.json"


def command(token: str, data: Path, out: Path) -> list[str]:
    """Return the command of one job ``DESIGN:SEED:EPOCHS[:KD]``, DESIGN a file name without suffix, or ``sequential``."""
    design, seed, epochs, *kd = token.split(":")
    variant = next(name for name in VARIANTS if short(name) == design)
    words = ["job", variant, seed, "--data", str(data), "--out", str(out), "--epochs", epochs]
    return [sys.executable, "-m", "experiments.cifar_accuracy.run", *words, *(["--kd", kd[0]] if kd else [])]


def queue(jobs: list[str], data: Path, out: Path) -> int:
    """Run jobs, one process per GPU, in order, each once its teacher is ready.

    Args:
        jobs: See `command`.
        data: The images.
        out: Folder of the results; a job with a result in it is not run again.

    Returns:
        Number of failed jobs.
    """
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    gpus = visible.split(",") if visible else [str(number) for number in range(max(1, torch.cuda.device_count()))]
    waiting = [token for token in jobs if not result_file(out, token).exists()]
    running: dict[str, subprocess.Popen[bytes]] = {}
    failed = 0
    while waiting or running:
        ready = [token for token in waiting if token.count(":") < 3 or teacher_file(out).exists()]
        for gpu in [g for g in gpus if g not in running][: len(ready)]:
            token = ready.pop(0)
            waiting.remove(token)
            running[gpu] = subprocess.Popen(command(token, data, out), env=os.environ | {"CUDA_VISIBLE_DEVICES": gpu})
        for gpu, process in list(running.items()):
            if process.poll() is not None:
                failed += process.returncode != 0
                del running[gpu]
        time.sleep(0.2)
    return failed


def accuracy_row(variant: str, runs: Sequence[dict[str, Any]]) -> Row:
    """Return the mean accuracy over the seeds of a variant, with Student's interval, and its cost relative to the original's."""
    from scipy import stats

    values = np.array([run["accuracy"] * 100 for run in runs])
    spread = float(stats.t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else None
    return {
        "variant": variant,
        "seeds": len(runs),
        "top-1 %": round(float(values.mean()), 2),
        "95 % interval ±": None if spread is None else round(spread, 2),
        "MACs ratio": round(runs[0]["macs_ratio"], 3),
    }


def median_minutes(runs: Sequence[dict[str, Any]]) -> float:
    """Return the median GPU minutes of runs."""
    return round(float(np.median([run["minutes"] for run in runs])), 2)


def record(folder: Path) -> None:
    """Write the record of the runs in a folder."""
    runs = read_runs(folder)
    rows = []
    for variant, epochs in dict.fromkeys(
        (r["variant"], r["epochs"]) for r in sorted(runs, key=lambda r: (-r["epochs"], list(VARIANTS).index(r["variant"])))
    ):
        current = [r for r in runs if r["variant"] == variant and r["epochs"] == epochs]
        rows.append(
            accuracy_row(f"{variant}, {epochs} epochs", current)
            | {
                "parameters ratio": round(current[0]["params_ratio"], 3),
                "s an epoch": round(float(np.median([r["seconds_per_epoch"] for r in current])), 2),
                "GPU minutes a run": median_minutes(current),
            }
        )
    singles: list[Row] = [
        {
            "run": f"{short(r['variant'])} seed {r['seed']}",
            "top-1 %": round(r["accuracy"] * 100, 2),
            "s an epoch": round(r["seconds_per_epoch"], 2),
        }
        for r in runs
    ]
    write_record(
        HERE / "results" / "h200.json",
        {"accuracy": rows, "runs": singles},
        source="measured",
        command="python -m experiments.cifar_accuracy.run queue 0:0 1:0 2:0 3:0 …",
        runs=min(row["seeds"] for row in rows),
        **origin(runs),
        notes=[
            f"{MODEL} from scratch, batch 256, SGD, half-cosine; CIFAR-10 re-encoded as JPEG, so compare only with the sequential rows of as many epochs",
            "4 GPUs, one run each at a time; s an epoch is training alone, GPU minutes hold start-up and evaluation too",
            "accuracy after the last epoch, no choice of the best epoch",
        ],
    )


def main() -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["job", "queue", "record"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data", type=Path, default=Path("cifar.npz"))
    parser.add_argument("--out", type=Path, default=Path("runs/cifar_accuracy"))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--kd", choices=["soft", "weighted"], default="", help="learn from the teacher in --out, too")
    options = parser.parse_args()
    if options.what == "job":
        seeds = [int(seed) for seed in options.names[1].split("+")]
        job(options.names[0], seeds, options.data, options.out, options.epochs, options.kd)
    elif options.what == "queue":
        return queue(options.names, options.data, options.out)
    else:
        record(Path(options.names[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
