"""`stretch evaluate`: accuracy of a bundle on images, or agreement with the original if there are no labels."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stretch.cli.options import Preprocessing as Requested
from stretch.cli.options import settings
from stretch.cli.output import Output, verb

if TYPE_CHECKING:
    import numpy as np
    from rich.console import Console

    from scheduler.bundle.load import Bundle
    from scheduler.bundle.preprocessing import Preprocessing
    from scheduler.runtime.session import Session
    from stretch.evaluation.answer import EvaluateAnswer
    from stretch.evaluation.labels import ImageFile


@verb
@settings()
def evaluate(
    out: Output,
    *,
    bundle: Annotated[Path, typer.Argument(help="Folder of a bundle.")],
    images: Annotated[
        Path, typer.Option(help="Folder of class folders, a .csv or .tsv table of file and label, or a folder of unlabelled images.")
    ],
    classes: Annotated[Path | None, typer.Option(help="File with the class names in output order, one per line.")] = None,
    labels: Annotated[bool, typer.Option("--labels/--no-labels", help="Whether folder names are class labels.")] = True,
    image_count: Annotated[int | None, typer.Option(help="Maximum number of images, spread evenly over all.", min=1)] = None,
    mapping: Annotated[
        list[str] | None,
        typer.Option("--map", help="Place where a processor's subgraphs run here, such as gpu=cpu1; repeat or separate by commas."),
    ] = None,
    processors: Annotated[
        str | None, typer.Option(help="Processors to use, such as cpu,gpu; subgraphs of the others move to them.")
    ] = None,
    preprocessing: Requested = None,
) -> None:
    """Measure a bundle's accuracy on images, and its agreement with the original."""
    from predictors.errors import UsageError
    from scheduler.bundle.load import load_bundle
    from scheduler.bundle.preprocessing import IMAGENET, requested_preprocessing
    from scheduler.placement.mapping import parse_mapping
    from scheduler.runtime.session import Session
    from stretch.evaluation.answer import evaluate_answer, images_answer
    from stretch.evaluation.labels import find_images
    from stretch.evaluation.measure import evaluate as measure
    from stretch.evaluation.shares import one_sided

    loaded = load_bundle(bundle, check_hashes=True)
    model = loaded.manifest.model
    outputs = _outputs(loaded)
    read = requested_preprocessing(model.preprocessing or IMAGENET, preprocessing, model.input_shape)
    image_set = find_images(images, outputs, classes, labelled=labels)
    files = image_set.spread(image_count)
    only = None if processors is None else [name.strip() for name in processors.split(",")]
    with Session(loaded, parse_mapping(mapping or []), processors=only) as session:
        if not session.computes:
            raise UsageError("a delegate of --map computes no outputs, so there is nothing to evaluate", "map to one that computes")
        original = _original(loaded, session, out)
        with out.progress("evaluating", total=len(files)) as step:
            images_read = _images(files, model.input_shape, read, step)
            result = measure(session, original, images_read, outputs, loaded.manifest.calibrated_on)
        if original is not None and not result.diverse:
            out.warn(one_sided(result.classes))
        if result.calibrated_on:
            out.warn(
                f"{result.calibrated_on} of the {result.images} images were used to calibrate this bundle, so these figures are too good: evaluate it on others"
            )
        taken = images_answer(images, image_set, len(files), result.images)
        answer = evaluate_answer(session, taken, read, result, out.warnings)
    out.emit(answer, lambda console: _print(console, answer))


def _outputs(bundle: "Bundle") -> int:
    """Number of classes of the network."""
    from predictors.errors import StretchError

    # networks with several inputs or outputs are refused here
    _ = bundle.manifest.input, bundle.manifest.output
    shape = bundle.manifest.model.output_shape
    if len(shape) != 2 or shape[0] != 1 or bundle.manifest.model.input_shape[0] != 1:
        raise StretchError(
            f"{bundle.path} gives an output of shape {list(shape)}, which is no list of class scores",
            "only networks that classify one image at a time can be evaluated",
        )
    return shape[1]


def _original(bundle: "Bundle", session: "Session", out: Output) -> Any:
    """The original as a function, if the bundle has it."""
    from scheduler.measure.benchmark import used_cores
    from scheduler.runtime.sequential import Sequential

    file = bundle.manifest.controls.get("original")
    if file is None:
        out.warn("the bundle was written without controls, so it cannot be compared with the original")
        return None
    return Sequential(bundle.file(file), used_cores(session)).run


def _images(
    files: "tuple[ImageFile, ...]", shape: tuple[int, ...], preprocessing: "Preprocessing", step: Any
) -> "Iterator[tuple[str, np.ndarray[Any, Any], int | None]]":
    """The images of the files, read lazily."""
    from stretch.quantize.images import read_images

    for file in files:
        for image in read_images(file.path, shape, preprocessing):
            yield str(file.path), image, file.label
        step()


def _print(console: "Console", answer: "EvaluateAnswer") -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("measured")
    for title in ("share", "95 % interval"):
        table.add_column(title, justify="right")
    original = answer.original
    rows = (
        ("top-1", answer.top1),
        ("top-5", answer.top5),
        ("top-1 of the original", original and original.top1),
        ("top-5 of the original", original and original.top5),
        ("same best class as the original", answer.agreement),
        ("shared among the five best", answer.top5_overlap),
    )
    for name, share in rows:
        if share is not None:
            table.add_row(name, f"{share.value:.2%}", f"{share.low:.2%} – {share.high:.2%}")
    console.print(table)
    if answer.error is not None:
        console.print(f"error of the scores: {answer.error:.3g} of the original's")
    if answer.original_classes is not None:
        console.print(f"classes that the original answers: {answer.original_classes}")
    images = answer.images
    known = f"labels from {images.labels}, {images.classes} classes" if images.labels != "none" else "no labels: agreement only"
    console.print(f"{images.count} images; {known}; weights: {answer.weights.source}; {' and '.join(answer.precisions)}")
