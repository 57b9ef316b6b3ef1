"""The DSP of a Pixel 4, which has the chip of the Mi 9, by both profiles of the Mi 9: the release ran its DSP at less than full speed.

Times of the Pixel 4 are those of table 6 of the MobileNetV4 paper (arXiv 2404.10518): TensorFlow Lite with Hexagon NN, int8, full
speed. Calibrated by them, `mi9` says how long the networks of the release would take at full speed.
"""

from experiments.records import ROOT, Row
from predictors.devices import load_device
from predictors.fitting.calibration import NetworkTime, read_networks
from predictors.graph import OpGraph
from predictors.predictor import LatencyPredictor
from predictors.rewrites import laid_out
from stretch.stages.network import read_network

TABLES = ROOT / "predictors" / "measurements" / "published"
#: Power-save level of the DSP with which the release measured a network; 0 is full speed.
LEVELS = {"R-34": 255, "RX-1.6": 255, "EN-L4": 128}


def _graph(row: NetworkTime) -> OpGraph:
    size = int(row.input)
    return read_network(row.model, (1, 3, size, size), weights="none", trust_code=True).graph


def hexagon_rows() -> tuple[list[Row], list[Row]]:
    """Networks on the Pixel 4, and those of the release, whose grouped convolutions run in parts."""
    own, release = load_device("mi9"), load_device("mi9-release")
    calibration = own.priors[("dsp", "all", "int8")].calibration
    assert calibration is not None
    left_out = {network.name: network.left_out_ms for network in calibration.networks}
    by_release, by_own = LatencyPredictor(release), LatencyPredictor(own)
    column: list[Row] = []
    for row in read_networks(TABLES / "pixel4-hexagon.csv"):
        ms = by_release.predict(_graph(row), "dsp").ms
        column.append(
            {
                "network on the DSP of a Pixel 4": row.name,
                "measured ms": row.ms,
                "mi9-release ms": round(ms, 2),
                "mi9-release ÷ measured": round(ms / row.ms, 2),
                "mi9, by the other networks, ms": round(left_out[row.name], 2),
                "its error %": round(100 * (left_out[row.name] / row.ms - 1), 1),
            }
        )
    levels: list[Row] = []
    for row in read_networks(TABLES / "mi9-release.csv"):
        if row.processor == "dsp" and row.name in LEVELS:
            ms = by_own.predict(laid_out(_graph(row), release.processor("dsp").profile.rewrites)[0], "dsp").ms
            levels.append(
                {
                    "network on the DSP of the release": row.name,
                    "power-save level": LEVELS[row.name],
                    "measured ms": row.ms,
                    "at full speed ms": round(ms, 2),
                    "times slower": round(row.ms / ms, 2),
                }
            )
    return column, levels
