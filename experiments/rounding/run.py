"""Is a network that was trained with the roundings of its bundle as good in int8 and fp16 as in fp32?

``job SEED`` measures the designs of ``experiments.calibration.planned``, and rounds the first ones as they are, after some more epochs
with roundings and, to compare, after as many without; ``all SEED …`` runs seeds side by side. ``tensors`` writes what int8 rounds, which
takes ONNX Runtime, so that the machine that trains need not have it; ``record FOLDER`` makes the record.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments.calibration.planned import CASES, GENTLY, Case, Epochs, Seed, captured, command, network
from experiments.gpu import origin

HERE = Path(__file__).parent
TENSORS = HERE / "tensors.json"
#: What is rounded: an int8 branch beside an fp16 one.
ROUNDED = CASES[:1]
#: Batch norms keep their statistics here, so that the rate must be that of a network without them.
EPOCHS, RATE = 3, 0.001
#: Training images that ranges are taken from.
RANGES = 512
#: What is compared, after training with labels.
STATES = ("as it is", "after more epochs", "after more epochs with rounding")


class Rounding(Seed):
    """One seed's networks, rounded and trained on."""

    def rounded_done(self, case: Case) -> bool:
        """Whether there is nothing left to measure of a rounded design."""
        return all(self.has(case.name, f"{state}, {form}") for state in STATES for form in ("fp32", "rounded"))

    def round(self, case: Case) -> None:
        """Every state of a design that was trained, in fp32 and rounded."""
        import torch
        from safetensors.torch import load_file

        from predictors.devices import load_device
        from stretch.stages.design import read_design
        from stretch.train.loop import Run
        from stretch.transform import BranchedModel

        profile = load_device(case.device)
        design = read_design(case.file, self.captured.graph, profile)
        precision = {name: profile.processor(name).default_precision for name in design.processors}
        state = load_file(self.trained(case))

        def fresh() -> Any:
            model = BranchedModel(self.captured.graph, design)
            model.load_state_dict(state)
            return model.to(self.device).eval()

        model = fresh()
        self._both(case, STATES[0], model, self._rounded(case, model, precision))
        for what in STATES[1:]:
            model = fresh()
            net = self._rounded(case, model, precision) if what == STATES[2] else model
            config = self.config(EPOCHS, RATE, amp="none", graph=False, **GENTLY)
            run = Run(net, self.train_set, self.test_set, config, evaluate_every=EPOCHS)
            for _ in run.steps():
                pass
            torch.cuda.empty_cache()
            seconds = sum(epoch.seconds for epoch in run.history.epochs)
            self._both(case, what, model, net if net is not model else self._rounded(case, model, precision), seconds)

    def _rounded(self, case: Case, model: Any, precision: dict[str, str]) -> Any:
        """The network with roundings, ranges from images as it is now."""
        from stretch.stages.rounded import RoundedModel

        images = self.normalise(self.train_set.some(RANGES).images)
        return RoundedModel(model.eval(), precision, [images], json.loads(TENSORS.read_text())[case.name])

    def _both(self, case: Case, what: str, model: Any, rounded: Any, seconds: float = 0.0) -> None:
        import torch

        # no tensor cores: what is compared is what the files compute
        torch.backends.cudnn.allow_tf32 = False
        for form, net in (("fp32", model), ("rounded", rounded)):
            self.add(case.name, f"{what}, {form}", self.accuracy(net.eval()), seconds)
        torch.backends.cudnn.allow_tf32 = True


def job(work: Rounding, until: float) -> None:
    """Measure one seed, as far as the time goes."""
    start = time.monotonic()
    for case in work.cases:
        for done, measure in ((work.done, work.measure), *([(work.rounded_done, work.round)] if case in ROUNDED else [])):
            if done(case):
                continue
            if time.monotonic() - start > until:
                sys.stderr.write(f"seed {work.seed}: no time for {case.name} and what follows; the same command goes on there\n")
                return
            measure(case)


def write_tensors() -> None:
    """Write what int8 rounds of each design that is rounded, by subgraph."""
    import torch

    from predictors.devices import load_device
    from stretch.stages.design import read_design
    from stretch.stages.rounded import RoundedModel
    from stretch.transform import build

    original = captured(network())
    tensors = {}
    for case in ROUNDED:
        profile = load_device(case.device)
        design = read_design(case.file, original.graph, profile)
        precision = {name: profile.processor(name).default_precision for name in design.processors}
        ranges = RoundedModel(build(original, design), precision, [torch.randn(2, 3, 32, 32)]).ranges
        tensors[case.name] = {name: list(current) for name, current in ranges.items()}
    TENSORS.write_text(json.dumps(tensors, indent=1) + "\n")


def record(folder: Path) -> None:
    """Make the record of the seeds in a folder."""
    from experiments.records import write_record

    runs = [json.loads(file.read_text()) for file in sorted(folder.glob("planned-*.json"))]
    rows = []
    for case in ROUNDED:

        def by_seed(state: str, name: str = case.name) -> dict[int, float]:
            return {run["seed"]: row["accuracy"] for run in runs for row in run["rows"] if (row["name"], row["state"]) == (name, state)}

        # what rounding costs is told against the same number of epochs without it
        for state, base in zip(STATES, (STATES[0], STATES[1], STATES[1]), strict=True):
            current, fp32 = by_seed(f"{state}, rounded"), by_seed(f"{base}, fp32")
            seeds = sorted(current.keys() & fp32.keys())
            if not seeds:
                continue
            lost = [100 * (fp32[seed] - current[seed]) for seed in seeds]
            rows.append(
                {
                    "network": f"{case.name}, {state}",
                    "seeds": len(seeds),
                    "fp32 top-1 %": round(100 * float(np.mean([fp32[seed] for seed in seeds])), 2),
                    "rounded top-1 %": round(100 * float(np.mean([current[seed] for seed in seeds])), 2),
                    "lost, points": round(float(np.mean(lost)), 2),
                    "least lost": round(min(lost), 2),
                    "most lost": round(max(lost), 2),
                }
            )
    epochs = Epochs(**runs[0]["epochs"])
    write_record(
        HERE / "results" / "h200.json",
        {"rounding": rows},
        source="measured",
        command="python -m experiments.rounding.run all 0 1 2",
        runs=min(int(row["seeds"]) for row in rows),  # type: ignore[call-overload]
        **origin(runs),
        notes=[
            f"the planner's designs of experiments/calibration, calibrated and trained for {epochs.labelled} epochs with labels; int8 on the cpu, "
            f"fp16 on the gpu, ranges from {RANGES} training images; {EPOCHS} more epochs at learning rate {RATE:g}",
            "rounded: the module that computes as the exported files do, in fp32 between the roundings; lost: against fp32 after as many epochs without rounding",
        ],
    )


if __name__ == "__main__":
    sys.exit(command(__doc__, "experiments.rounding.run", ("tensors", write_tensors), Rounding, job, record))
