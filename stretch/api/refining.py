"""Refinement of a bundle: the same design, with weights that bring it closer to its original."""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from predictors.errors import UsageError
from predictors.system import keep_freed_memory
from scheduler.bundle.agreement import Agreement
from scheduler.progress import Progress, silent
from stretch.api.main_job import MAX_MINUTES, check_run, import_torch
from stretch.api.parameters import NO_PLACES, Parsed, read_places

if TYPE_CHECKING:
    from scheduler.bundle.manifest import WeightsInfo
    from stretch.stages.build import RefinementOutcome
    from stretch.transform.refine import Refined

#: Suffix of the checkpoint folder next to a bundle, from which a refinement resumes.
CHECKPOINT = ".refine"


class AgreementChange(msgspec.Struct, frozen=True, kw_only=True):
    """Agreement with the original before and after the refinement, on the same held-back images, in fp32."""

    before: float | None  # Share of images with the same best class, before; None if outputs are no classes.
    after: float | None  # Share of images with the same best class, after.
    low: float | None  # Lower end of the 95 % interval of `after` (Wilson's).
    high: float | None  # Upper end.
    error_before: float  # Root of the squared error of the outputs over the root of the original's squared outputs, before.
    error_after: float  # Error after.
    images: int  # Number of images.
    source: Literal["measured"] = "measured"  # Always ``measured``.


class RefineAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A refined bundle."""

    bundle: Path  # Folder of the bundle.
    model: str  # Name of the network.
    kept: str  # ``refined``, or ``start`` if the refinement brought no improvement and the weights did not change.
    refinement: "Refined"  # Errors before and after on images that no step used, number of steps, and time.
    agreement: AgreementChange | None  # Agreement before and after; None if there were too few images to hold any back.
    measured: Agreement | None  # Agreement in the bundle, by segment and for its files; None for too few images.
    checks: dict[str, Any]  # Comparisons made while the bundle was written.
    warnings: list[str]  # Warnings for the user.


class RefineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the refinement of a bundle."""

    minutes: Annotated[
        float | None, typer.Option(help="Of a bundle: minutes of refinement, on a GPU if there is one. Default: 5 without --steps.")
    ] = None
    steps: Annotated[int | None, typer.Option(help="Of a bundle: maximum number of steps, with a batch of 64 views each.", min=1)] = None
    image_count: Annotated[int, typer.Option(help="Of a bundle: maximum number of training images; others are held back.", min=16)] = 256
    run_images: Annotated[
        int,
        typer.Option(
            help="Of a bundle: maximum number of held-back images that its files are run on, in their planned precisions; 0 for none.",
            min=0,
        ),
    ] = 64
    mapping: Annotated[
        Mapping[str, str],
        typer.Option("--map", help="Of a bundle: delegate that replaces a processor in that run, such as dsp=dsp. Default: the CPU."),
        Parsed(list[str] | None, read_places),
    ] = NO_PLACES
    checkpoint: Annotated[
        str | Path | None,
        typer.Option(help="Of a bundle: folder of the checkpoint to resume from after an interruption. Default: next to the bundle."),
    ] = None
    synthetic: Annotated[
        int,
        typer.Option(
            help="Of a bundle: number of images made from the original itself, which half of the views show; some hundreds or thousands, "
            "on a GPU.",
            min=0,
        ),
    ] = 0


