"""Is a network that was trained with the roundings of its bundle as good in int8 and fp16 as in fp32?

``job SEED`` takes the networks that ``experiments.calibration.planned`` left in OUT (or trains them now), rounds them as they are, and
trains them on for some epochs with roundings and, to compare, without; ``all SEED …`` runs seeds side by side; ``record FOLDER`` makes the record.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from experiments.calibration.planned import CASES, Case, Seed
from experiments.gpu import origin

HERE = Path(__file__).parent
#: An int8 branch beside an fp16 one, and two int8 branches.
ROUNDED = CASES[:2]
EPOCHS, RATE = 5, 0.02
#: Training images that ranges are taken from.
RANGES = 64
#: Test images that the exported files are run on, beside the module that was trained.
RUN = 500
STATES = (
    "trained, fp32",
    "trained, rounded",
    "5 more epochs without rounding, fp32",
    "5 more epochs without rounding, rounded",
    "5 more epochs with rounding, fp32",
    "5 more epochs with rounding, rounded",
)


class Rounding(Seed):
    """One seed's networks, rounded and trained on."""

    def measure(self, case: Case) -> None:
        """Every state of a design."""
        import torch
        from safetensors.torch import load_file

        from predictors.devices import load_device
        from stretch.stages.design import read_design
        from stretch.train.loop import Run
        from stretch.transform import BranchedModel

        if not self.trained(case).exists():
            super().measure(case)
        torch.backends.cudnn.allow_tf32 = False
        profile = load_device(case.device)
        design = read_design(case.file, self.captured.graph, profile)
        precision = {name: profile.processor(name).default_precision for name in design.processors}
        state = load_file(self.trained(case))

        def fresh() -> Any:
            model = BranchedModel(self.captured.graph, design)
            model.load_state_dict(state)
            return model.to(self.device).eval()

        model = fresh()
        self._both(case, "trained", model, self._rounded(model, precision))
        for with_rounding in (False, True):
            model = fresh()
            net = self._rounded(model, precision) if with_rounding else model
            config = self.config(EPOCHS, RATE, amp="none")
            torch.backends.cudnn.allow_tf32 = True
            run = Run(net, self.train_set, self.test_set, config, evaluate_every=EPOCHS)
            for _ in run.steps():
                pass
            torch.backends.cudnn.allow_tf32 = False
            seconds = sum(epoch.seconds for epoch in run.history.epochs)
            what = f"{EPOCHS} more epochs {'with' if with_rounding else 'without'} rounding"
            rounded = net if with_rounding else self._rounded(model, precision)
            self._both(case, what, model, rounded, seconds)
            if with_rounding:
                self._run_files(case, model, rounded, precision)

    def _rounded(self, model: Any, precision: dict[str, str]) -> Any:
        """The network with roundings, ranges from images as it is now."""
        from stretch.train.rounded import RoundedModel

        return RoundedModel(model, precision, [self.normalise(self.train_set.some(RANGES).images)])

    def _both(self, case: Case, what: str, model: Any, rounded: Any, seconds: float = 0.0) -> None:
        for label, net in (("fp32", model), ("rounded", rounded)):
            self.add(case.name, f"{what}, {label}", self.accuracy(net.eval()), seconds)

    def _run_files(self, case: Case, model: Any, rounded: Any, precision: dict[str, str]) -> None:
        """How often the exported files, run by the scheduler, see the class that the module sees which was trained."""
        import copy

        import torch

        from scheduler.bundle.load import load_bundle
        from stretch.evaluation.files import measure_files
        from stretch.export.bundle import BundleFacts, export_bundle

        images = [self.normalise(source.some(count).images).cpu().numpy() for source, count in ((self.train_set, 8), (self.test_set, RUN))]
        fitted, others = ([image[None] for image in some] for some in images)
        here = copy.deepcopy(rounded).cpu().eval()
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            own = BundleFacts(case.device, False, "trained", precision=precision, ranges=rounded.ranges)
            plain = copy.deepcopy(model).to("cpu", memory_format=torch.contiguous_format).eval()
            export_bundle(Path(folder) / "b", self.captured, plain, None, own, "0", controls=False)
            bundle = load_bundle(Path(folder) / "b")
            found = measure_files(bundle, lambda x: here(torch.from_numpy(x)).numpy(), fitted, others, seconds=60.0).agreement
        assert found.value is not None
        self.add(case.name, "files", found.value, 0.0)


