"""`stretch evaluate`: accuracy of a bundle on images, or agreement with the original if there are no labels."""

from typing import TYPE_CHECKING

from stretch.api.parameters import BundleFolder
from stretch.api.verbs import EvaluatedImages, EvaluateOptions
from stretch.api.verbs import evaluate as evaluate_bundle
from stretch.cli.output import Output

if TYPE_CHECKING:
    from stretch.evaluation.measure import EvaluateAnswer
    from stretch.report.html.page import Page


def evaluate(out: Output, bundle: BundleFolder, images: EvaluatedImages, options: EvaluateOptions) -> None:
    """Measure a bundle's accuracy on images, and its agreement with the original."""
    with out.progress("evaluating") as step:
        answer = evaluate_bundle(bundle, images, options, progress=step)
    out.show(answer, _page)


def _page(answer: "EvaluateAnswer") -> "Page":
    from stretch.report.html.page import Grid, Page, Section

    original = answer.original
    shares = (
        ("top-1", answer.top1),
        ("top-5", answer.top5),
        ("top-1 of the original", None if original is None else original.top1),
        ("top-5 of the original", None if original is None else original.top5),
        ("same best class as the original", answer.agreement),
        ("shared among the five best", answer.top5_overlap),
    )
    rows = [(name, f"{share.value:.2%}", f"{share.low:.2%} – {share.high:.2%}") for name, share in shares if share is not None]
    images = answer.images
    known = f"labels from {images.labels}, {images.classes} classes" if images.labels != "none" else "no labels: agreement only"
    notes = [f"{images.count} images; {known}; weights: {answer.weights.source}; {' and '.join(answer.precisions)}"]
    if answer.original_classes is not None:
        notes.insert(0, f"classes that the original answers: {answer.original_classes}")
    if answer.error is not None:
        notes.insert(0, f"error of the scores: {answer.error:.3g} of the original's")
    grids = [Grid("Measured on images", ("measured", "share", "95 % interval"), rows, right=(1, 2))] if rows else []
    return Page(title=f"{answer.model} on images", lead=[], sections=[Section("shares", "Shares", (), grids)], notes=notes)
