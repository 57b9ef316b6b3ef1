"""What an evaluation found, as plain data: JSON and the terminal's table both read these structs, whose fields are the JSON's keys."""

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
    """What was evaluated on.

    Args:
        path: Folder or table.
        files: Files taken of it.
        count: Images in them.
        labels: Where labels come from.
        classes: Classes that have images.
    """

    path: Path
    files: int
    count: int
    labels: str
    classes: int


class WhereAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Where a processor's work ran.

    Args:
        cores: CPU cores.
        delegate: Which ran it.
        stand_in: Whether this machine lacks the processor.
        reason: Why there, in words.
    """

    cores: tuple[int, ...]
    delegate: str
    stand_in: bool
    reason: str


class EvaluateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle on images, beside the original.

    Args:
        bundle: Its folder.
        model: The network.
        weights: Where its weights came from.
        precisions: Of its subgraphs.
        source: Where the figures come from.
        images: What they were measured on.
        preprocessing: What pictures went through.
        top1: Share whose best class is right; None without labels.
        top5: Share with the right class among the five best; None without labels, or with five classes or fewer.
        original: The same of the original; None where there is none.
        original_classes: Classes that the original answers; None where there is none.
        calibrated_on: Images among them that the bundle was calibrated with.
        agreement: Share with the same best class as the original; None where there is none, or it answers nearly always the same class.
        top5_overlap: Share of the five best classes that both have.
        error: Root of the squared error of the outputs over the root of the original's square; None where there is no original.
        processors: Where each processor's work ran.
        warnings: What a person should know.
    """

    bundle: Path
    model: str
    weights: WeightsInfo
    precisions: list[str]
    source: str = "measured"
    images: ImagesAnswer
    preprocessing: dict[str, Any]
    top1: Share | None
    top5: Share | None
    original: Accuracy | None
    original_classes: int | None
    calibrated_on: int
    agreement: Share | None
    top5_overlap: Share | None
    error: float | None
    processors: dict[str, WhereAnswer]
    warnings: list[str]


def images_answer(path: Path, found: ImageSet, files: int, count: int) -> ImagesAnswer:
    """What was evaluated on.

    Args:
        path: Folder or table.
        found: What was found there.
        files: Files taken of it.
        count: Images in them.
    """
    return ImagesAnswer(path=path, files=files, count=count, labels=found.labels, classes=len(found.classes))


def evaluate_answer(
    session: Session, images: ImagesAnswer, preprocessing: Preprocessing, result: Evaluation, warnings: list[str]
) -> EvaluateAnswer:
    """What was measured, summed up.

    Args:
        session: The bundle on this machine.
        images: What it was measured on.
        preprocessing: What pictures went through.
        result: The counts.
        warnings: What a person should know.
    """
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
