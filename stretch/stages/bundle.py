"""Last stage: writing a bundle with the metadata of its plan."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from scheduler.bundle.agreement import Agreement
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import Manifest
from scheduler.bundle.preprocessing import Preprocessing
from scheduler.progress import Progress, silent
from stretch import __version__
from stretch.capture import Captured
from stretch.export.bundle import export_bundle
from stretch.export.facts import bundle_facts
from stretch.planning.result import PlanResult
from stretch.transform import BranchedModel


def write_bundle(
    folder: Path,
    planned: PlanResult,
    original: Captured,
    networks: tuple[BranchedModel, BranchedModel | None],
    weights: tuple[str, str],
    preprocessing: Preprocessing | None,
    *,
    controls: bool = True,
    agreement: Agreement | None = None,
    agreeing: Callable[[Bundle], Agreement | None] | None = None,
    ranges: Mapping[str, Mapping[str, tuple[float, int]]] | None = None,
    calibrated_on: tuple[str, ...] = (),
    progress: Progress = silent,
) -> Manifest:
    """Write a bundle, each file checked against torch.

    Args:
        folder: Of the bundle; an earlier bundle there is replaced in one step.
        weights: Source (``default``, ``random``, ``file``, ``given`` or ``trained``) and which.
        preprocessing: What a picture goes through before the model reads it; None: ImageNet's.
        agreeing: Gives it from the complete files in place of `agreement`.
        ranges: Scale and zero point, by subgraph and tensor, that the network was trained with and that int8 is to have.
        calibrated_on: Fingerprints of the images that weights were fitted to.
    """
    facts = replace(
        bundle_facts(planned, planned.device, *weights, preprocessing),
        agreement=agreement,
        ranges=ranges or {},
        calibrated_on=calibrated_on,
    )
    model, sequential = networks

    def tell(what: str) -> None:
        progress(f"export {what}")

    return export_bundle(folder, original, model, sequential, facts, __version__, controls=controls, agreeing=agreeing, progress=tell)
