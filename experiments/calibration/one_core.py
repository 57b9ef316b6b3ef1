"""Seconds of calibration and of a refinement's steps on one core of this machine, which nothing else should use meanwhile.

`python -m experiments.calibration.one_core` pins itself to a core. Weights and images are random: what is computed for each does
not depend on them.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from experiments.records import Row, write_record
from predictors.errors import StretchError

HERE = Path(__file__).parent


class Case(NamedTuple):
    """One network."""

    network: str  # As `stretch branch` takes it.
    calibrated: int  # Images that it is calibrated with.
    batch: int  # Views of a step.


CASES = (Case("mobilenet_v2", 32, 16), Case("resnet50", 16, 8))

#: Designs are the planner's for these processors, with joins that keep most.
DEVICE, ASKED = "mi9", {"processors": ("cpu", "gpu"), "join": "sum"}

#: Images of a refinement: of fewer than so many none is held back, and many views are judged instead.
REFINED = 80

#: Steps of two refinements, of which the longer one takes longer by its further steps alone.
STEPS = (1, 3)

#: Share of a refinement in which each segment is refined by itself, by what the column is called.
PHASES = {"by_segments": 1.0, "together": 0.0}


def measure(case: Case, design: str | Path | None = None, config: dict[str, Any] | None = None) -> Row:
    """One network, on as many cores and threads as this process has.

    Args:
        case: The network and its sizes.
        design: A design to build; the planner's if None.
        config: What is asked of the planner; `ASKED` if None.
    """
    import numpy as np
    import torch

    from stretch.api import branch
    from stretch.quantize.images import synthetic_images
    from stretch.transform import build
    from stretch.transform.calibrate import calibrate
    from stretch.transform.refine import Refinement, refine

    planned = branch(case.network, DEVICE, weights="none", design=design, controls=False, **(ASKED if config is None else config))
    original = planned.original
    assert original is not None
    built = synthetic_images(original.graph.input.shape, max(case.calibrated, REFINED))
    images = torch.from_numpy(np.concatenate(built))
    model = build(original, planned.plan.design)
    start = time.perf_counter()
    with torch.no_grad():
        calibrate(model, original, [images[: case.calibrated]])
    row: Row = {"network": case.network, "images": case.calibrated, "gmacs": round(original.graph.macs / 1e9, 3)}
    row |= {"macs_ratio": round(model.graph.macs / original.graph.macs, 4), "calibration_s": round(time.perf_counter() - start, 2)}
    calibrated = {key: value.clone() for key, value in model.state_dict().items()}
    for name, apart in PHASES.items():
        seconds = []
        for steps in STEPS:
            model.load_state_dict(calibrated)
            how = Refinement(steps=steps, batch=case.batch, apart=apart, looks=1)
            seconds.append(refine(model, original, [images[:REFINED]], how).seconds)
        row[f"{name}_s"] = round((seconds[1] - seconds[0]) / ((STEPS[1] - STEPS[0]) * case.batch), 4)
    return row


def alone(core: int) -> None:
    """Let this process compute on one core, with one thread."""
    os.sched_setaffinity(0, {core})
    import torch

    torch.set_num_threads(1)


def main(words: list[str] | None = None) -> int:
    """Measure every network in a process of its own, and write the record."""
    parser = argparse.ArgumentParser(prog="python -m experiments.calibration.one_core", description=__doc__)
    parser.add_argument("--core", type=int, default=max(os.sched_getaffinity(0)), help="the core; the last one by default")
    parser.add_argument("--case", help="measure this network alone, and print its row")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "one_core.json")
    options = parser.parse_args(words)
    try:
        if options.case:
            alone(options.core)
            print(json.dumps(measure(next(case for case in CASES if case.network == options.case))))  # noqa: T201 - read by the caller
            return 0
        load = os.getloadavg()[0]
        rows = [_in_its_own_process(case, options.core) for case in CASES]
    except StretchError as error:
        sys.stderr.write(f"error: {error.message}\n\nhint: {error.hint}\n")
        return error.exit_code
    record(rows, load, options.out)
    return 0


def record(rows: list[Row], load: float, out: Path) -> None:
    """Make a record of what was measured.

    Args:
        rows: Of the networks.
        load: Of the machine before.
        out: Its file.
    """
    write_record(
        out,
        {"one_core": rows},
        source="measured",
        command="python -m experiments.calibration.one_core",
        runs=1,
        load=load,
        notes=[
            "One core and one thread. Random weights and made-up images; designs are the planner's for the Mi 9's CPU and GPU, `sum` joins.",
            "`by_segments_s` and `together_s` are seconds a view of a step, in either phase of a refinement: "
            "the time of further steps over their views.",
        ],
    )


def _in_its_own_process(case: Case, core: int) -> Row:
    """A row measured where nothing has been computed before."""
    words = [sys.executable, "-m", "experiments.calibration.one_core", "--case", case.network, "--core", str(core)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=os.environ | {"OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise StretchError(
            f"`{case.network}` was not measured: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no reason given'}"
        )
    row: Row = json.loads(done.stdout)
    return row


if __name__ == "__main__":
    sys.exit(main())
