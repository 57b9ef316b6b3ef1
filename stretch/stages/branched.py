"""Result of the main job: a plan, a network to train, and, once saved, a bundle."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from predictors.errors import UsageError
from predictors.structs import to_builtins
from scheduler.bundle.manifest import Manifest, WeightsInfo
from scheduler.progress import Progress, silent
from stretch.planning.cost.compare import BRANCHED
from stretch.planning.messages import command_line
from stretch.planning.result import PlanResult

if TYPE_CHECKING:
    from scheduler.bundle.agreement import Agreement
    from scheduler.bundle.manifest import SourceFile
    from scheduler.bundle.preprocessing import Preprocessing
    from stretch.network.capture import Captured
    from stretch.stages.rounded import Ranges
    from stretch.transform import BranchedModel
    from stretch.transform.calibrate import SegmentError
    from stretch.transform.calibrate.split import Images
    from stretch.transform.refine import Refined

#: Warning for a changed network that was neither calibrated nor trained; its last part is the result of experiments/equal_latency.
UNKNOWN_ACCURACY = (
    "accuracy unknown: train the branches (`stretch train`) or give `images`; "
    "on CIFAR-10, networks with fewer blocks were as accurate at the same latency"
)

#: Start of the warning on fp32 files whose predicted times assume int8.
FLOAT = "the bundle's files are fp32"


@dataclass
class Branched:
    """Result of `branch`: a plan, and a network to train and to save.

    Args:
        plan: The design with its prediction and controls.
        weights_source: Source of the initial weights: ``default``, ``random``, ``file`` or ``given``.
        weights_detail: Description of the initial weights.
        warnings: Warnings for the user.
        seconds: Wall time of each phase.
        model: The branched network, a `torch.nn.Module`; None after a dry run.
        sequential: The sequential control with the same MACs, or None.
        shortened: The original without some blocks, calibrated on the images; None without images, or if the plan has none.
        calibration: Error of each branched segment relative to the original's, after calibration.
        refinement: Result of the refinement; None if not requested.
        agreement: Agreement of the network with the original on held-back images; None if not measured.
        calibrated: Agreement before the refinement.
        bundle: The last written folder, or None.
        manifest: Content of the bundle's `bundle.json`.
        withheld: Whether nothing was built, because `only_if_faster` was set and branches are not recommended.
        preprocessing: Preprocessing of pictures; ImageNet's if None.
        images: Images for calibration and held-back images; None without images.
        run_images: Maximum number of held-back images to run through the written files; 0 for none.
        mapping: Delegates that run processors on this machine for this comparison.
        original: The original network, or a copy of a given module; None after a dry run.
        built: Fingerprint of the weights of `model` after the build; None after a dry run.
        own: The file of the original and its inputs and outputs, if the file could be run.
        unjudged: Whether the original has a file that could not be run for a comparison.
        ranges: Scales and zero points of the refinement in int8, by subgraph and tensor.
    """

    plan: PlanResult
    weights_source: str
    weights_detail: str
    warnings: list[str]
    seconds: dict[str, float] = field(default_factory=dict)
    model: "BranchedModel | None" = None
    sequential: "BranchedModel | None" = None
    shortened: "BranchedModel | None" = None
    calibration: "list[SegmentError]" = field(default_factory=list)
    refinement: "Refined | None" = None
    agreement: "Agreement | None" = None
    calibrated: "Agreement | None" = None
    bundle: Path | None = None
    manifest: Manifest | None = None
    withheld: bool = False
    preprocessing: "Preprocessing | None" = None
    images: "Images | None" = field(default=None, repr=False)
    run_images: int = 0
    mapping: Mapping[str, str] = field(default_factory=dict)
    original: "Captured | None" = field(default=None, repr=False)
    built: str | None = field(default=None, repr=False)
    own: "tuple[Path, SourceFile] | None" = field(default=None, repr=False)
    unjudged: bool = False
    ranges: "Ranges" = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        """Describe the plan and the network, in a few lines."""
        lines = [repr(self.plan), f"weights: {self.weights_source}" + (f" ({self.weights_detail})" if self.weights_detail else "")]
        if (agreement := self.agreement) is not None:
            share = "" if agreement.value is None else f"the original's class in {agreement.value:.1%}, "
            lines.append(f"on {agreement.images} held-out images: {share}error {agreement.error:.1%} of the original's outputs")
        lines.append("not built: a dry run" if self.model is None else f"bundle: {self.bundle or 'not saved'}")
        return "\n".join(lines)

    def save(self, path: str | Path, *, controls: bool = True, progress: Progress | None = None) -> Path:
        """Write the network in its present state into a bundle; each file is checked against torch.

        The network may have been trained, moved to a GPU or left in training mode
        since the build, and stays so. If its weights have changed since
        the build, the bundle calls them ``trained``.

        Args:
            path: Folder of the bundle; an earlier bundle there is replaced in one step.
            controls: Whether the bundle has the sequential controls.
            progress: Called with a short name of each next step.

        Returns:
            The folder, ready for `scheduler.Session`.

        Raises:
            UsageError: If nothing was built, after a dry run.
            StretchError: If the network's layers are no longer those of its design, a weight is not
                finite, or the folder cannot be written.
        """
        if self.model is None or self.original is None:
            reason = "branches are not recommended" if self.withheld else "this is the plan of a dry run"
            raise UsageError(
                f"there is no network to save: {reason}", f"call `branch` without {'only_if_faster' if self.withheld else 'dry_run'}"
            )
        from stretch.export.bundle import BundleFacts, export_bundle
        from stretch.export.staging import check_target
        from stretch.stages.arguments import materialize
        from stretch.stages.build import FileComparison
        from stretch.transform.refine import fingerprint

        folder, tell = Path(path), progress or silent
        check_target(folder)
        model, sequential = materialize(self.model, self.original.graph), self._control() if controls else None
        trained = fingerprint(model.state_dict()) != self.built
        if trained:
            # the measurements do not apply to the trained weights
            self.agreement = None
            if (shortened := self.plan.shortened) is not None:
                self.plan = dataclasses.replace(self.plan, shortened=replace(shortened, kept=None))
        agreeing = FileComparison(self.agreement, self.original, self.images, self.run_images, self.mapping, tell)
        own = None if self.own is None else (self.own[0], replace(self.own[1], exact=self.plan.exact and not trained))
        facts = BundleFacts.of(
            self.plan,
            *self._weights(trained),
            preprocessing=self.preprocessing,
            calibrated_on=self.images.fingerprints if self.images else (),
            ranges={} if trained else self.ranges,
            controls=controls,
            own=own,
        )
        fewer = None if self.shortened is None or not controls else materialize(self.shortened, self.original.graph)
        self.manifest = export_bundle(folder, self.original, model, sequential, facts, shortened=fewer, agreeing=agreeing, progress=tell)
        self.bundle, self.agreement = folder, self.manifest.agreement
        self.warnings += [warning for warning in agreeing.warnings if warning not in self.warnings]
        if own is not None and controls and self.manifest.own is None:
            self.warnings.append(f"original.onnx is {own[0].name} written again: a bundle cannot hold the file itself")
        self.warnings = [
            warning for warning in self.warnings if not ((trained and warning == UNKNOWN_ACCURACY) or warning.startswith(FLOAT))
        ]
        rounded = dict.fromkeys(entry.processor for entry in self.manifest.subgraphs if entry.planned_precision == "int8")
        if rounded:
            command = command_line("export", folder, "--images", "FOLDER", "--out", f"{folder}_int8")
            several = len(self.manifest.inputs) > 1
            how = "`stretch export` cannot convert networks with several inputs" if several else f"`{command}` writes int8 files"
            self.warnings.append(f"{FLOAT}, and the times assume int8 on the {' and '.join(rounded)}: {how}")
        return folder

    def agrees(self, least: float) -> bool:
        """Return whether the measured agreement is at least `least`."""
        return self.agreement is not None and self.agreement.value is not None and self.agreement.value >= least

    def to_json(self) -> dict[str, Any]:
        """Return the object that `stretch branch --json` prints."""
        return self.plan.to_json() | to_builtins(
            {
                "warnings": [*self.warnings, *self.plan.warnings],
                "weights": WeightsInfo(self.weights_source, self.weights_detail),
                "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
                "preprocessing": self.preprocessing.to_json() if self.preprocessing else None,
                "calibration": self.calibration,
                "refinement": self.refinement,
                "agreement": self.agreement,
                "bundle": str(self.bundle) if self.bundle else None,
                "written": BRANCHED if self.bundle else None,
                "withheld": self.withheld,
                "checks": self.manifest.checks if self.manifest else {},
                "unjudged": self.unjudged,
            }
        )

    def _control(self) -> "BranchedModel | None":
        """Return the sequential control to export, and build it first if necessary; None without one."""
        from stretch.stages.arguments import materialize, preserve_random_state
        from stretch.stages.build import build_control

        if self.original is None:
            return None
        if self.sequential is None:
            with preserve_random_state():
                self.sequential = build_control(self.original, self.plan)
        return None if self.sequential is None else materialize(self.sequential, self.original.graph)

    def _weights(self, trained: bool) -> tuple[str, str]:
        """Return the source and detail of the weights for the bundle."""
        if not trained:
            return self.weights_source, self.weights_detail
        began = f"{self.weights_source} weights" + (f" ({self.weights_detail})" if self.weights_detail else "")
        return "trained", f"changed since it was built from {began}"
