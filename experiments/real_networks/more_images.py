"""What more images give, photographs and ones made from the network itself, at a speed that pays.

`python -m experiments.real_networks.more_images measure --weights FOLDER --images FOLDER --out FILE` writes numbers as they come, on a GPU
where there is one; `python -m experiments.real_networks.more_images record FILE…` makes them a record.
"""

import argparse
import json
import multiprocessing
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.gpu import facts, origin
from experiments.real_networks.run import HELD_BACK, NETWORKS, Real
from experiments.records import About, Facts, Row, write_record

HERE = Path(__file__).parent
#: The paper's phone as its release measured it, and multiply-accumulates of a design over the original's.
DEVICE, MACS = "mi9-release", (0.97, 1.03)
MOST = 300
#: Images made of each network, of which trials take the first so many.
MADE = 1024

#: The recipe was chosen on the last, and is judged on the others.
ALL = NETWORKS | {
    "efficientnet_lite1": Real("timm:tf_efficientnet_lite1", "efficientnet_lite1.safetensors", NETWORKS["efficientnet_lite0"].preprocessing)
}
_SUM: dict[str, Any] = {"kinds": ("stretch",), "join": "sum", "macs": MACS}
#: Designs by what is asked of the planner.
DESIGNS: dict[str, dict[str, Any]] = {
    "stretched": _SUM | {"processors": ("cpu", "dsp")},
    "deep": _SUM | {"processors": ("cpu", "gpu"), "merge": "always", "cuts": "blocks"},
    "sequential": _SUM | {"processors": ("cpu", "dsp")},
}
#: Least shares of depth that branches keep in a ``deep`` design: the first at which it is so much faster than the best single processor.
MIN_DEPTHS, SPEEDUP = (0.75, 0.7, 0.65, 0.6, 0.55, 0.5), 1.25


@dataclass(frozen=True)
class Trial:
    """A design, refined on some images."""

    network: str
    design: str  # A key of `DESIGNS`; ``sequential`` is the plain network of the stretched one's multiply-accumulates.
    photographs: int
    synthetic: int
    minutes: float  # Of refinement; 0 for none.
    seed: int = 0

    @property
    def name(self) -> str:
        """What its row is called."""
        made = f" + {self.synthetic} synthetic" if self.synthetic else ""
        return f"{self.network}, {self.design}, {self.photographs}{made}, {self.minutes:g} min, seed {self.seed}"