def refine_bundle(
    bundle: str | Path,
    images: str | Path,
    options: RefineOptions | None = None,
    *,
    out: str | Path | None = None,
    progress: Progress | None = None,
) -> RefineAnswer:
    """Refine the network of a bundle towards its original, on unlabelled images, and write it as a bundle.

    The bundle's files contain the design, its weights and the original. An interrupted refinement resumes if the call is
    repeated with the same arguments.

    Args:
        bundle: Folder of an fp32 bundle with its controls.
        images: Folder of unlabelled images. The folder and image count of the bundle's calibration hold back the same images.
        options: Options of the refinement, such as ``RefineOptions(minutes=10)``.
        out: Folder of the new bundle; if None, the new bundle replaces the old one in one step.
        progress: Called with a short name of each next step.

    Raises:
        StretchError: Or a subclass: no bundle, too few images, a checkpoint of another refinement, no folder to write to.
    """
    import_torch()
    from scheduler.bundle.load import load_bundle
    from scheduler.placement.mapping import place_processors
    from stretch.export.precision import planned_precision
    from stretch.export.reweigh import export_reweighed
    from stretch.export.staging import check_target, sweep
    from stretch.stages.arguments import preserve_random_state
    from stretch.stages.build import FileComparison, divide_images, refine_and_compare
    from stretch.stages.reopen import load_bundle_model
    from stretch.transform.refine import Checkpoint, Refinement

    options, tell = options or RefineOptions(), progress or silent
    minutes = 5.0 if options.minutes is None and options.steps is None else options.minutes
    _check_bounds(minutes, options.steps, options.run_images)
    loaded = load_bundle(bundle, check_hashes=True)
    target = Path(bundle if out is None else out)
    check_target(target)
    if options.mapping:
        place_processors(list(dict.fromkeys(entry.processor for entry in loaded.manifest.subgraphs)), options.mapping)
    folder = checkpoint_folder(target, options.checkpoint)
    _check_checkpoint(folder, target, loaded.path)
    kept = Checkpoint(folder)
    try:
        with preserve_random_state(), keep_freed_memory():
            tell("read")
            original, model = load_bundle_model(loaded)
            tell("images")
            read = loaded.manifest.model.preprocessing
            divided = divide_images(Path(images), original, options.image_count, read, synthetic=options.synthetic, progress=tell)
            precision = planned_precision(loaded.manifest)
            outcome = refine_and_compare(model, original, divided, Refinement(minutes, options.steps), kept, tell, precision)

            agreeing = FileComparison(outcome.after, original, divided, options.run_images, options.mapping, tell)
            began = loaded.manifest.weights
            weights = _weights(began, options.synthetic) if outcome.kept == "refined" else began
            fitted_to = tuple(dict.fromkeys((*loaded.manifest.calibrated_on, *divided.fingerprints)))
            stated = msgspec.structs.replace(loaded.manifest, weights=weights, calibrated_on=fitted_to)
            # an unnamed bundle object, because a reference would keep the folder that `sweep` removes
            manifest = export_reweighed(
                replace(loaded, manifest=stated), target, original, model, outcome.ranges, agreeing=agreeing, progress=tell
            )
        kept.remove()
    finally:
        # remove the checkpoint folder if it is empty
        with contextlib.suppress(OSError):
            folder.rmdir()
    # release the replaced bundle, which was still open
    del loaded
    sweep(target)
    return RefineAnswer(
        bundle=target,
        model=manifest.model.name,
        kept=outcome.kept,
        refinement=outcome.refinement,
        agreement=_change(outcome),
        measured=manifest.agreement,
        checks=manifest.checks,
        warnings=[*divided.warnings, *outcome.warnings, *agreeing.warnings],
    )


def _check_bounds(minutes: float | None, steps: int | None, run_images: int) -> None:
    """Refuse a refinement without time or steps before any work begins."""
    check_run(run_images, mapped=False, images=True)
    if minutes is not None and not 0 < minutes < MAX_MINUTES:
        raise UsageError(
            f"`minutes={minutes:g}` is no time to refine for",
            "give minutes, more than none and less than a week",
        )
    if steps is not None and steps < 1:
        raise UsageError(f"`steps={steps}` is no number of steps", "give one or more")


def checkpoint_folder(target: Path, requested: str | Path | None = None) -> Path:
    """Return the checkpoint folder from which an interrupted refinement resumes.

    Args:
        requested: The requested folder; a folder next to the new bundle if None.
    """
    absolute = target.resolve()
    return absolute.with_name(absolute.name + CHECKPOINT) if requested is None else Path(requested)


def _check_checkpoint(folder: Path, *bundles: Path) -> None:
    """Refuse a checkpoint folder that cannot be written, or is inside a bundle, which only holds its own files."""
    for bundle in bundles:
        if folder.resolve().is_relative_to(bundle.resolve()):
            raise UsageError(f"the checkpoint {folder} would lie in the bundle {bundle}", "choose a folder outside of it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"the checkpoint {folder} is no folder that can be written: {error.strerror}", "choose another") from error


def _weights(began: "WeightsInfo", synthetic: int) -> "WeightsInfo":
    """Return the description of refined weights for a bundle."""
    from scheduler.bundle.manifest import WeightsInfo

    detail = began.detail
    if began.source != "trained":
        detail = f"refined without labels from {began.source} weights" + (f" ({detail})" if detail else "")
    return WeightsInfo("trained", detail + (f"; also on {synthetic} images made from the original" if synthetic else ""))


def _change(outcome: "RefinementOutcome") -> AgreementChange | None:
    before, after = outcome.before, outcome.after
    if before is None or after is None:
        return None
    return AgreementChange(
        before=before.value,
        after=after.value,
        low=after.low,
        high=after.high,
        error_before=before.error,
        error_after=after.error,
        images=after.images,
    )
