"""The work of `stretch.evaluate`, and its result as plain data; the fields are the JSON's keys."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from predictors.errors import StretchError, UsageError
from predictors.structs import filled
from scheduler.answer import PlacedProcessor
from scheduler.bundle.load import Bundle, load_bundle
from scheduler.bundle.manifest import WeightsInfo
from scheduler.bundle.preprocessing import IMAGENET, Preprocessing, requested_preprocessing
from scheduler.measure.benchmark import used_cores
from scheduler.progress import Progress
from scheduler.runtime.sequential import Sequential
from scheduler.runtime.session import Session
from stretch.evaluation.labels import ImageFile, find_images
from stretch.evaluation.measure import Accuracy
from stretch.evaluation.measure import evaluate as measure
from stretch.evaluation.shares import Share, one_sided
from stretch.quantize.images import read_images


class ImagesAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was evaluated on."""

    path: Path  # Folder or table.
    files: int  # Files taken of it.
    count: int  # Images in them.
    labels: str  # Where labels come from.
    classes: int  # Classes that have images.


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
    processors: dict[str, PlacedProcessor]  # Where each processor's work ran.
    warnings: list[str]  # What a person should know.


def evaluate_bundle(
    bundle: str | Path,
    images: str | Path,
    classes: Path | None,
    labels: bool,
    image_count: int | None,
    mapping: Mapping[str, str],
    processors: Sequence[str] | None,
    preprocessing: Preprocessing | Mapping[str, Any] | None,
    progress: Progress,
) -> EvaluateAnswer:
    """`stretch.evaluate`."""
    loaded = load_bundle(bundle, check_hashes=True)
    manifest = loaded.manifest
    outputs = _outputs(loaded)
    read = requested_preprocessing(manifest.model.preprocessing or IMAGENET, preprocessing, manifest.model.input_shape)
    image_set = find_images(Path(images), outputs, classes, labelled=labels)
    files = image_set.spread(image_count)
    warnings = []
    with Session(loaded, mapping, processors=processors) as session:
        if not session.computes:
            raise UsageError("a delegate computes no outputs, so there is nothing to evaluate", "map processors to delegates that compute")
        if (control := manifest.controls.get("original")) is None:
            warnings.append("the bundle was written without controls, so it cannot be compared with the original")
        original = None if control is None else Sequential(loaded.file(control), used_cores(session)).run
        result = measure(session, original, _images(files, manifest.model.input_shape, read, progress), outputs, manifest.calibrated_on)
        if original is not None and not result.diverse:
            warnings.append(one_sided(result.classes))
        if result.calibrated_on:
            warnings.append(
                f"{result.calibrated_on} of the {result.images} images were used to calibrate this bundle, so these figures are too good: "
                "evaluate it on others"
            )
        return filled(
            EvaluateAnswer,
            result,
            bundle=loaded.path,
            model=manifest.model.name,
            weights=manifest.weights,
            precisions=sorted({entry.precision for entry in manifest.subgraphs}),
            images=ImagesAnswer(
                path=Path(images), files=len(files), count=result.images, labels=image_set.labels, classes=len(image_set.classes)
            ),
            preprocessing=read.to_json(),
            top1=result.branched.top1,
            top5=result.branched.top5,
            original_classes=len(result.classes) or None,
            processors={name: filled(PlacedProcessor, place) for name, place in session.placements.items()},
            warnings=warnings,
        )


def _outputs(bundle: Bundle) -> int:
    """Number of classes of the network."""
    # networks with several inputs or outputs are refused here
    _ = bundle.manifest.input, bundle.manifest.output
    shape = bundle.manifest.model.output_shape
    if len(shape) != 2 or shape[0] != 1 or bundle.manifest.model.input_shape[0] != 1:
        raise StretchError(
            f"{bundle.path} gives an output of shape {list(shape)}, which is no list of class scores",
            "only networks that classify one image at a time can be evaluated",
        )
    return shape[1]


def _images(
    files: Sequence[ImageFile], shape: tuple[int, ...], preprocessing: Preprocessing, progress: Progress
) -> Iterator[tuple[str, NDArray[Any], int | None]]:
    """The images of the files, read lazily."""
    for file in files:
        for image in read_images(file.path, shape, preprocessing):
            yield str(file.path), image, file.label
        progress("")
