"""Energy and power on the Mi 9 by the energy model (paper 003, figure 10): `python -m experiments.paper.fig10_energy.run`."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

from experiments.networks import MODELS, graph_of
from experiments.paper.plans import stretched
from experiments.records import Row, write_record
from predictors.devices import load_device
from predictors.energy import EnergyModel
from predictors.graph import OpGraph
from predictors.predictor import LatencyPredictor
from stretch.planning.cost.branch import Costs

HERE = Path(__file__).parent
DEVICE = "mi9-release"
#: Processors alone, in the precisions that plans use, and together.
ALONE = {"cpu": "int8", "gpu": "fp16", "dsp": "int8"}
TOGETHER = ("cpu,gpu", "cpu,dsp", "gpu,dsp", "cpu,gpu,dsp")


def rows_of(words: str, graph: OpGraph) -> Iterator[Row]:
    """One network on each processor, and branched on several of them.

    Args:
        words: Its name.
        graph: The network.
    """
    device = load_device(DEVICE)
    costs = Costs(LatencyPredictor(device), ALONE)
    for name, precision in ALONE.items():
        ms = costs.predictor.predict(graph, name, precision).ms
        yield _row(words, name, ms, EnergyModel(device).mj(name, ms))
    for processors in TOGETHER:
        result = stretched(graph, DEVICE, processors)
        yield _row(words, processors, *((None, None) if result is None else (result.run.makespan_ms, result.energy_mj)))


def _row(words: str, processors: str, ms: float | None, mj: float | None) -> Row:
    """Power is energy over time."""
    known = ms is not None and mj is not None
    return {
        "network and processors": f"{words}, {processors}",
        "ms": None if ms is None else round(ms, 2),
        "mJ": None if mj is None else round(mj, 1),
        "W": round(mj / ms, 2) if known else None,
    }


def compared(rows: list[Row]) -> list[Row]:
    """Every way to run over the CPU alone, in the mean over networks and at its ends.

    Args:
        rows: As of `rows_of`, of all networks.
    """
    result: list[Row] = []
    for processors in (*ALONE, *TOGETHER):
        energy, power = [], []
        for words in MODELS.values():
            current, base = (
                next(row for row in rows if row["network and processors"] == f"{words}, {value}") for value in (processors, "cpu")
            )
            if current["mJ"] is not None:
                energy.append(100 * (float(current["mJ"] or 0) / float(base["mJ"] or 1) - 1))
                power.append(100 * (float(current["W"] or 0) / float(base["W"] or 1) - 1))
        row: Row = {"processors": processors, "networks": len(energy)}
        for what, values in (("energy", energy), ("power", power)):
            row |= {
                f"{what} %": round(sum(values) / len(values), 1) if values else None,
                f"{what} %, least": round(min(values), 1) if values else None,
                f"{what} %, largest": round(max(values), 1) if values else None,
            }
        result.append(row)
    return result


def main() -> int:
    """Plan the networks and write ``results/energy.json``."""
    load = os.getloadavg()[0]
    rows: list[Row] = []
    for model, words in MODELS.items():
        for row in rows_of(words, graph_of(model)):
            rows.append(row)
            sys.stderr.write(f"{row}\n")
    write_record(
        HERE / "results" / "energy.json",
        {"compared": compared(rows), "networks": rows},
        source="predicted",
        command="python -m experiments.paper.fig10_energy.run",
        runs=None,
        load=load,
        notes=[
            f"{DEVICE}: a processor's energy is its power while it computes times how long it does; what it takes while it waits, and what the rest of the phone takes, is not known and not counted.",
            "The powers are the profile's: the middle of what paper 003 states for the CPU, the middle of what it states for the DSP, and a value between them for the GPU.",
            "Branched: stretched segments, several stages as one where that is faster, 0.97 to 1.03 of the multiply-accumulates, planned for latency; no figure where the rules leave no design. `compared`: over the original on the CPU alone.",
        ],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