def job(seed: int, data: Path, out: Path, epochs: int, cases: int) -> None:
    """Measure one seed."""
    work = Rounding(seed, data, out, epochs, "rounding")
    for case in ROUNDED[:cases]:
        if not work.has(case.name, "files"):
            work.measure(case)


def every(seeds: list[str], options: argparse.Namespace) -> int:
    """One process a seed, side by side; returns how many failed."""
    words = ["--data", str(options.data), "--out", str(options.out), "--epochs", str(options.epochs), "--cases", str(options.cases)]
    processes = [subprocess.Popen([sys.executable, "-m", "experiments.rounding.run", "job", seed, *words]) for seed in seeds]
    return sum(process.wait() != 0 for process in processes)


def record(folder: Path) -> None:
    """Make the record of the seeds in a folder."""
    from experiments.records import write_record

    runs = [json.loads(file.read_text()) for file in sorted(folder.glob("rounding-*.json"))]
    rows = []
    for case in ROUNDED:
        by_state = {
            state: {
                run["seed"]: row["accuracy"] for run in runs for row in run["rows"] if (row["name"], row["state"]) == (case.name, state)
            }
            for state in (*STATES, "files")
        }
        for after, state, base in (
            ("as trained", STATES[1], STATES[0]),
            ("after 5 epochs without rounding", STATES[3], STATES[2]),
            ("after 5 epochs with rounding", STATES[5], STATES[2]),
        ):
            own, fp32 = by_state[state], by_state[base]
            seeds = sorted(own.keys() & fp32.keys())
            if not seeds:
                continue
            lost = [100 * (fp32[seed] - own[seed]) for seed in seeds]
            rows.append(
                {
                    "network": f"{case.name}, {after}",
                    "seeds": len(seeds),
                    "fp32 top-1 %": round(100 * float(np.mean([fp32[s] for s in seeds])), 2),
                    "rounded top-1 %": round(100 * float(np.mean([own[s] for s in seeds])), 2),
                    "lost, percentage points": round(float(np.mean(lost)), 2),
                    "most lost": round(max(lost), 2),
                    "files agree with the module %": round(100 * float(np.mean(list(by_state["files"].values()))), 1)
                    if state == STATES[5] and by_state["files"]
                    else None,
                }
            )
    write_record(
        HERE / "results" / "h200.json",
        {"rounding": rows},
        source="measured",
        command="python -m experiments.rounding.run all 0 1 2",
        runs=min(int(row["seeds"]) for row in rows),  # type: ignore[arg-type]
        **origin(runs),
        notes=[
            f"the planner's designs of ResNet-18 on CIFAR-10 re-encoded as JPEG, trained with labels; ranges from {RANGES} training images; "
            f"{EPOCHS} epochs at learning rate {RATE:g}",
            "rounded: the module that computes as the bundle will, int8 and fp16 by processor; fp32 after rounding is that of as many "
            f"epochs without; the files that were exported from it ran on {RUN} test images by ONNX Runtime on the CPU",
        ],
    )


def main() -> int:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["job", "all", "record"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--data", type=Path, default=Path("cifar.npz"))
    parser.add_argument("--out", type=Path, default=Path("runs/planned"))
    parser.add_argument("--epochs", type=int, default=25, help="of the original")
    parser.add_argument("--cases", type=int, default=len(ROUNDED), help="designs, of those in the order of the file")
    options = parser.parse_args()
    if options.what == "job":
        job(int(options.names[0]), options.data, options.out, options.epochs, options.cases)
    elif options.what == "all":
        return every(options.names, options)
    else:
        record(Path(options.names[0]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
