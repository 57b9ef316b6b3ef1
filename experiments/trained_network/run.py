"""Train a small branched network on CIFAR-10, to have weights worth quantising.

``job DESIGN`` trains one and writes it; ``record FOLDER`` puts what jobs wrote in
its place here: weights, the complete design, the recipe, and the record.
"""

import argparse
import json
import shutil
import sys
import time
from pathlib import Path

from experiments.gpu import facts, origin

HERE = Path(__file__).parent
MODEL = "resnet20_cifar10"
DESIGNS = ("cpu_dsp", "cpu_gpu_dsp")
#: Channels of a small network do not fill a DSP's slice of 32.
ALIGN = {"cpu": 8, "gpu": 8, "dsp": 8}


def job(name: str, data: Path, out: Path, epochs: int, seed: int) -> None:
    """Train one design from scratch and write weights, design and facts."""
    import torch
    from safetensors.torch import save_file

    from experiments.cifar_accuracy.run import initialise
    from stretch.capture import capture
    from stretch.models.tiny import CifarFamily
    from stretch.planning.design.branch_design import design_to_toml, load_draft
    from stretch.planning.design.scale import resolve_design
    from stretch.train.images import load_arrays
    from stretch.train.loop import train
    from stretch.train.recipe import TrainConfig
    from stretch.transform import BranchedModel

    torch.backends.cudnn.benchmark = True
    torch.manual_seed(seed)
    graph = capture(CifarFamily().build(MODEL), (1, 3, 32, 32), MODEL).graph
    design = resolve_design(load_draft(HERE / "designs" / f"{name}.toml"), graph, "mi9", ALIGN, "cpu")
    model = BranchedModel(graph, design)
    initialise(model)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    config = TrainConfig(epochs=epochs, weight_decay=5e-4, warmup_epochs=min(5, epochs / 10), seed=seed)
    train_set, test_set = load_arrays(data, 10)
    mean, deviation = train_set.moments()
    start = time.perf_counter()
    history = train(model.to(device), train_set, test_set, config)
    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    save_file({k: v.contiguous().cpu() for k, v in model.state_dict().items() if "num_batches" not in k}, folder / "model.safetensors")
    (folder / "design.toml").write_text(design_to_toml(design))
    result = {
        "design": name,
        "seed": seed,
        "epochs": epochs,
        "accuracy": history.accuracy,
        "macs_ratio": model.graph.macs / graph.macs,
        "params": model.graph.params,
        "mean": [round(float(v), 3) for v in mean],
        "deviation": [round(float(v), 3) for v in deviation],
        "minutes": (time.perf_counter() - start) / 60,
    }
    (folder / "facts.json").write_text(json.dumps(result | facts(), indent=1))


def record(folder: Path) -> None:
    """Put trained networks in their place and make their record."""
    from experiments.records import write_record

    runs = [json.loads((folder / name / "facts.json").read_text()) for name in DESIGNS]
    for run in runs:
        name = run["design"]
        target = HERE / name
        target.mkdir(exist_ok=True)
        for file in ("model.safetensors", "design.toml"):
            shutil.copyfile(folder / name / file, target / file)
        lines = [f"model = {json.dumps(MODEL)}", 'input = "colours of 0 to 255, minus mean, over deviation"']
        lines += [f"{key} = {run[key]}" for key in ("mean", "deviation")]
        (target / "input.toml").write_text("# What the network reads: channels, height, width = 3, 32, 32.\n" + "\n".join(lines) + "\n")
    write_record(
        HERE / "results" / "h200.json",
        {
            "networks": [
                {
                    "design": run["design"],
                    "top-1 %": round(run["accuracy"] * 100, 2),
                    "MACs ratio": round(run["macs_ratio"], 3),
                    "parameters": run["params"],
                    "epochs": run["epochs"],
                    "GPU minutes": round(run["minutes"], 2),
                }
                for run in runs
            ]
        },
        source="measured",
        command="python -m experiments.trained_network.run job cpu_dsp",
        runs=1,
        **origin(runs),
        notes=["CIFAR-10 re-encoded as JPEG, test set of 10 000 images, accuracy after the last epoch, one seed"],
    )


def main() -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["job", "record"])
    parser.add_argument("name", help="a design, or the folder that jobs wrote to")
    parser.add_argument("--data", type=Path, default=Path("cifar.npz"))
    parser.add_argument("--out", type=Path, default=Path("runs/trained_network"))
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.what == "job":
        job(options.name, options.data, options.out, options.epochs, options.seed)
    else:
        record(Path(options.name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
