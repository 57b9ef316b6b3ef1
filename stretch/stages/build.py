"""Steps after the choice of a design: controls, images for calibration and comparison, refinement, and agreement of a bundle's files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec
import numpy as np
import torch

from predictors.errors import StretchError, UsageError
from scheduler.bundle.agreement import Agreement
from scheduler.bundle.load import Bundle
from scheduler.bundle.preprocessing import IMAGENET, Preprocessing
from scheduler.progress import Progress, silent
from stretch.evaluation.agreement import compare
from stretch.evaluation.files import SECONDS, measure_files
from stretch.evaluation.measure import one_sided_reason
from stretch.export.lowering import CALIBRATION_IMAGES
from stretch.export.quantize.images import fingerprint, load_images
from stretch.network.capture import Captured
from stretch.network.capture.results import named_outputs
from stretch.planning.result import Kept, PlanResult, Shortened
from stretch.stages.rounded import Ranges, RoundedModel
from stretch.transform import BranchedModel, build
from stretch.transform.calibrate import MIN_IMAGES, calibrate
from stretch.transform.calibrate.split import Images
from stretch.transform.refine import Checkpoint, Refined, Refinement, refine
from stretch.transform.synthetic import Synthesis, synthesise

#: Batch size.
BATCH = 32

#: Maximum number of held-back images for comparison, which yield a share with an error of a few hundredths.
HELD_BACK = 200

#: Default maximum number of held-back images to run through a bundle's files, one at a time.
RUN_IMAGES = 64

#: Agreement below which a warning recommends training.
MIN_AGREEMENT = 0.95

#: If a folder has no more images than calibration takes, one in this many is held back.
HELD_BACK_EVERY = 4


def build_control(captured: Captured, planned: PlanResult) -> BranchedModel | None:
    """Return the sequential control with the same multiply-accumulates; None if the plan has none."""
    return None if planned.sequential is None else build(captured, planned.sequential.design)


def fit_shortened(
    captured: Captured, shortened: Shortened, images: Images, branched: Agreement | None
) -> tuple[BranchedModel, Kept | None]:
    """Return the calibrated shortened network of a plan, and the shares that it and the branches keep on held-back images.

    Args:
        branched: Agreement of the calibrated branches; None if not measured.
    """
    model = build(captured, shortened.design)
    calibrate(model, captured, images.fitted, synthetic=images.synthetic)
    if branched is None:
        return model, shortened.kept
    alone, _ = compare(model, captured, images.held_back)
    if alone.value is None or branched.value is None:
        return model, Kept(basis="error", shortened=1 - alone.error, branched=1 - branched.error, images=alone.images)
    return model, Kept(basis="measured", shortened=alone.value, branched=branched.value, images=alone.images)


def divide_images(
    folder: Path,
    captured: Captured,
    count: int,
    preprocessing: Preprocessing | None = None,
    held_back: int = HELD_BACK,
    synthetic: int = 0,
    progress: Progress = silent,
) -> Images:
    """Read a folder's images, and divide them into images for calibration and held-back images for comparison.

    Duplicates are dropped. Both sets are spread over the folder. If it has more images than calibration takes, the others are
    held back; otherwise every fourth image, as long as calibration has enough.

    Args:
        preprocessing: Preprocessing of pictures; ImageNet's if None.
        synthetic: Number of additional images to synthesise from the network.
    """
    if captured.graph.inputs[0].shape[0] > 1:
        raise UsageError(
            f"`{captured.graph.name}` reads a batch of {captured.graph.inputs[0].shape[0]}, and images are looked at one at a time",
            "leave the batch out, or the images",
        )
    if len(captured.graph.inputs) > 1:
        names = ", ".join(op.name for op in captured.graph.inputs)
        raise UsageError(f"a folder of images feeds networks of one input, `{captured.graph.name}` has {names}", "leave the images out")
    loaded = load_images(folder, captured.graph.input.shape, count + held_back, preprocessing or IMAGENET)
    unique = {fingerprint(image): image for image in loaded}
    distinct = list(unique.values())
    if len(distinct) < min(len(loaded), MIN_IMAGES):
        raise StretchError(
            f"{folder} has {len(loaded)} images of which only {len(distinct)} differ",
            f"give at least {MIN_IMAGES} different ones, better some hundreds",
        )
    back = max(len(distinct) - count, min(len(distinct) // HELD_BACK_EVERY, held_back, len(distinct) - MIN_IMAGES), 0)
    chosen = {i * len(distinct) // back for i in range(back)}
    sets: list[list[torch.Tensor]] = [[], []]
    for i, image in enumerate(distinct):
        sets[i in chosen].append(torch.from_numpy(image))
    looked_at = tuple(name for i, name in enumerate(unique) if i not in chosen)
    fitted, held = ([torch.cat(part[i : i + BATCH]) for i in range(0, len(part), BATCH)] for part in sets)
    synthesised = synthesise(captured, preprocessing or IMAGENET, Synthesis(synthetic), progress) if synthetic else []
    return Images(fitted, held, len(loaded) - len(distinct), looked_at, synthesised)


def compare_with_original(model: BranchedModel, captured: Captured, images: Sequence[torch.Tensor]) -> tuple[Agreement | None, list[str]]:
    """Return the agreement of a branched network with its original on held-back images, and warnings.

    Args:
        images: Batches, (n, channels, height, width); empty if there were too few images.
    """
    if not images:
        return None, ["too few images to hold any back, so how far this network agrees with the original was not measured"]
    agreement, classes = compare(model, captured, images)
    if agreement.value is None and classes:
        return agreement, [one_sided_reason(classes)]
    if agreement.value is None:
        subject = "the outputs are" if len(captured.graph.outputs) == 1 else "several outputs are"
        return agreement, [f"{subject} no list of class scores: agreement is reported as their error relative to the original's"]
    if agreement.value < MIN_AGREEMENT:
        return agreement, [
            f"the branched network sees the original's class in {agreement.value:.0%} of {agreement.images} held-out images: train it "
            f"(`stretch train`), or let the segments that change most stay as they are with `min_agreement={MIN_AGREEMENT:g}` and `repair`"
        ]
    return agreement, []


#: Warning for networks with several outputs.
NOT_RUN = "the bundle's files were not run on images: that is done for networks of one output"


@dataclass(frozen=True)
class FileComparison:
    """Comparison of a bundle's files, in their planned precisions, with the original while the bundle is written."""

    agreement: Agreement | None  # Agreement of the network; None if not measured.
    captured: Captured  # The original.
    images: Images | None  # Images, of which held-back ones run through the files; None without images.
    count: int = RUN_IMAGES  # Maximum number of images to run; 0 for none.
    mapping: Mapping[str, str] = field(default_factory=dict)  # Delegates that run processors on this machine.
    progress: Progress = silent
    seconds: float = SECONDS  # Time limit of `measure_files`.
    warnings: list[str] = field(default_factory=list)  # Warnings for the user, after a call.

    def __call__(self, bundle: Bundle) -> Agreement | None:
        """Return the agreement of the network, with the agreement of the bundle's files added."""
        if self.agreement is None or self.images is None or not self.count:
            return self.agreement
        if len(bundle.manifest.outputs) > 1:
            self.warnings.append(NOT_RUN)
            return self.agreement
        fitted, held_back = (
            [image[None].numpy() for batch in batches for image in batch.cpu()] for batches in (self.images.fitted, self.images.held_back)
        )
        few = len(held_back) <= self.count
        chosen = held_back if few else [held_back[i * len(held_back) // self.count] for i in range(self.count)]
        module = self.captured.module.eval()
        with torch.no_grad():
            # run the original on all images first: alternating with the session, torch's threads and the session's would compete
            batches = [torch.from_numpy(np.concatenate(chosen[i : i + BATCH])) for i in range(0, len(chosen), BATCH)]
            outputs = [named_outputs(module(batch), self.captured.returned)[0][1] for batch in batches]
        expected = iter(torch.cat(outputs).numpy())
        agreement, kept, left = measure_files(
            bundle, lambda x: next(expected)[None], fitted, chosen, self.mapping, seconds=self.seconds, progress=self.progress
        )
        self.warnings.extend(f"subgraph `{name}` was run in fp32, not in its planned precision: {reason}" for name, reason in kept.items())
        if left:
            count = f"{agreement.images} of {len(chosen)}"
            self.warnings.append(f"in the time there is, the bundle's files were run on {count} images")
        return msgspec.structs.replace(self.agreement, bundle=agreement)


#: Warning if the refinement did not improve the network.
UNCHANGED_WARNING = "refining brought the network no closer to the original on held-out images, so its weights stay as they were"


@dataclass(frozen=True)
class RefinementOutcome:
    """Result of refining a network."""

    refinement: Refined  # Errors on images that no step used; equal before and after if the start was kept.
    before: Agreement | None  # Agreement with the original on held-back images, before; None for too few images.
    after: Agreement | None  # Agreement of the kept network.
    kept: str  # ``refined``, or ``start`` if no step reduced the error or the agreement decreased.
    warnings: list[str]  # Warnings for the user.
    ranges: Ranges = field(default_factory=dict)  # Ranges of int8 tensors in the refinement.


def refine_and_compare(
    model: BranchedModel,
    captured: Captured,
    images: Images,
    settings: Refinement,
    checkpoint: Checkpoint | None = None,
    progress: Progress = silent,
    precision: Mapping[str, str] | None = None,
) -> RefinementOutcome:
    """Refine a network, on a GPU if available, and keep the result only if it is at least as close to the original.

    A network is closer if it agrees more often, or equally often with a smaller error of the outputs. The held-back images have no
    part in the steps, nor in the choice of the best step: they only decide between the start and the best step.
    `precision` is the planned precision of each processor: for int8, the last steps include rounding.
    """
    rounding, rounding_warnings = int8_rounding(model, precision or {}, [batch[:1] for batch in images.fitted[:1]])
    progress("compare")
    before, warnings_before = compare_with_original(model, captured, images.held_back)
    start = {key: value.clone() for key, value in model.state_dict().items()}
    place = next(model.parameters()).device
    try:
        if torch.cuda.is_available():
            model.to("cuda")
        refinement = refine(model, captured, images, settings, progress, checkpoint, rounding)
    finally:
        model.to(place)
    progress("compare")
    after, warnings_after = compare_with_original(model, captured, images.held_back)
    if refinement.after < refinement.before and not (before and after and _is_worse(after, before)):
        ranges = rounding.network.ranges if rounding is not None and rounding.network is not None else {}
        return RefinementOutcome(refinement, before, after, "refined", [*warnings_after, *rounding_warnings], ranges)
    model.load_state_dict(start)
    refinement = replace(refinement, after=refinement.before, rounded_before=None, rounded_after=None)
    return RefinementOutcome(refinement, before, before, "start", [*warnings_before, UNCHANGED_WARNING])


class Int8Rounding:
    """Factory of the rounded form of a network, in which int8 processors round.

    Args:
        precision: Precision by processor.

    Attributes:
        network: The last rounded network.
    """

    def __init__(self, precision: Mapping[str, str]) -> None:
        self._precision = precision
        self.network: RoundedModel | None = None

    def __call__(self, model: BranchedModel, images: Sequence[torch.Tensor]) -> RoundedModel:
        """Return the rounded form of a network, with ranges of tensors from batches of images."""
        self.network = RoundedModel(model, self._precision, torch.cat(list(images))[:CALIBRATION_IMAGES].split(BATCH))
        return self.network


def int8_rounding(
    model: BranchedModel, precision: Mapping[str, str], images: Sequence[torch.Tensor]
) -> tuple[Int8Rounding | None, list[str]]:
    """Return the factory of a network's int8 form and warnings; None if no processor has int8 or, with a warning, if a test on images fails."""
    int8 = {name: "int8" if at == "int8" else "fp32" for name, at in precision.items()}
    if "int8" not in int8.values():
        return None, []
    try:
        RoundedModel(model, int8, images)
    except StretchError as error:
        return None, [f"refined in fp32 alone, without int8's rounding: {error.message}"]
    return Int8Rounding(int8), []


def _is_worse(after: Agreement, before: Agreement) -> bool:
    """Return whether a network agrees less often, or equally often with a larger error; without classes only the error counts."""
    return (after.value or 0.0, -after.error) < (before.value or 0.0, -before.error)
