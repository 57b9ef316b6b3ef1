"""From a recipe to a running bundle with the real commands, and what interruptions and options do on the way.

``path`` trains a supernet with `stretch train` (killed once, then resumed), takes a design out and runs its bundle;
``rank COUNT`` fits an accuracy predictor to that supernet's designs; ``resume`` trains one network three times, the third killed and resumed; ``option CHANGE …`` trains it
with other values; ``record FOLDER`` makes the record. Each writes JSON into ``--out``.
"""

import argparse
import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments.command import STRETCH, program, stretch
from experiments.gpu import facts, origin
from experiments.records import Row, write_record

HERE = Path(__file__).parent
NETWORK, SUPERNET = "resnet56_cifar10", "resnet56_cifar10_supernet"


def killed(after: int, *words: str | Path) -> int:
    """Start a command, kill it once its log has this many epochs, and return the number of epochs in its log."""
    run = Path(words[list(words).index("--out") + 1])
    process = subprocess.Popen([*STRETCH, *map(str, words), "--quiet"], stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    epochs = 0
    while process.poll() is None and epochs < after:
        time.sleep(0.1)
        log = run / "log.csv"
        epochs = len(log.read_text().splitlines()) - 1 if log.is_file() else 0
    # Some time into the next epoch, so that its work is lost.
    time.sleep(0.7)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return epochs


def write(out: Path, name: str, result: dict[str, Any]) -> None:
    """Write the result of a part."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{name}.json").write_text(json.dumps(result | facts()))
    sys.stderr.write(f"{name}: {json.dumps(result)[:600]}\n")


def images_of(data: Path) -> list[str]:
    """Return the changes of a recipe for images in an array file."""
    return ["--set", "data.name=arrays", "--set", f"data.path={data}"]


def path(data: Path, out: Path, epochs: int, parent: Path, count: int) -> None:
    """Train a supernet by a recipe, extract a design, and run its bundle."""
    run = out / "supernet"
    words = ["train", SUPERNET, *images_of(data), "--set", f"train.epochs={epochs}", "--set", "train.warmup_epochs=1", "--out", str(run)]
    words += ["--set", f"weights={parent}", "--set", "start=inherit", "--set", "keep.evaluate=5"]
    had = killed(epochs // 2, *words)
    trained = stretch(*words, "--resume")["metrics"]
    rows = []
    for number in (0, 1):
        design = sorted((run / "designs").glob("*.toml"))[number]
        start = time.perf_counter()
        extracted = stretch("export", run, "--design", design, "--out", out / f"taken{number}", "--no-controls")
        seconds = time.perf_counter() - start
        ran = stretch("run", extracted["bundle"], "--repeat", "5")
        row = {"design": number, "extract_s": seconds, "overlaps": ran["verdict"]}
        row |= {key: extracted["accuracy"][key] for key in ("supernet", "extracted")}
        rows.append(row | bundle_accuracy(Path(extracted["bundle"]), Path(extracted["checkpoint"]), data, count))
    write(out, "path", {"killed_after": had, "trained": trained, "designs": rows})


def rank(run: Path, out: Path, count: int) -> None:
    """Measure the ranking of unseen subnets by a predictor that is fitted to other subnets."""
    from stretch.planning.cost.accuracy import save_accuracy
    from stretch.tools.ranking.fit import rank as evaluate_designs

    start = time.perf_counter()
    outcome = evaluate_designs(run, count)
    out.mkdir(parents=True, exist_ok=True)
    save_accuracy(out / "accuracy" / "predictor.json", outcome.predictor)
    predictor = outcome.predictor
    result = {name: getattr(predictor, name) for name in ("designs", "rank_correlation", "p_value", "rmse")}
    spread = {"lowest": min(outcome.measured), "highest": max(outcome.measured), "measured": outcome.measured, "held_out": outcome.held_out}
    write(out, "rank", result | spread | {"seconds": time.perf_counter() - start})


def bundle_accuracy(bundle: Path, checkpoint: Path, data: Path, count: int) -> dict[str, Any]:
    """Return the top-1 accuracy of a running bundle over test images, and its agreement with torch."""
    import torch
    from safetensors.torch import load_file

    from scheduler.runtime.session import Session
    from stretch.network.capture import capture
    from stretch.network.models.tiny import CifarFamily
    from stretch.planning.design.branch_design import load_draft
    from stretch.planning.design.scale import resolve_design
    from stretch.train.images import Normalise, load_arrays
    from stretch.transform import BranchedModel

    train_set, test_set = load_arrays(data, 10)
    graph = capture(CifarFamily().build(NETWORK), (1, 3, 32, 32), NETWORK).graph
    align = {"cpu": 1, "gpu": 1, "dsp": 1}
    model = BranchedModel(graph, resolve_design(load_draft(checkpoint.with_name("design.toml")), graph, "mi9", align, "cpu"))
    model.load_state_dict(load_file(checkpoint))
    model.eval()
    normalise = Normalise(*train_set.moments(), torch.device("cpu"))
    images, labels = next(iter(test_set.batches(count)))
    x = normalise(images)
    with torch.no_grad():
        expected = model(x).argmax(1).numpy()
    with Session(bundle) as session:
        values = np.array([int(np.argmax(session(row[None]))) for row in x.numpy()])
    return {"bundle": float((values == labels.numpy()).mean()), "same_class": float((values == expected).mean()), "images": len(values)}


def resume(data: Path, out: Path, epochs: int) -> None:
    """Train twice without an interruption, to show the difference of equal runs, and once with a kill and a resume."""
    rows = []
    for name in ("first", "second", "killed and resumed"):
        run = out / f"resume-{name.split()[0]}"
        words = ["train", NETWORK, *images_of(data), "--set", f"train.epochs={epochs}", "--set", "train.warmup_epochs=1", "--out", str(run)]
        had = killed(epochs // 2, *words) if name.startswith("killed") else None
        metrics = stretch(*words, *(["--resume"] if had is not None else []))["metrics"]
        rows.append(
            {"run": name, "killed_after": had, "accuracy": metrics["accuracy"], "loss": metrics["loss"]}
            | distance(run, out / "resume-first")
        )
    write(out, "resume", {"epochs": epochs, "runs": rows})


def distance(run: Path, other: Path) -> dict[str, float]:
    """Return the difference of the final weights of two runs, relative to their size."""
    from safetensors.torch import load_file

    a, b = (load_file(folder / "last.safetensors") for folder in (run, other))
    floats = [name for name, value in a.items() if value.is_floating_point()]
    wrong = sum(float((a[name] - b[name]).square().sum()) for name in floats)
    return {"distance": (wrong / sum(float(b[name].square().sum()) for name in floats)) ** 0.5}


def option(changes: list[str], data: Path, out: Path, epochs: int, recipe: str, gpus: int) -> None:
    """Train for a few epochs with changed options, by the command."""
    label = "-".join(c.split(".")[-1].replace("=", "_").replace("/", "_") for c in changes) or "defaults"
    name = f"option-{recipe}-{label}" + (f"-{gpus}_gpus" if gpus > 1 else "")
    words = ["train", recipe, *images_of(data), "--out", str(out / name)]
    kept = (f"train.epochs={epochs}", "train.warmup_epochs=1", "keep.evaluate=5", "keep.tensorboard=false")
    for change in (*kept, *changes):
        words += ["--set", change]
    metrics = stretch(*words, *(["--gpus", str(gpus)] if gpus > 1 else []))["metrics"]
    log = (out / name / "log.csv").read_text().splitlines()
    at = log[0].split(",").index("seconds")
    seconds = [float(line.split(",")[at]) for line in log[1:]]
    asked = {"recipe": recipe, "changes": changes, "gpus": gpus, "epochs": epochs}
    write(out, name, asked | {"epoch_s": float(np.median(seconds[1:]))} | metrics)


def record(folder: Path) -> None:
    """Write the record of the parts in a folder."""
    result = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    whole, ranking = result["path"], result.get("rank")
    trained = whole["trained"]
    designs: list[Row] = [
        {
            "design": f"number {row['design']} of the pool",
            "in the supernet %": round(100 * row["supernet"], 2),
            "extracted %": round(100 * row["extracted"], 2),
            "bundle on the scheduler %": round(100 * row["bundle"], 2),
            "same class as torch %": round(100 * row["same_class"], 2),
            "bundle's images": row["images"],
            "s to extract and export": round(row["extract_s"], 1),
        }
        for row in whole["designs"]
    ]
    step: Row = {
        "what": "stretch train, killed and resumed",
        "epochs": trained["epochs"],
        "killed after epoch": whole["killed_after"],
        "top-1 % of the largest subnet": round(100 * trained["accuracy"], 2),
        "images/s": round(trained["images_per_second"]),
        "MiB on the GPU": round(trained["memory_mib"]),
    }
    resumed: list[Row] = [
        {
            "run": row["run"],
            "killed after epoch": row["killed_after"],
            "top-1 %": round(100 * row["accuracy"], 2),
            "loss": round(row["loss"], 4),
            "distance to the first": round(row["distance"], 4),
        }
        for row in result["resume"]["runs"]
    ]
    tables: dict[str, list[Row]] = {"steps": [step], "designs": designs, "resume": resumed}
    if options := [_option(row) for name, row in result.items() if name.startswith("option-")]:
        tables["options"] = options
    if ranking:
        tables["rank"] = [
            {
                "predictor": "fitted to subnets",
                "designs": ranking["designs"],
                "rank correlation": round(ranking["rank_correlation"], 2),
                "p": float(f"{ranking['p_value']:.2g}"),
                "error, points": round(100 * ranking["rmse"], 2),
                "lowest %": round(100 * ranking["lowest"], 2),
                "highest %": round(100 * ranking["highest"], 2),
                "s": round(ranking["seconds"], 1),
            }
        ]
    write_record(
        HERE / "results" / "h200.json",
        tables,
        source="measured",
        command="python -m experiments.train_to_run.run path && python -m experiments.train_to_run.run resume",
        runs=1,
        **origin([whole, *result.values()]),
        notes=[
            "resnet56_cifar10 on CIFAR-10 re-encoded as JPEG; every step is the real command in a process of its own",
            "the supernet starts from a trained ResNet-56; bundles run on the machine's CPU cores",
            "options: some ran beside other jobs on the same GPU, so compare s an epoch with care",
            "distance: norm of the difference of all final weights over the norm of the first run's",
        ],
    )


def _option(row: dict[str, Any]) -> Row:
    recipe = "supernet" if row["recipe"].endswith("supernet") else "network"
    return {
        "recipe and change": f"{recipe}, {', '.join(row['changes']) or 'defaults'}",
        "GPUs": row["gpus"],
        "epochs": row["epochs"],
        "s an epoch": round(row["epoch_s"], 2),
        "images/s": round(row["images_per_second"]),
        "top-1 %": round(100 * row["accuracy"], 2),
        "loss": round(row["loss"], 3),
    }


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["path", "rank", "resume", "option", "record"])
    parser.add_argument("names", nargs="*", help="values of the recipe to change, a number of designs, or the folder that the others wrote")
    parser.add_argument("--data", type=Path, default=Path("cifar.npz"))
    parser.add_argument("--out", type=Path, default=Path("runs/train_to_run"))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--parent", type=Path, default=Path("teacher.safetensors"), help="weights of a trained ResNet-56")
    parser.add_argument("--recipe", default=NETWORK)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--count", type=int, default=2000, help="test images the bundle sees")
    options = parser.parse_args()
    if options.what == "path":
        path(options.data, options.out, options.epochs, options.parent, options.count)
    elif options.what == "rank":
        rank(options.out / "supernet", options.out, int(options.names[0]))
    elif options.what == "resume":
        resume(options.data, options.out, options.epochs)
    elif options.what == "option":
        option(options.names, options.data, options.out, options.epochs, options.recipe, options.gpus)
    else:
        record(Path(options.names[0]))


if __name__ == "__main__":
    program(main)
