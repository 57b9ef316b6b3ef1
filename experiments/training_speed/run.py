"""How fast networks train: ResNet-56 sequential and branched on one GPU, ResNet-50 on several.

``single NET MODE`` times one network, ``ddp`` times ResNet-50 as one process of those
that torchrun started, ``record FOLDER`` makes the record.
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

from experiments.gpu import facts, origin

HERE = Path(__file__).parent
MODEL = "resnet56_cifar10"
NETS = {"sequential": None, "branched": "depth_only", "replicated": "replicated"}
#: Images of a made-up epoch; as many as CIFAR-10 has.
CIFAR = 50_000


def single(net: str, mode: str, out: Path, steps: int, beside: bool) -> None:
    """Time training steps of one network in one mode: eager, compile or graph."""
    import torch

    from experiments.cifar_accuracy.run import ALIGN, initialise
    from stretch.capture import capture
    from stretch.models.tiny import CifarFamily
    from stretch.planning.design.branch_design import load_draft
    from stretch.planning.design.scale import resolve_design
    from stretch.train.images import ImageSet
    from stretch.train.loop import Run
    from stretch.train.recipe import TrainConfig
    from stretch.transform import BranchedModel

    torch.backends.cudnn.benchmark = True
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model: torch.nn.Module = CifarFamily().build(MODEL)
    if NETS[net] is not None:
        graph = capture(model, (1, 3, 32, 32), MODEL).graph
        draft = load_draft(HERE.parent / "cifar_accuracy" / "designs" / f"{NETS[net]}.toml")
        model = BranchedModel(graph, resolve_design(draft, graph, "mi9", ALIGN, "cpu"))
    initialise(model)
    count = 256 * (steps + 1)
    data = ImageSet(torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8), torch.randint(10, (count,)))
    # Random labels teach nothing: a small rate keeps the loss a number.
    config = TrainConfig(epochs=4, learning_rate=0.01, graph=mode == "graph", compile=mode == "compile", parallel_branches=beside)
    start = time.perf_counter()
    run = Run(model.to(device), data, data, config, evaluate_every=1000)
    seconds = [row.seconds for row in run.steps() if row is not None]
    row = {
        "net": net,
        "mode": mode + ("" if beside else ", one stream"),
        "ms_per_step": float(np.median(seconds[1:])) / run.per_epoch * 1e3,
        "first_s": seconds[0],
        "total_s": time.perf_counter() - start,
    } | facts()
    out.mkdir(parents=True, exist_ok=True)
    (out / f"single-{net}-{mode}{'' if beside else '-one_stream'}.json").write_text(json.dumps(row))
    sys.stderr.write(f"{net} {mode} beside={beside}: {row['ms_per_step']:.2f} ms a step, first epoch {seconds[0]:.1f} s\n")


def ddp(out: Path, name: str, steps: int, batch: int) -> None:
    """Time ResNet-50 at 224×224 in bf16 on as many GPUs as torchrun started processes."""
    import torch

    from stretch.models.load import load_model
    from stretch.train.distributed import join_world
    from stretch.train.images import ImageSet
    from stretch.train.loop import Run
    from stretch.train.recipe import TrainConfig

    torch.backends.cudnn.benchmark = True
    size = 224 if torch.cuda.is_available() else 32
    with join_world() as world:
        model = load_model(name, weights="none").module
        # Each process draws from the same few images; how many there are does not change the time of a step.
        images = torch.randint(0, 256, (batch * world.size * steps, 3, size, size), dtype=torch.uint8)
        data = ImageSet(images, torch.randint(10, (len(images),)))
        config = TrainConfig(epochs=4, batch=batch * world.size, graph=False, sync_bn=False, augment="mirror")
        run = Run(model.to(world.device), data, data, config, world=world, evaluate_every=1000)
        seconds = []
        for row in run.steps():
            if row is not None:
                seconds.append(row.seconds)
                if row.epoch == 3:
                    break
        if world.first:
            rate = batch * world.size * steps / float(np.median(seconds[1:]))
            result = {"net": name, "gpus": world.size, "images_per_second": rate, "batch_per_gpu": batch} | facts()
            out.mkdir(parents=True, exist_ok=True)
            (out / f"ddp-{name}-{world.size}.json").write_text(json.dumps(result))
            sys.stderr.write(f"{name} on {world.size}: {rate:.0f} images/s, epochs {seconds}\n")


def record(folder: Path) -> None:
    """Make the record of what is in a folder."""
    from experiments.records import About, Row, write_record

    singles = [json.loads(file.read_text()) for file in sorted(folder.glob("single-*.json"))]
    many = sorted((json.loads(file.read_text()) for file in folder.glob("ddp-*.json")), key=lambda r: r["gpus"])
    base = next(r["ms_per_step"] for r in singles if (r["net"], r["mode"]) == ("sequential", "graph"))
    steps: list[Row] = [
        {
            "network": r["net"],
            "mode": r["mode"],
            "ms a step": round(r["ms_per_step"], 2),
            "s an epoch": round(r["ms_per_step"] * (CIFAR // 256) / 1e3, 2),
            "images/s": round(256e3 / r["ms_per_step"]),
            "over sequential, graph": round(r["ms_per_step"] / base, 2),
        }
        for r in singles
    ]
    scaling: list[Row] = [
        {
            "GPUs": str(r["gpus"]),
            "images/s": round(r["images_per_second"]),
            "speed-up": round(r["images_per_second"] / many[0]["images_per_second"], 2),
        }
        for r in many
    ]
    write_record(
        HERE / "results" / "h200.json",
        {"steps": steps, "scaling": scaling},
        source="measured",
        command="python -m experiments.training_speed.run single branched graph && torchrun --nproc-per-node 4 -m experiments.training_speed.run ddp resnet50",
        runs=3,
        about={"scaling": About(runs=2)},
        **origin(singles + many),
        notes=[
            "steps: resnet56_cifar10, batch 256, bf16, median of three epochs of 41 steps after a first one; an epoch is 195 steps",
            "scaling: resnet50, 224×224, bf16, batch 256 a GPU, images on the GPU, median of two epochs of ten steps",
        ],
    )


def main() -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["single", "ddp", "record"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/training_speed"))
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=256, help="images per GPU and step")
    parser.add_argument("--one-stream", action="store_true", help="branches one after another on the GPU")
    options = parser.parse_args()
    if options.what == "single":
        single(options.names[0], options.names[1], options.out, options.steps, not options.one_stream)
    elif options.what == "record":
        record(Path(options.names[0]))
    else:
        ddp(options.out, options.names[0], options.steps, options.batch)
    return 0


if __name__ == "__main__":
    sys.exit(main())