def measured(trial: Trial, weights: Path, images: Path) -> Row:
    """One trial on the GPU."""
    import torch

    from predictors.devices import load_device
    from scheduler.bundle.preprocessing import requested_preprocessing
    from stretch.evaluation.agreement import compare
    from stretch.planning.config import PlanConfig
    from stretch.planning.plan import plan
    from stretch.stages.build import divide_images
    from stretch.stages.network import read_network
    from stretch.transform import build
    from stretch.transform.calibrate import calibrate
    from stretch.transform.refine import Refinement, refine
    from stretch.transform.synthetic import Synthesis, synthesise

    real = ALL[trial.network]
    network = read_network(real.name, weights=str(weights / real.weights))
    for depth in [{"min_depth": least} for least in MIN_DEPTHS] if trial.design == "deep" else [{}]:
        planned = plan(network.graph, load_device(DEVICE), PlanConfig(**DESIGNS[trial.design], **depth))
        if planned.best_single.ms >= SPEEDUP * planned.run.makespan_ms:
            break
    sequential = planned.sequential if trial.design == "sequential" else None
    design = planned.design if sequential is None else sequential.design
    ms = planned.run.makespan_ms if sequential is None else sequential.single.ms
    preprocessing = requested_preprocessing(network.loaded.preprocessing, real.preprocessing, network.graph.input.shape)
    divided = divide_images(images, network.captured, MOST, preprocessing, HELD_BACK)
    fitted = list(torch.cat(divided.fitted)[:: MOST // trial.photographs][: trial.photographs].split(32))
    model = build(network.captured, design).to("cuda" if torch.cuda.is_available() else "cpu")
    row: Row = {"trial": trial.name} | asdict(trial)
    row |= {"predicted_ms": round(ms, 3), "best_single_ms": round(planned.best_single.ms, 3)}
    row |= {"speedup": round(planned.best_single.ms / ms, 3), "macs_ratio": round(model.graph.macs / network.graph.macs, 4)}

    def agree(when: str) -> None:
        agreement = compare(model, network.captured, divided.held_back).agreement
        for key in ("value", "low", "high", "error"):
            row[f"{when}_{key}"] = round(getattr(agreement, key), 4)

    made: list[torch.Tensor] = []
    if trial.synthetic:
        # made once, by whoever comes first; others find it in the cache
        made = list(torch.cat(synthesise(network.captured, planned.design, preprocessing, Synthesis(MADE)))[: trial.synthetic].split(64))
    calibrate(model, network.captured, fitted)
    agree("calibrated")
    if trial.minutes:
        refined = refine(model, network.captured, fitted, Refinement(trial.minutes, seed=trial.seed), synthetic=made)
        row |= {"refinement_s": round(refined.seconds, 1), "steps": refined.steps}
        agree("refined")
    return row


def _one(job: tuple[Trial, Path, Path]) -> Row:
    try:
        return measured(*job)
    except Exception as error:  # one that fails must not take the others with it
        return {"trial": job[0].name, "failure": f"{type(error).__name__}: {error}"[:500]}


def measure(options: argparse.Namespace) -> None:
    """All trials, some side by side; what is done is written as it comes."""
    trials = [
        Trial(*text.split(",")[:2], *map(int, text.split(",")[2:4]), float(text.split(",")[4]), *map(int, text.split(",")[5:]))
        for text in options.trial
    ]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    with multiprocessing.get_context("spawn").Pool(options.side_by_side, maxtasksperchild=1) as pool:
        for row in pool.imap_unordered(_one, [(trial, options.weights, options.images) for trial in trials]):
            rows.append(row)
            sys.stderr.write(f"{json.dumps(row)}\n")
            options.out.write_text(json.dumps(facts() | {"rows": rows}))


def record(files: Sequence[Path], name: str) -> None:
    """Make a record of what was measured, in a file of this name."""
    runs = [json.loads(file.read_text()) for file in files]
    rows = sorted((row for run in runs for row in run["rows"] if "failure" not in row), key=lambda row: str(row["trial"]))
    columns = {name: Facts(source="predicted") for name in ("predicted_ms", "best_single_ms", "speedup")}
    write_record(
        HERE / "results" / f"{name}.json",
        {"trials": rows},
        source="measured",
        command="python -m experiments.real_networks.more_images measure",
        runs=1,
        about={"trials": About(columns=columns)},
        notes=[
            f"Agreement on {HELD_BACK} photographs that nothing was fitted to, with 95 % intervals; float32.",
            f"Times are predictions for {DEVICE}; designs for two processors at {MACS[0]} to {MACS[1]} of the multiply-accumulates, joins `sum`, a meeting point a stage at most.",
            "`synthetic`: images made from the original by `stretch.transform.synthetic`; half of the views of a refinement show them. Trials ran side by side on one GPU: seconds and steps say how far each came.",
        ],
        **origin(runs),
    )


def main() -> int:
    """Measure, or make a record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["measure", "record"])
    parser.add_argument("files", type=Path, nargs="*", help="for record: what measure wrote")
    parser.add_argument("--weights", type=Path, help="folder of weights")
    parser.add_argument("--images", type=Path, help="folder of photographs")
    parser.add_argument("--trial", action="append", default=[], help="network,design,photographs,synthetic,minutes[,seed]; repeat")
    parser.add_argument("--side-by-side", type=int, default=4, help="trials at a time")
    parser.add_argument("--name", default="more_images", help="for record: the record's name")
    parser.add_argument("--out", type=Path, help="for measure: file of the numbers")
    options = parser.parse_args()
    if options.what == "record":
        record(options.files, options.name)
    else:
        measure(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
