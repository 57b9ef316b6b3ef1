"""The record of what `experiments.train_to_run.run` found."""

import json
from pathlib import Path
from typing import Any

from experiments.gpu import origin
from experiments.records import Row, write_record

HERE = Path(__file__).parent


def record(folder: Path) -> None:
    """Make the record of the parts in a folder."""
    result = {file.stem: json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))}
    whole, again, ranking = result["path"], result["resume"], result.get("rank")
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
    steps: list[Row] = [
        {
            "what": "stretch train, killed and resumed",
            "epochs": trained["epochs"],
            "killed after epoch": whole["killed_after"],
            "top-1 % of the largest subnet": round(100 * trained["accuracy"], 2),
            "images/s": round(trained["images_per_second"]),
            "MiB on the GPU": round(trained["memory_mib"]),
        }
    ]
    resumed: list[Row] = [
        {
            "run": row["run"],
            "killed after epoch": row["killed_after"],
            "top-1 %": round(100 * row["accuracy"], 2),
            "loss": round(row["loss"], 4),
            "distance to the first": round(row["distance"], 4),
        }
        for row in again["runs"]
    ]
    options: list[Row] = [_option(row) for name, row in result.items() if name.startswith("option-")]
    tables: dict[str, list[Row]] = {"steps": steps, "designs": designs, "resume": resumed}
    if options:
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
