"""Switches of the convolution kernels, each against what is taken without it, on PoCL and one core: `python -m experiments.opencl_switches.run`."""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from experiments.opencl_networks.networks import Runner, difference, opencl, save_network
from experiments.records import Value, write_record
from predictors.errors import StretchError
from scheduler.cores import available_cores, pinned

HERE = Path(__file__).parent

NETWORKS = ("resnet50", "mobilenet_v2", "efficientnet_b0")

#: Switches of `scheduler.delegates.opencl.schedule.Options`, and the kernels whose code each changes.
VARIANTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "bounds checked everywhere": ({"borders": "check"}, ("depthwise", "stem")),
    "each pixel loads for itself": ({"loads": "single"}, ("depthwise",)),
    "loops not unrolled": ({"unroll": False}, ("conv", "depthwise")),
    "vectors of inputs loaded and taken apart": ({"access": "vector"}, ("conv",)),
}


class Times:
    """The least time of each launch of a network by the device's clock, over the runs so far.

    Args:
        runner: The network.
    """

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self._best = [float("inf")] * len(runner.compiled.launches)

    def run(self) -> None:
        """One run more."""
        self.runner.call.run()
        self._best = [min(best, span.ms) for best, span in zip(self._best, self.runner.call.spans(), strict=True)]

    def of(self, kernel: str) -> float:
        """Milliseconds of all launches of one kernel."""
        return sum(ms for launch, ms in zip(self.runner.compiled.launches, self._best, strict=True) if launch.kernel == kernel)


def measure(core: int, rounds: int) -> list[dict[str, Value]]:
    """A row a network, switch and kernel."""
    rows: list[dict[str, Value]] = []
    with tempfile.TemporaryDirectory() as folder:
        for network in NETWORKS:
            model = save_network(network, Path(folder))
            known = opencl(model, core, winograd="off", tuned=False)
            runners = {"": known} | {
                name: opencl(model, core, winograd="off", tuned=False, **options) for name, (options, _) in VARIANTS.items()
            }
            times = {name: Times(runner) for name, runner in runners.items()}
            for _ in range(rounds):
                for time in times.values():
                    time.run()
            for name, (_, kernels) in VARIANTS.items():
                if (error := difference(runners[name], known)) > 1e-5:
                    raise StretchError(f"{network} with {name} differs by {error:.1e}")
                for kernel in kernels:
                    if before := times[""].of(kernel):
                        after = times[name].of(kernel)
                        rows.append(
                            {
                                "network, kernel and switch": f"{network}, {kernel}: {name}",
                                "as_it_is_ms": round(before, 3),
                                "switched_ms": round(after, 3),
                                "speed_switched": round(before / after, 3),
                            }
                        )
    return rows


def main(words: list[str] | None = None) -> int:
    """Measure and write ``results/host.json``."""
    parser = argparse.ArgumentParser(prog="python -m experiments.opencl_switches.run", description=__doc__)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--core", type=int, default=available_cores()[-1])
    parser.add_argument("--out", type=Path, default=HERE / "results" / "host.json")
    options = parser.parse_args(words)
    load = os.getloadavg()[0]
    with pinned((options.core,)):
        rows = measure(options.core, options.rounds)
    write_record(
        options.out,
        {"switches": rows},
        source="measured",
        command="python -m experiments.opencl_switches.run",
        runs=options.rounds,
        interleaved=True,
        load=load,
        notes=[
            "fp32, batch 1, one core, PoCL; sums of the least time of each launch by the device's clock; no Winograd, no schedule tuned."
        ],
    )
    sys.stderr.write(f"{options.out} written; fill the pages with python -m experiments.render\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
