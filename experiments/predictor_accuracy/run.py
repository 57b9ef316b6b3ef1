"""Accuracy of fitted predictors on families of networks left out: `python -m experiments.predictor_accuracy.run`."""

from collections import defaultdict
from pathlib import Path

import numpy as np

from experiments.measurements.phones import GPU_BACKEND
from experiments.networks import graph_of
from experiments.records import About, Facts, Row, write_record
from predictors.devices import load_device
from predictors.fitting.fit import EvaluatedFit, family_folds, fit_device
from predictors.fitting.networks import Networks
from predictors.measurements.networks import Measurements, load_measurements
from predictors.predictor import LatencyPredictor

HERE = Path(__file__).parent
DEVICES = ("pixel4", "s10", "mi8se", "a03s", "iphonexs")

#: Rows of the README's first table, which the goals of these predictors are about.
CHOSEN = ("gpu[all] fp16", "cpu[1large] fp32", "cpu[1large] int8")

#: Networks of the phone tables that torchvision or timm have under other names.
OTHERS = {
    "densenet169": "densenet169",
    "squeezenet_v1_0": "squeezenet1_0",
    "regnetx002": "timm:regnetx_002",
    "regnetx006": "timm:regnetx_006",
    "regnetx008": "timm:regnetx_008",
    "regnety002": "timm:regnety_002",
    "regnety004": "timm:regnety_004",
    "regnety006": "timm:regnety_006",
    "regnety016": "timm:regnety_016",
    "spnasnet": "timm:spnasnet_100",
    "fbnet_cb": "timm:fbnetc_100",
}

#: Maximum relative difference of multiply-accumulates for two networks to be the same.
SAME = 0.005

#: Predictors of papers, the networks of their evaluation, and the share within ±10 % that the papers state.
PUBLISHED = (
    ("nn-Meter, mobile CPU (2021)", "of the families it was made for, 2 000 variants", 0.99),
    ("nn-Meter, mobile GPU (2021)", "of the families it was made for, 2 000 variants", 0.991),
    ("LitePred, 85 edge platforms (2024)", "of the search spaces it was made for", 0.993),
)


def name(judged: EvaluatedFit) -> str:
    """Return the processor, core set and precision of a fit."""
    return f"{judged.fit.processor}[{judged.fit.core_set}] {judged.fit.precision}"


def row(device: str, judged: EvaluatedFit) -> Row:
    """Return the row of a fit with its errors on families left out."""
    held = judged.fit.held_out
    worst = sorted(judged.predicted, key=lambda network: -abs(judged.predicted[network] / judged.measured[network] - 1))[:3]
    return {
        "processor": f"{device} {name(judged)}",
        "networks": held.networks,
        "±10 %": held.within_10,
        "±20 %": held.within_20,
        "mean error": held.mape,
        "in the 90 % interval": held.coverage,
        "interval": f"{judged.fit.interval.low:.2f} to {judged.fit.interval.high:.2f}",
        "furthest off": ", ".join(f"{network} {judged.predicted[network] / judged.measured[network]:.2f}" for network in worst),
    }


def agreement(measurements: Measurements) -> list[Row]:
    """Return the share of kernels for which the fusion rules choose the implementation in the kernel's name, by GPU."""
    rows: list[Row] = []
    for device in sorted({kernel.device for kernel in measurements.kernels}):
        kernels = [kernel for kernel in measurements.kernels if kernel.device == device]
        answer = [("winograd" in kernel.implementation, kernel.variant == "winograd") for kernel in kernels if kernel.kind == "conv"]
        rows.append(
            {
                "GPU of": device,
                "rules": GPU_BACKEND.get(device, "tflite_gpu"),
                "kernels in the table that are one of ours": len(kernels),
                "dense windows": len(answer),
                "computed by Winograd": sum(chosen for chosen, _ in answer),
                "as the rules say": float(np.mean([chosen == stated for chosen, stated in answer])),
            }
        )
    return rows


def fold_rows(measurements: Measurements) -> list[Row]:
    """Return the families that are left out together."""
    networks = Networks(measurements.graphs, measurements.families, "tflite_cpu")
    folds: dict[int, set[str]] = defaultdict(set)
    counts: dict[int, int] = defaultdict(int)
    for network, fold in family_folds(measurements.families, networks.kinds).items():
        folds[fold].add(measurements.families[network])
        counts[fold] += 1
    return [{"fold": fold + 1, "families": ", ".join(sorted(folds[fold])), "networks": counts[fold]} for fold in sorted(folds)]


def other_rows(measurements: Measurements) -> list[Row]:
    """Return predictions of the same networks in other libraries, through capture and the shipped profile of the Pixel 4."""
    predictor = LatencyPredictor(load_device("pixel4"))
    times = {(row.network, row.processor, row.core_set, row.precision): row.ms for row in measurements.latencies if row.device == "pixel4"}
    rows: list[Row] = []
    for network, model in OTHERS.items():
        graph = graph_of(model)
        apart = graph.macs / measurements.graphs[network].macs - 1
        if abs(apart) > SAME:
            continue
        result: Row = {"network": model, "in the tables": network}
        for title, processor, key in (
            ("GPU", "gpu", ("gpu", "all", "fp16")),
            ("1 core fp32", "cpu[1large]", ("cpu", "1large", "fp32")),
            ("1 core int8", "cpu[1large]", ("cpu", "1large", "int8")),
        ):
            ms = predictor.predict(graph, processor, key[2]).ms
            result[f"{title}, predicted ÷ measured"] = round(ms / times[(network, *key)], 3)
        rows.append(result)
    return rows


def summary(rows: list[Row]) -> list[Row]:
    """Return our errors next to published ones."""
    ours: list[Row] = [
        {"predictor": f"this, {row['processor']}", "networks left out": "whole families", "±10 %": row["±10 %"]}
        for row in rows
        if str(row["processor"]).partition(" ")[2] in CHOSEN and str(row["processor"]).startswith(("pixel4", "s10"))
    ]
    columns = ("predictor", "networks left out", "±10 %")
    return [*ours, *(dict(zip(columns, paper, strict=True)) for paper in PUBLISHED)]


def main() -> None:
    """Fit every phone, leave families out, and write ``results/phones.json``."""
    measurements = load_measurements("phones")
    rows = [row(device, judged) for device in DEVICES for judged in fit_device(measurements, load_device(device))]
    chosen = [item for item in rows if str(item["processor"]).partition(" ")[2] in CHOSEN]
    write_record(
        HERE / "results" / "phones.json",
        {
            "folds": fold_rows(measurements),
            "chosen": chosen,
            "every": rows,
            "published": summary(rows),
            "agreement": agreement(measurements),
            "others": other_rows(measurements),
        },
        source="predicted",
        command="python -m experiments.predictor_accuracy.run",
        about={"published": About(rows={item: Facts(source="paper") for item, *_ in PUBLISHED})},
        notes=[
            "Predictions of fits that had not seen the network's family, against times measured by Li, Paolieri and Golubchik (EdgeSys 2024) on five phones. "
            "The interval of a row was made without the family that it is judged on. "
            "Formulas and the few numbers that say how far priors are believed were chosen while looking at these five folds: with others the shares move by about 3 %."
        ],
    )


if __name__ == "__main__":
    main()
