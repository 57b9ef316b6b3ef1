"""The baseline of paper 003, figure 13: the network on one processor while others use it: `python -m experiments.paper.fig13_load.run`."""

import os
import sys
from pathlib import Path

from experiments.contention.run import DEVICE, LISTED, MODEL, PHASES, SWITCHING, phases, rows_of
from experiments.networks import graph_of
from experiments.records import write_record
from predictors.devices import load_device
from predictors.predictor import LatencyPredictor
from stretch.planning.cost.branch import Costs
from stretch.planning.result import SingleProcessor
from stretch.stages.together import single_network

HERE = Path(__file__).parent
#: Processors that run the original alone, and at what precision; the first one is the paper's baseline.
BASELINES = {"cpu": "int8", "gpu": "fp16", "dsp": "int8"}
#: What changes between them: the original, never in branches.
OTHER = "changing between single processors"
#: Milliseconds between two requests: more than a processor takes that is nearly taken, so that none waits for another.
SLOW_MS = 1000.0


def main() -> int:
    """Simulate the original and write ``results/baseline.json``."""
    load = os.getloadavg()[0]
    graph = graph_of(MODEL)
    costs = Costs(LatencyPredictor(load_device(DEVICE)), BASELINES)
    networks = {}
    for name, precision in BASELINES.items():
        single = SingleProcessor(name, precision, costs.predictor.predict(graph, name, precision).ms)
        networks[f"{name} alone"] = single_network(f"{name} alone", graph, single, costs)
    result = phases(networks, LISTED, SLOW_MS)
    latencies = {OTHER if name == SWITCHING else name: item.latencies_ms for name, item in result.items()}
    write_record(
        HERE / "results" / "baseline.json",
        {
            "phases": [rows_of(name, values) for name, values in latencies.items()],
            "latencies": [
                {"inference": number} | {name: round(values[number], 3) for name, values in latencies.items()}
                for number in range(PHASES[-1][2])
            ],
        },
        source="simulated",
        command="python -m experiments.paper.fig13_load.run",
        runs=1,
        load=load,
        notes=[
            f"The original {MODEL} on one processor of {DEVICE}; a request every {SLOW_MS:g} ms, so that none waits for the one before; {LISTED:g} of the GPU taken in the first and last phase, of the CPU in the second, as in experiments/contention/results/simulated.json."
        ],
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
