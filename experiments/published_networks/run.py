"""Whole networks that others timed on recent phones, and predictions for them: `python -m experiments.published_networks.run`."""

import csv
from pathlib import Path
from statistics import mean

from experiments.networks import graph_of
from experiments.records import About, Facts, Row, write_record
from predictors.devices import load_device
from predictors.predictor import LatencyPredictor

HERE = Path(__file__).parent
#: Processors of `mi9`, whose chip is also in the Pixel 4, by the columns of its table.
PIXEL4 = {
    "cpu_fp32_ms": ("cpu[1large3med]", "fp32"),
    "cpu_int8_ms": ("cpu[1large3med]", "int8"),
    "gpu_fp16_ms": ("gpu", "fp16"),
}
#: Profiles that are calibrated by whole networks, each left out in turn (`predictors/measurements/published`).
DEVICES = ("pixel6", "s23", "mi9-release", "mi9")


def left_out() -> list[Row]:
    """Return each network of a table, and its prediction from the others of its processor, core set and precision."""
    rows: list[Row] = []
    for device in DEVICES:
        for (processor, core_set, precision), prior in load_device(device).priors.items():
            for network in prior.calibration.networks if prior.calibration else ():
                ratio = network.measured_ms / network.left_out_ms
                rows.append(
                    {
                        "network": f"{network.name} on {processor}[{core_set}] of {device} in {precision}",
                        "column": f"{device} {processor}[{core_set}] {precision}" + (", pipelines" if "pipeline" in network.name else ""),
                        "measured ms": network.measured_ms,
                        "others say ms": round(network.left_out_ms, 2),
                        "error %": round(100 * (1 / ratio - 1), 1),
                        "in the 90 % interval": prior.interval.low <= ratio <= prior.interval.high,
                    }
                )
    return rows


def summary(rows: list[Row]) -> list[Row]:
    """Return the errors of each column's predictions, each network predicted from the others."""
    columns: dict[str, list[Row]] = {}
    for row in rows:
        columns.setdefault(str(row["column"]), []).append(row)
    return [
        {
            "column": column,
            "networks": len(of),
            "mean error %": round(mean(abs(float(str(row["error %"]))) for row in of), 1),
            "within ±20 %": sum(abs(float(str(row["error %"]))) <= 20 for row in of),
            "in the 90 % interval": sum(bool(row["in the 90 % interval"]) for row in of),
        }
        for column, of in columns.items()
    ]


def lite_rows() -> list[Row]:
    """Return EfficientNet-Lite on the Pixel 4, and predictions from the fits of another phone with its chip."""
    predictor = LatencyPredictor(load_device("mi9"))
    rows: list[Row] = []
    with (HERE / "pixel4.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            graph = graph_of(f"timm:{line['network']}", (1, 3, int(line["input"]), int(line["input"])))
            for column, (processor, precision) in PIXEL4.items():
                predicted, measured = predictor.predict(graph, processor, precision).ms, float(line[column])
                rows.append(
                    {
                        "network": f"{line['network']} on {processor} in {precision}",
                        "measured ms": measured,
                        "predicted ms": round(predicted, 2),
                        "error %": round(100 * (predicted / measured - 1), 1),
                    }
                )
    return rows


def main() -> None:
    """Predict and write the record."""
    rows = left_out()
    tables = {"summary": summary(rows), "left_out": rows, "pixel4": lite_rows()}
    write_record(
        HERE / "results" / "predicted.json",
        tables,
        source="predicted",
        command="python -m experiments.published_networks.run",
        load=None,
        about={name: About(columns={"measured ms": Facts(source="paper")}) for name in ("left_out", "pixel4")},
    )


if __name__ == "__main__":
    main()
