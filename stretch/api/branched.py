"""What the main job gives: a plan, a network to train, and a bundle when it is saved."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from predictors.errors import UsageError
from predictors.structs import filled
from scheduler.progress import Progress, silent
from stretch.planning.cost.compare import BRANCHED
from stretch.planning.messages import Message, OptionName, Spelling, as_argument, spelled
from stretch.planning.result import PlanResult, plain
from stretch.stages.design import BranchedAnswer, WeightsAnswer

if TYPE_CHECKING:
    from scheduler.bundle.agreement import Agreement
    from scheduler.bundle.load import Bundle
    from scheduler.bundle.manifest import Manifest
    from scheduler.bundle.preprocessing import Preprocessing
    from stretch.capture import Captured
    from stretch.stages.build import Images
    from stretch.transform import BranchedModel
    from stretch.transform.calibrate import SegmentError
    from stretch.transform.refine import Refined

#: Said of a network that was neither calibrated nor trained since it was changed.
UNKNOWN_ACCURACY = Message(
    "the accuracy of this branched network is unknown: channels and blocks of the original are gone and nothing took their place yet; "
    "train it (`stretch train`), or calibrate it with {}, and measure it with `stretch evaluate`",
    OptionName("images"),
)


@dataclass
class Branched:
    """What `branch` made: a plan, and a network to train and to save.

    Args:
        plan: The design with its prediction and controls.
        weights_source: Of the weights that the network began with: ``default``, ``random``, ``file`` or ``given``.
        weights_detail: Which weights.
        warnings: What a person should know.
        seconds: Wall time of each phase.
        model: The branched network, a `torch.nn.Module`; None after a dry run.
        sequential: The sequential control of the same MACs, if there is one.
        calibration: How far each branched segment is from the original's, after calibration.
        refinement: What came of refining the network; None where that was not asked for.
        agreement: How far the network agrees with the original on images that were held back; None where that was not measured.
        bundle: The folder written last, if any.
        manifest: Its `bundle.json`.
        withheld: Whether nothing was built because something else than branches is recommended.
        preprocessing: What a picture goes through before the model reads it; None: ImageNet's.
        images: What it was calibrated on, and others; None without images.
        run_images: Of the others, so many are run through the bundle's files when they are written; 0 for none.
        mapping: Where processors run here for that.
        original: The original network, a copy of it if a module was given; None after a dry run.
        built: Fingerprint of `model` as it was built; None after a dry run.
    """

    plan: PlanResult
    weights_source: str
    weights_detail: str
    warnings: list[str]
    seconds: dict[str, float] = field(default_factory=dict)
    model: "BranchedModel | None" = None
    sequential: "BranchedModel | None" = None
    calibration: "list[SegmentError]" = field(default_factory=list)
    refinement: "Refined | None" = None
    agreement: "Agreement | None" = None
    bundle: Path | None = None
    manifest: "Manifest | None" = None
    withheld: bool = False
    preprocessing: "Preprocessing | None" = None
    images: "Images | None" = field(default=None, repr=False)
    run_images: int = 0
    mapping: Mapping[str, str] = field(default_factory=dict)
    original: "Captured | None" = field(default=None, repr=False)
    built: str | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        """What was planned and made, in a few lines."""
        lines = [repr(self.plan), f"weights: {self.weights_source}" + (f" ({self.weights_detail})" if self.weights_detail else "")]
        if (agreement := self.agreement) is not None:
            share = "" if agreement.value is None else f"the original's class in {agreement.value:.1%}, "
            lines.append(f"on {agreement.images} images held back: {share}error {agreement.error:.3f} of the original's outputs")
        lines.append("not built: a dry run" if self.model is None else f"bundle: {self.bundle or 'not saved'}")
        return "\n".join(lines)

    def save(self, path: str | Path, *, controls: bool = True, progress: Progress | None = None) -> Path:
        """Write the network as it is now into a bundle, each file checked against torch.

        It may have been trained, moved to a GPU or left in training mode since
        it was built, and stays so. Where its weights are not those that it was
        built with, the bundle calls them ``trained``.

        Args:
            path: Folder of the bundle; an earlier bundle there is replaced in one step.
            controls: Whether the bundle has the sequential controls.
            progress: Called with a few words for what comes next.

        Returns:
            The folder, ready for `scheduler.Session`.

        Raises:
            UsageError: If nothing was built, after a dry run.
            StretchError: If the network's layers are no longer those of its design, a weight is not
                finite, or the folder cannot be written.
        """
        if self.model is None or self.original is None:
            why = f"{self.plan.recommended} is recommended instead" if self.withheld else "this is the plan of a dry run"
            raise UsageError(
                f"there is no network to save: {why}", "call `branch` " + ("with anyway" if self.withheld else "without dry_run")
            )
        from stretch.api.arguments import as_it_is, fingerprint
        from stretch.export.staging import check_target
        from stretch.stages.build import with_files, write_bundle

        folder = Path(path)
        check_target(folder)
        model, sequential = as_it_is(self.model, self.original.graph), self._control() if controls else None
        trained = fingerprint(model) != self.built
        if trained:
            # what was measured is no longer true of it
            self.agreement = None
        networks, weights, images, original = (model, sequential), self._weights(trained), self.images, self.original

        def agreeing(bundle: "Bundle") -> "Agreement | None":
            count, tell = self.run_images, progress or silent
            if images is None:
                return self.agreement
            return with_files(self.agreement, bundle, original, images, count, self.mapping, self.warnings, tell)

        self.manifest = write_bundle(
            folder,
            self.plan,
            self.original,
            networks,
            weights,
            self.preprocessing,
            controls=controls,
            agreement=self.agreement,
            agreeing=agreeing,
            calibrated_on=self.images.fingerprints if self.images else (),
            progress=progress or silent,
        )
        self.bundle, self.agreement = folder, self.manifest.agreement
        if trained:
            self.warnings = [warning for warning in self.warnings if warning != UNKNOWN_ACCURACY]
        return folder

    def answer(self, spelling: Spelling | None = None) -> BranchedAnswer:
        """What was planned and made, as plain data.

        Args:
            spelling: How its sentences write options; as arguments of Python if None.
        """
        planned = self.plan.answer(spelling)
        spelled_warnings = [spelled(warning, spelling or as_argument) for warning in self.warnings]
        return filled(
            BranchedAnswer,
            self,
            **asdict(planned) | {"warnings": [*spelled_warnings, *planned.warnings]},
            weights=WeightsAnswer(source=self.weights_source, detail=self.weights_detail),
            seconds={name: round(value, 3) for name, value in self.seconds.items()},
            preprocessing=self.preprocessing.to_json() if self.preprocessing else None,
            bundle=str(self.bundle) if self.bundle else None,
            written=BRANCHED if self.bundle else None,
            checks=self.manifest.checks if self.manifest else {},
        )

    def to_json(self, spelling: Spelling | None = None) -> dict[str, Any]:
        """The object that `stretch branch --json` prints.

        Args:
            spelling: How its sentences write options; as arguments of Python if None.
        """
        return plain(self.answer(spelling))

    def _control(self) -> "BranchedModel | None":
        """The sequential control to export; built now if that was left out."""
        from stretch.api.arguments import as_it_is, random_state_kept
        from stretch.stages.build import build_control

        if self.original is None:
            return None
        if self.sequential is None:
            with random_state_kept():
                self.sequential = build_control(self.original, self.plan)
        return None if self.sequential is None else as_it_is(self.sequential, self.original.graph)

    def _weights(self, trained: bool) -> tuple[str, str]:
        """Source and detail of the weights for the bundle."""
        if not trained:
            return self.weights_source, self.weights_detail
        began = f"{self.weights_source} weights" + (f" ({self.weights_detail})" if self.weights_detail else "")
        return "trained", f"changed since it was built from {began}"
