"""Agreement of a bundle's files, run in their planned precisions by the scheduler's delegates, with the original."""

import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from predictors.errors import StretchError, UsageError
from scheduler.bundle.agreement import BundleAgreement
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import Manifest, SubgraphEntry
from scheduler.cores import available_cores
from scheduler.formats.onnx import open_onnx
from scheduler.placement.mapping import host_of, is_integer_only
from scheduler.progress import Progress, silent
from scheduler.runtime.session import Session
from stretch.evaluation.measure import Net, evaluate
from stretch.export.lowering import PrecisionLowering
from stretch.export.precision import planned_precision

Array = NDArray[Any]

#: Seconds after which no further image is started, because a simulator may take seconds per image.
SECONDS = 60.0


def measure_files(
    bundle: Bundle,
    original: Net,
    fitted: Sequence[Array],
    held_back: Sequence[Array],
    mapping: Mapping[str, str] | None = None,
    *,
    seconds: float = SECONDS,
    progress: Progress = silent,
) -> tuple[BundleAgreement, dict[str, str], int]:
    """Convert a bundle's subgraphs to their planned precisions and compare the result with the original.

    Ranges of int8 come from `fitted`, as in `stretch export`; images for the comparison are not used for them.
    ONNX Runtime on the CPU runs the processors that the mapping does not name. It computes int8 in integers and rounds
    to fp16 between operators. Simulators run only if the mapping names them.

    Args:
        fitted: Images for the ranges, of the input's shape.
        mapping: Delegates by processor, such as ``{"dsp": "dsp"}`` for the DSP's simulator.

    Returns:
        The agreement with the original, the subgraphs that stayed in fp32 although another precision is planned, with the reason,
        and the number of images that were left out for lack of time.
    """
    manifest = bundle.manifest
    kept: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="nn-stretch-") as folder:
        lowered = _lower_bundle(bundle, Path(folder), fitted, kept, progress)
        progress("run")
        with Session(lowered, _complete_mapping(lowered.manifest, mapping or {})) as session:
            if not session.computes:
                raise UsageError("a delegate of the mapping computes nothing, so there is nothing to compare", "map to one that computes")
            outputs = manifest.model.output_shape
            ranked = len(outputs) == 2 and outputs[1] > 1
            evaluation = evaluate(session.run, original, _within(held_back, seconds), outputs[1] if ranked else 1)
            delegates = {sub.processor: session.subgraph_placements[sub.name].delegate for sub in lowered.manifest.subgraphs}
    share, overlap = (evaluation.agreement, evaluation.top5_overlap) if ranked else (None, None)
    assert evaluation.error is not None  # the original was given
    agreement = BundleAgreement(
        value=share.value if share else None,
        low=share.low if share else None,
        high=share.high if share else None,
        top5_overlap=overlap.value if overlap else None,
        error=evaluation.error,
        images=evaluation.images,
        classes=len(evaluation.sums.classes) or None if ranked else None,
        precisions=_precisions(lowered.manifest),
        delegates=delegates,
    )
    return agreement, kept, len(held_back) - evaluation.images


def _lower_bundle(bundle: Bundle, folder: Path, fitted: Sequence[Array], kept: dict[str, str], progress: Progress) -> Bundle:
    """Write the bundle to a folder with its subgraphs in their planned precisions; those that cannot be converted are added to `kept`."""
    manifest = bundle.manifest
    precision = planned_precision(manifest)
    chosen = {sub.name: precision[sub.processor] for sub in manifest.subgraphs if precision[sub.processor] not in ("fp32", sub.precision)}
    lowering = PrecisionLowering(bundle, chosen, fitted, progress)
    kept.update(lowering.kept)
    entries: list[SubgraphEntry] = []
    for sub in manifest.subgraphs:
        file = folder / f"{len(entries):03d}.onnx"
        now = msgspec.structs.replace(sub, file=file.name)
        if sub.name in lowering.chosen:
            progress(sub.name)
            try:
                lowered = lowering.lower(sub, layers=False)
            except StretchError as error:
                kept[sub.name] = error.message
            else:
                lowering.accept(lowered)
                file.write_bytes(lowered.model.SerializeToString())
                now = msgspec.structs.replace(now, precision=lowered.precision)
        if not file.exists():
            _copy(bundle, sub.file, file)
        if sub.name in kept and is_integer_only(sub.processor):
            now = msgspec.structs.replace(now, processor=host_of(manifest))
        entries.append(now)
    return replace(bundle, path=folder, manifest=msgspec.structs.replace(manifest, subgraphs=tuple(entries), contexts={}), folder=None)


def _copy(bundle: Bundle, name: str, file: Path) -> None:
    """Copy a subgraph's file and the weights that are stored outside it."""
    shutil.copyfile(bundle.file(name), file)
    for location in open_onnx(file).external:
        if not file.with_name(location).exists():
            shutil.copyfile(bundle.file(name).with_name(location), file.with_name(location))


def _complete_mapping(manifest: Manifest, mapping: Mapping[str, str]) -> dict[str, str]:
    """Complete the mapping with CPU cores, which are the fastest way to compute any precision, for all other processors."""
    cores = available_cores()
    used = dict.fromkeys(sub.processor for sub in manifest.subgraphs)
    return {name: f"cpu{cores[i % len(cores)]}" for i, name in enumerate(used)} | dict(mapping)


def _within(images: Sequence[Array], seconds: float) -> Iterator[tuple[str, Array, None]]:
    """Yield the images without labels until the time is over."""
    start = time.monotonic()
    for number, image in enumerate(images):
        if number and time.monotonic() - start > seconds:
            return
        yield f"image {number}", image, None


def _precisions(manifest: Manifest) -> dict[str, Any]:
    """Return the precisions of each processor's subgraphs."""
    precisions: dict[str, set[str]] = {}
    for sub in manifest.subgraphs:
        precisions.setdefault(sub.processor, set()).add(sub.precision)
    return {name: tuple(sorted(widths)) for name, widths in precisions.items()}
