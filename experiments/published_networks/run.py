"""Whole networks that others timed on a Pixel 6 and a Pixel 4, beside predictions: `python -m experiments.published_networks.run`."""

import csv
import sys
from pathlib import Path

from experiments.records import About, Facts, Row, write_record
from predictors.devices import load_device
from predictors.fitting.calibration import NetworkTime, calibrate, read_networks
from predictors.graph import OpGraph
from predictors.predictor import LatencyPredictor
from stretch.stages.network import read_network

HERE = Path(__file__).parent
#: Processors of `mi9`, whose chip the Pixel 4 has, by the columns of its table.
PIXEL4 = {
    "cpu_fp32_ms": ("cpu[1large3med]", "fp32"),
    "cpu_int8_ms": ("cpu[1large3med]", "int8"),
    "gpu_fp16_ms": ("gpu", "fp16"),
}
#: The smallest network by far: what its pipeline takes besides is most of its time.
SMALLEST = "BlazeFace short range"


def graph_of(model: str, size: str) -> OpGraph:
    """The network of a table's row; its weights do not matter."""
    return read_network(model, (1, 3, int(size), int(size)), weights="none", trust_code=True).graph


def left_out(rows: list[NetworkTime], graphs: dict[tuple[str, str], OpGraph], pipelines: str) -> list[Row]:
    """Each pipeline beside what the other pipelines of its processor and precision say of it."""
    _, calibrated = calibrate(load_device("pixel6"), "pixel6", rows, lambda row: graphs[row.model, row.input], {}, "published")
    return [
        {
            "pipeline": f"{network.name} on {key}, {pipelines}",
            "measured ms": network.measured_ms,
            "others say ms": round(network.left_out_ms, 2),
            "error %": round(100 * (network.left_out_ms / network.measured_ms - 1), 1),
            "90 % interval of a network": f"{result.prior.interval.low:.2f} to {result.prior.interval.high:.2f}",
        }
        for key, result in calibrated.items()
        if result.prior.calibration is not None
        for network in result.prior.calibration.networks
    ]


def lite_rows() -> list[Row]:
    """EfficientNet-Lite on the Pixel 4 beside the fits of another phone with its chip."""
    predictor = LatencyPredictor(load_device("mi9"))
    rows: list[Row] = []
    with (HERE / "pixel4.csv").open(encoding="utf-8") as file:
        for line in csv.DictReader(file):
            graph = graph_of(f"timm:{line['network']}", line["input"])
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


def main() -> int:
    """Predict and write the record."""
    rows = read_networks(HERE / "pixel6.csv")
    graphs = {(row.model, row.input): graph_of(row.model, row.input) for row in rows}
    tables = {
        "pixel6": left_out(rows, graphs, "all four")
        + left_out([row for row in rows if row.name != SMALLEST], graphs, f"without {SMALLEST}"),
        "pixel4": lite_rows(),
    }
    write_record(
        HERE / "results" / "predicted.json",
        tables,
        source="predicted",
        command="python -m experiments.published_networks.run",
        runs=None,
        load=None,
        about={name: About(columns={"measured ms": Facts(source="paper")}) for name in tables},
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
