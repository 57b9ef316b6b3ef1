"""Gain of more images, photographs and ones made from the network itself, at a speed that is worth it.

`python -m experiments.real_networks.more_images measure --weights FOLDER --images FOLDER --out FILE` writes numbers as they come, on a GPU
where there is one; `python -m experiments.real_networks.more_images record FILE…` makes them a record.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.gpu import side_by_side
from experiments.real_networks.run import HELD_BACK, NETWORKS, Real, agreement, command_parser, keep_rows, kept_rows, opened
from experiments.records import About, Facts, Row, write_record

if TYPE_CHECKING:
    import torch

    from stretch.network.capture import Captured
    from stretch.stages.rounded import RoundedModel

HERE = Path(__file__).parent
#: The paper's phone as measured in its release, and the range of a design's multiply-accumulates over the original's.
DEVICE, MACS = "mi9-release", (0.97, 1.03)
MOST = 300

#: The recipe was chosen on the last network, and is evaluated on the others.
ALL = NETWORKS | {
    "efficientnet_lite1": Real("timm:tf_efficientnet_lite1", "efficientnet_lite1.safetensors", NETWORKS["efficientnet_lite0"].preprocessing)
}
#: Options of the planner: two branches, one of which keeps as many unchanged blocks as this speed-up allows.
PROCESSORS, SPEEDUP = ("cpu", "dsp"), 1.25
ASKED: dict[str, Any] = {
    "processors": PROCESSORS, "kinds": ("stretch",), "join": "sum", "merge": "always", "macs": MACS,
    "min_depth": 0.2, "min_width": 0.2, "balance": 0.1,
}  # fmt: skip
#: Shares of unchanged blocks, the largest first.
INTACT = tuple(number / 100 for number in range(80, 40, -2))
#: Designs: branches; branches with evenly spaced blocks; the plain network of equal multiply-accumulates; and plain networks without
#: blocks or channels that are predicted to be as fast on one processor as the branches on two.
DESIGNS = ("branches", "evenly", "sequential", "shortened", "pruned")


@dataclass(frozen=True)
class Trial:
    """A design that is refined on some images."""

    network: str
    design: str  # One of `DESIGNS`.
    photographs: int
    synthetic: int
    steps: int  # Steps of refinement; 0 for none.
    seed: int = 0
    rounded: int = 20  # Percentage of the steps with int8 rounding.

    @property
    def name(self) -> str:
        """Name of the trial's row."""
        made = f" + {self.synthetic} synthetic" if self.synthetic else ""
        return f"{self.network}, {self.design}, {self.photographs}{made}, {self.steps} steps, {self.rounded} % rounded, seed {self.seed}"


