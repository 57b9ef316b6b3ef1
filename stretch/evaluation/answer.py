"""Result of an evaluation as plain data, for the JSON and the terminal's table; the fields are the JSON's keys."""

from pathlib import Path
from typing import Any

import msgspec

from scheduler.bundle.manifest import WeightsInfo
from scheduler.bundle.preprocessing import Preprocessing
from scheduler.placement.place import Placement
from scheduler.runtime.session import Session
from stretch.evaluation.labels import ImageSet
from stretch.evaluation.measure import Accuracy, Evaluation
from stretch.evaluation.shares import Share


class ImagesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was evaluated on."""

    path: Path  # Folder or table.
    files: int  # Files taken of it.
    count: int  # Images in them.
    labels: str  # Where labels come from.
    classes: int  # Classes that have images.


class WhereAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Where a processor's work ran."""

    cores: tuple[int, ...]  # CPU cores.
    delegate: str  # Which ran it.
    stand_in: bool  # Whether this machine lacks the processor.
    reason: str  # Why there, in words.


class EvaluateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle on images, beside the original."""

    bundle: Path  # Its folder.
    model: str  # The network.
    weights: WeightsInfo  # Where its weights came from.
    precisions: list[str]  # Of its subgraphs.
    source: str = "measured"  # Where the figures come from.
    images: ImagesAnswer  # What they were measured on.
    preprocessing: dict[str, Any]  # What pictures went through.
    top1: Share | None  # Share whose best class is right; None without labels.
    top5: Share | None  # Share with the right class among the five best; None without labels, or with five classes or fewer.
    original: Accuracy | None  # The same of the original; None where there is none.
    original_classes: int | None  # Classes that the original answers; None where there is none.
    calibrated_on: int  # Images among them that the bundle was calibrated with.
    #: Share with the same best class as the original; None where there is none, or it answers nearly always the same class.
    agreement: Share | None
    top5_overlap: Share | None  # Share of the five best classes that both have.
    error: float | None  # Root of the squared error of the outputs over the root of the original's square; None where there is no original.
    processors: dict[str, WhereAnswer]  # Where each processor's work ran.
    warnings: list[str]  # What a person should know.


def images_answer(path: Path, image_set: ImageSet, files: int, count: int) -> ImagesAnswer:
    """What was evaluated on."""
    return ImagesAnswer(path=path, files=files, count=count, labels=image_set.labels, classes=len(image_set.classes))


def evaluate_answer(
    session: Session, images: ImagesAnswer, preprocessing: Preprocessing, result: Evaluation, warnings: list[str]
) -> EvaluateAnswer:
    """Summary of the evaluation."""
    manifest = session.bundle.manifest
    return EvaluateAnswer(
        bundle=session.bundle.path,
        model=manifest.model.name,
        weights=manifest.weights,
        precisions=sorted({entry.precision for entry in manifest.subgraphs}),
        images=images,
        preprocessing=preprocessing.to_json(),
        top1=result.branched.top1,
        top5=result.branched.top5,
        original=result.original,
        original_classes=len(result.classes) or None,
        calibrated_on=result.calibrated_on,
        agreement=result.agreement,
        top5_overlap=result.top5_overlap,
        error=result.error,
        processors={name: _where(place) for name, place in session.placements.items()},
        warnings=warnings,
    )


def _where(place: Placement) -> WhereAnswer:
    return WhereAnswer(cores=place.cores, delegate=place.delegate, stand_in=place.stand_in, reason=place.reason)