def measured(trial: Trial, weights: Path, images: Path) -> Row:
    """Measure one trial, on the GPU if there is one."""
    import msgspec
    import torch

    from experiments.real_networks.pruning import calibrate_pruned, pruned_as_fast
    from predictors.devices import load_device
    from stretch.evaluation.sensitivity.blocks import BlockLosses
    from stretch.planning.blocks import keep_blocks, shorten
    from stretch.planning.config import PlanConfig
    from stretch.planning.plan import evaluate, plan
    from stretch.stages.build import int8_rounding
    from stretch.transform import build
    from stretch.transform.calibrate import calibrate
    from stretch.transform.calibrate.split import Images
    from stretch.transform.refine import Refinement, refine
    from stretch.transform.synthetic import Synthesis, synthesise

    network, preprocessing, divided = opened(ALL[trial.network], weights, images, MOST)
    profile = load_device(DEVICE)
    for intact in INTACT:
        planned = plan(network.graph, profile, PlanConfig(**ASKED, intact=intact))
        if planned.best_single.ms >= SPEEDUP * planned.run.makespan_ms:
            break
    device = "cuda" if torch.cuda.is_available() else "cpu"
    fitted = list(torch.cat(divided.fitted)[:: MOST // trial.photographs][: trial.photographs].to(device).split(32))
    # cached by the first trial with this number
    synthetic = synthesise(network.captured, preprocessing, Synthesis(trial.synthetic)) if trial.synthetic else []
    losses = BlockLosses(network.captured, fitted)
    if trial.design != "evenly":
        # blocks are chosen within the time that the speed-up leaves
        allowed = msgspec.structs.replace(planned.config, latency_budget=planned.best_single.ms / SPEEDUP)
        chosen, _ = keep_blocks(replace(planned, config=allowed), losses)
        planned = evaluate(network.graph, profile, chosen, planned.config)
    design, ms = planned.design, planned.run.makespan_ms
    if trial.design == "sequential":
        assert planned.sequential is not None
        design, ms = planned.sequential.design, planned.sequential.single.ms
    elif trial.design == "shortened":
        alone = shorten(planned, losses)
        assert alone is not None
        design, ms = alone.design, alone.ms
    if trial.design == "pruned":
        pruned, single = pruned_as_fast(network.captured, planned)
        ms = single.ms
        model = calibrate_pruned(network.captured, pruned, fitted, [batch.to(device) for batch in synthetic])
    else:
        model = build(network.captured, design).to(device)
        calibrate(model, network.captured, fitted, synthetic=synthetic)
    row: Row = {"trial": trial.name} | asdict(trial) | {"predicted_ms": round(ms, 3), "best_single_ms": round(planned.best_single.ms, 3)}
    row |= {"speedup": round(planned.best_single.ms / ms, 3), "macs_ratio": round(model.graph.macs / network.graph.macs, 4)}
    row["branched"] = "; ".join(
        f"{part.name}: {', '.join(f'{b.processor} without blocks {b.dropped}, width {b.width}' for b in part.branches)}"
        for part in model.design.segments
        if not part.whole or part.branches[0].dropped
    )

    row |= agreement(network.captured, model, divided.held_back, "calibrated")
    if trial.steps:
        if trial.design == "pruned":
            # marked as changed from its first segment, so that all segments are refined
            design = model.design
            first, *others = design.segments
            marked = replace(first, branches=(replace(first.branches[0], entry="project"),))
            model.design = replace(design, segments=(marked, *others))
        rounding, _ = int8_rounding(model, planned.config.precision, fitted[:1])
        how = Refinement(steps=trial.steps, rounded=trial.rounded / 100, seed=trial.seed)
        refined = refine(model, network.captured, Images(fitted, synthetic=synthetic), how, rounding=rounding)
        row["refinement_s"] = round(refined.seconds, 1)
        model.design = design
        row |= agreement(network.captured, model, divided.held_back, "refined")
        row |= agreement(network.captured, model, divided.fitted, "fitted")
        if rounding is not None:
            row |= rounded_agreement(network.captured, rounding.network or rounding(model, fitted), divided.held_back)
    return row


def rounded_agreement(original: "Captured", network: "RoundedModel", images: "Sequence[torch.Tensor]") -> Row:
    """Return the share of images for which an int8-rounded network answers the original's class, on images without any fit."""
    import torch

    from stretch.evaluation.measure import AgreementSums, share_of

    sums, module = AgreementSums(), original.module.eval()
    with torch.no_grad():
        for batch in images:
            sums.add(network(batch.to(network.scales.device)).float().cpu().numpy(), module(batch).numpy())
    share = share_of(sums.same, sums.images)
    return {"rounded_error": round(sums.error, 4)} | {f"rounded_{key}": round(getattr(share, key), 4) for key in ("value", "low", "high")}


def record(files: Sequence[Path], name: str) -> None:
    """Write a record of the measurements to a file with this name."""
    rows, where = kept_rows(files)
    rows.sort(key=lambda row: str(row["trial"]))
    empty = dict.fromkeys(key for row in rows for key in row)
    columns = {name: Facts(source="predicted") for name in ("predicted_ms", "best_single_ms", "speedup")}
    write_record(
        HERE / "results" / f"{name}.json",
        {"trials": [empty | row for row in rows]},
        source="measured",
        command="python -m experiments.real_networks.more_images measure",
        runs=1,
        about={"trials": About(columns=columns)},
        notes=[
            f"Agreement on {HELD_BACK} photographs that nothing was fitted to, with 95 % intervals; float32.",
            f"Times are predictions for {DEVICE}, {' and '.join(PROCESSORS)}. Branches: of the designs with {MACS[0]} to {MACS[1]} of the multiply-accumulates that are at least {SPEEDUP} times as fast as the original on its best processor, one whose first branch keeps the largest share of the blocks as they are (`intact`); joins `sum`; then the blocks that matter most within the time that the speed-up leaves (`evenly`: without that choice).",
            "Sequential: the plain network of as many multiply-accumulates. Shortened: the plain network without the blocks that matter least, as few as make it as fast on one processor as the branches are on theirs. Pruned: the plain network without the channels of the smallest L1 norm (Torch-Pruning 1.6.1), as few as make it as fast on one processor as the branches are on theirs.",
            "`fitted_value`: agreement on the photographs that the network was fitted to. `rounded_value`: the network as int8 rounds its weights and tensors on all processors. The last steps of a refinement see that, as many per cent of them as `rounded` says.",
            "`synthetic`: images made from the original by `stretch.transform.synthetic`; calibration looks at them too, and half of the views of a refinement show them. Where trials ran side by side, seconds say little of one alone.",
        ],
        **where,
    )


def main() -> None:
    """Measure, or write a record."""
    parser = command_parser(__doc__)
    parser.add_argument("--trial", action="append", default=[], help="network,design,photographs,synthetic,steps[,seed[,rounded]]; repeat")
    parser.add_argument("--side-by-side", type=int, default=4, help="trials at a time")
    parser.add_argument("--name", default="more_images", help="for record: the record's name")
    options = parser.parse_args()
    if options.what == "record":
        record(options.files, options.name)
        return
    trials = [Trial(*text.split(",")[:2], *map(int, text.split(",")[2:])) for text in options.trial]
    jobs = [(trial, options.weights, options.images) for trial in trials]
    keep_rows(side_by_side(measured, jobs, options.side_by_side), options.out)


if __name__ == "__main__":
    main()
