"""Export a bundle to other precisions: subgraphs are quantised one by one, compared with fp32, and refused or repaired."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec
import onnx

from predictors.errors import InfeasibleError, StretchError, UsageError
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import Manifest, SubgraphEntry
from scheduler.bundle.statements import ROUNDING
from scheduler.placement.mapping import host_of, is_integer_only
from scheduler.progress import Progress, silent
from stretch.export.lowering import CALIBRATION_IMAGES, PARTIAL_SUM_REASON, LoweredSubgraph, PrecisionLowering
from stretch.export.quantize.qdq import METHOD, quantise
from stretch.export.quantize.replay import Array, Loss, Run, least_snr_db, loss, replay, runner, top1_agreement
from stretch.export.repredict import repredict
from stretch.export.staging import (
    WrittenFile,
    check_target,
    copy_files,
    derived_files,
    file_entry,
    stage_folder,
    without_derived,
    write_manifest,
)

HALF_METHOD = "weights and activations rounded to half precision, batch-norms folded"

PRECISIONS = ("fp32", "fp16", "int8")

#: Default minimum cosine of a subgraph or of the output.
MIN_COSINE = 0.99


class ExportedSubgraph(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of one subgraph: its precision with fp32, or TFLite with ONNX."""

    name: str
    processor: str
    precision: str
    cosine: float | None = None  # Cosine of its output with the reference; None if not compared.
    snr_db: float | None = None  # Signal-to-noise ratio, dB; None if not compared.


class ExportAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An exported bundle."""

    bundle: Path
    files: list[WrittenFile]
    format: Literal["onnx", "tflite"]  # ``onnx``, or ``tflite`` if it also has a TFLite file.
    subgraphs: list[ExportedSubgraph]
    checks: dict[str, Any]  # Comparisons, as recorded in the bundle.
    device: str  # Target device.
    predicted: dict[str, Any]  # Predicted times on this device; empty if its profile cannot be read.
    recommended: str  # Recommended network on this device: `branched` or a control.
    warnings: list[str]


@dataclass
class PrecisionExport:
    """Output of `export_precision` or `export_tflite`."""

    manifest: Manifest  # Manifest of the new bundle.
    #: Loss of each int8 or fp16 subgraph, on the inputs of the float subgraph; for a TFLite file, of each signature against its ONNX
    #: file, and of the ``output`` of all in sequence.
    losses: dict[str, Loss]
    kept: dict[str, str] = field(default_factory=dict)  # Subgraphs that stay in fp32 because of their loss, with the reason.
    moved: dict[str, str] = field(default_factory=dict)  # New processors of moved subgraphs.


@dataclass(frozen=True)
class Acceptance:
    """Accepted losses, and the treatment of larger ones."""

    min_cosine: float = MIN_COSINE  # Minimum cosine with fp32 of the outputs of each changed subgraph and of the model.
    repair: bool = False  # Keep subgraphs below it in fp32 instead of failing.

    def refuse_unless_repaired(self, subject: str, lost: Loss) -> None:
        """Refuse a larger loss unless such subgraphs may stay in fp32."""
        if self.repair:
            return
        feasible = f"`--min-cosine {max(0.0, lost.cosine - 0.0005):.3f}` might accept it, " if lost.cosine > 0.5 else ""
        raise InfeasibleError(
            f"{subject}, at least {self.min_cosine} and {least_snr_db(self.min_cosine):.1f} dB are required",
            f"{feasible}`--fp32-fallback` keeps the subgraphs with the largest loss in fp32, and more or other calibration images may help",
        )


DEFAULT_ACCEPTANCE = Acceptance()


def export_precision(
    bundle: Bundle,
    out: Path,
    precision: Mapping[str, str],
    images: Sequence[Array],
    images_source: str,
    acceptance: Acceptance = DEFAULT_ACCEPTANCE,
    progress: Progress = silent,
) -> PrecisionExport:
    """Write a copy of a bundle with some processors' subgraphs in int8 or fp16.

    Args:
        bundle: An fp32 bundle.
        precision: ``fp32``, ``fp16`` or ``int8`` by processor; other processors do not change.
    """
    manifest = bundle.manifest
    chosen = _changed_precisions(manifest, precision)
    check_target(out, bundle)
    lowering = PrecisionLowering(bundle, chosen, images, progress)
    candidates: dict[str, LoweredSubgraph] = {}
    kept = dict(lowering.kept)
    for sub in manifest.subgraphs:
        if sub.name in kept:
            _refuse_partial_sum(sub, acceptance.repair)
        if sub.name not in lowering.chosen:
            continue
        progress(sub.name)
        candidate = lowering.lower(sub)
        if candidate.loss.exceeds(acceptance.min_cosine):
            reason = _snr_text(candidate.loss)
            acceptance.refuse_unless_repaired(f"subgraph `{sub.name}` in {candidate.precision} has {reason}", candidate.loss)
            kept[sub.name] = reason
        else:
            candidates[sub.name] = candidate
            lowering.accept(candidate)
    progress("comparison")
    whole = _agreeing(manifest, lowering.floats, candidates, kept, images, acceptance)
    # On processors without floating point, subgraphs that are not int8 move to the host.
    moved = {sub.name: host_of(manifest) for sub in manifest.subgraphs if sub.name in kept and is_integer_only(sub.processor)}
    record = {
        "images": {"source": images_source, "count": len(images), "calibration": min(len(images), CALIBRATION_IMAGES)},
        "method": {"int8": METHOD, "fp16": HALF_METHOD},
        "min_cosine": acceptance.min_cosine,
        "min_snr_db": round(least_snr_db(acceptance.min_cosine), 2),
        "reference": "the fp32 subgraphs on ONNX Runtime, int8 and fp16 computed there as the real numbers they represent",
        "subgraphs": {name: _record(candidate) for name, candidate in candidates.items()},
        "joins": {join.name: whole[join.output].to_json() for join in manifest.joins},
        # determines the difference that `stretch run` allows for each tensor
        ROUNDING: {name: round(10 ** (-whole[name].snr_db / 20), 6) for sub in manifest.subgraphs for name in sub.outputs},
        "output": whole["output"].to_json() | {"top1_agreement": whole["top1"]},
        "kept_fp32": kept,
        "moved": moved,
    }
    int8 = any(candidate.precision == "int8" for candidate in candidates.values())
    if int8:
        progress("baselines")
    new_manifest = _write(bundle, out, candidates, moved, record, _int8_controls(bundle, images) if int8 else {})
    return PrecisionExport(new_manifest, {name: candidate.loss for name, candidate in candidates.items()}, kept, moved)


#: Number of images for the ranges of int8 baselines, whose outputs are not used.
_CONTROL_IMAGES = 8


def _int8_controls(bundle: Bundle, images: Sequence[Array]) -> dict[str, onnx.ModelProto]:
    """Return the controls in int8, so that int8 branches also compete with int8 networks; controls that cannot be quantised are left out."""
    quantised: dict[str, onnx.ModelProto] = {}
    for name, file in bundle.manifest.controls.items():
        with suppress(StretchError):
            quantised[name] = quantise(onnx.load(bundle.file(file)), images[:_CONTROL_IMAGES])
    return quantised


def planned_precision(manifest: Manifest) -> dict[str, str]:
    """Return the planned precision of each processor."""
    return {sub.processor: sub.planned_precision for sub in manifest.subgraphs}


def _changed_precisions(manifest: Manifest, precision: Mapping[str, str]) -> dict[str, str]:
    """Return the new precisions of the subgraphs that change."""
    processors = list(dict.fromkeys(sub.processor for sub in manifest.subgraphs))
    for processor, requested in precision.items():
        if processor not in processors:
            raise UsageError(
                f"--precision names the processor `{processor}`, which the bundle does not use", f"the bundle uses {', '.join(processors)}"
            )
        if requested not in PRECISIONS:
            raise UsageError(f"--precision {processor}={requested} is no precision", f"precisions: {', '.join(PRECISIONS)}")
    if set(precision.values()) <= {"fp32"}:
        raise UsageError(
            "--precision asks for no processor in int8 or fp16, so there is nothing to export", "write it as --precision cpu=fp32,dsp=int8"
        )
    for sub in manifest.subgraphs:
        if sub.precision != "fp32" and sub.processor in precision:
            raise StretchError(
                f"subgraph `{sub.name}` is in {sub.precision} already", "export from the fp32 bundle that `stretch branch` wrote"
            )
    return {sub.name: precision[sub.processor] for sub in manifest.subgraphs if precision.get(sub.processor, "fp32") != "fp32"}


def _agreeing(
    manifest: Manifest,
    floats: Mapping[str, Run],
    candidates: dict[str, LoweredSubgraph],
    kept: dict[str, str],
    images: Sequence[Array],
    acceptance: Acceptance,
) -> dict[str, Any]:
    """Compare the output, and move subgraphs with the largest loss from `candidates` to `kept` until it is accepted."""
    while True:
        whole = _losses(manifest, floats, candidates, images)
        if not candidates or not whole["output"].exceeds(acceptance.min_cosine):
            return whole
        worst = min(candidates, key=lambda name: candidates[name].loss.snr_db)
        acceptance.refuse_unless_repaired(
            f"the output with {_describe_precisions(manifest, candidates)} has {_snr_text(whole['output'])}; subgraph `{worst}` loses most",
            whole["output"],
        )
        kept[worst] = f"the output has {_snr_text(whole['output'])} with it"
        del candidates[worst]


def _describe_precisions(manifest: Manifest, candidates: Mapping[str, LoweredSubgraph]) -> str:
    """Return a text such as ``dsp in int8 and gpu in fp16``."""
    precisions = {(sub.processor, candidates[sub.name].precision) for sub in manifest.subgraphs if sub.name in candidates}
    return " and ".join(f"{processor} in {precision}" for processor, precision in sorted(precisions))


def _losses(
    manifest: Manifest, floats: Mapping[str, Run], candidates: Mapping[str, LoweredSubgraph], images: Sequence[Array]
) -> dict[str, Any]:
    """Return the loss of every tensor between subgraphs and of the worst output with the candidates, and the top-1 agreement of a single output."""
    mixed = dict(floats) | {name: runner(candidate.model) for name, candidate in candidates.items()}
    joined = [join.output for join in manifest.joins]
    written = [name for sub in manifest.subgraphs for name in sub.outputs]
    pairs: dict[str, list[Loss]] = {name: [] for name in (*joined, *written, *manifest.outputs)}
    outputs: dict[str, list[tuple[Array, Array]]] = {name: [] for name in manifest.outputs}
    for image in images:
        expected, actual = replay(manifest, floats, image), replay(manifest, mixed, image)
        for name, losses in pairs.items():
            losses.append(loss([(expected[name], actual[name])]))
        for name, compared in outputs.items():
            compared.append((expected[name], actual[name]))
    # only keep the losses, not the tensors
    record: dict[str, Any] = {name: worst_image_loss(losses) for name, losses in pairs.items()}
    record["output"] = worst_image_loss([loss(compared) for compared in outputs.values()])
    classes = len(outputs) == 1 and len(manifest.model.output_shape) == 2
    record["top1"] = top1_agreement(next(iter(outputs.values()))) if classes else None
    return record


def worst_image_loss(losses: Sequence[Loss]) -> Loss:
    """Return the lowest cosine and the lowest signal-to-noise ratio of several images."""
    return Loss(min(loss.cosine for loss in losses), min(loss.snr_db for loss in losses))


def _refuse_partial_sum(sub: SubgraphEntry, repair: bool) -> None:
    """Refuse partial sums on processors without floating point."""
    if is_integer_only(sub.processor) and not repair:
        raise InfeasibleError(
            f"subgraph `{sub.name}` cannot be quantised: {PARTIAL_SUM_REASON}, and {sub.processor} supports int8 only",
            f"divide segment `{sub.segment}` otherwise, or move it to the host in fp32 with `--fp32-fallback`",
        )


def _snr_text(lost: Loss) -> str:
    return f"a cosine of {lost.cosine:.4f} and {lost.snr_db:.1f} dB with fp32"


def _record(candidate: LoweredSubgraph) -> dict[str, Any]:
    scales: dict[str, Any] = {}
    if candidate.edges is not None:
        for side, quantised_edges in zip(("input", "output"), candidate.edges, strict=True):
            quants = {name: {"scale": quant.scale, "zero_point": quant.zero_point} for name, quant in quantised_edges.items()}
            scales |= {side: next(iter(quants.values()))} if len(quants) == 1 else {f"{side}s": quants}
    return {
        "precision": candidate.precision,
        **candidate.loss.to_json(),
        **scales,
        "layers": {name: layer_loss.to_json() for name, layer_loss in candidate.layers.items()},
    }


def _write(
    bundle: Bundle,
    out: Path,
    candidates: Mapping[str, LoweredSubgraph],
    moved: Mapping[str, str],
    record: dict[str, Any],
    controls: Mapping[str, onnx.ModelProto],
) -> Manifest:
    """Write the new folder with the changed files, without files that were compiled or converted from the old files."""
    manifest = bundle.manifest
    entries = tuple(
        msgspec.structs.replace(
            sub,
            precision=candidates[sub.name].precision if sub.name in candidates else sub.precision,
            processor=moved.get(sub.name, sub.processor),
        )
        for sub in manifest.subgraphs
    )
    replaced = {sub.file: candidates[sub.name].model for sub in manifest.subgraphs if sub.name in candidates}
    int8_controls = {name: f"{name}_int8.onnx" for name in controls}
    replaced |= {int8_controls[name]: model for name, model in controls.items()}
    with stage_folder(out) as folder:
        kept = copy_files(bundle, folder, leave={*replaced, *derived_files(manifest)})
        for name, model in replaced.items():
            (folder / name).write_bytes(model.SerializeToString())
        files = {
            name: kept[name] if name in kept else file_entry(folder / name)
            for name in {**manifest.files, **replaced}
            if name in kept or name in replaced
        }
        new_manifest = without_derived(manifest)
        checks = new_manifest.checks | {"precision": record}
        new_manifest = msgspec.structs.replace(new_manifest, subgraphs=entries, files=files, checks=checks, int8_controls=int8_controls)
        if new_manifest.agreement is not None:
            # it was measured on the old files
            new_manifest = msgspec.structs.replace(new_manifest, agreement=msgspec.structs.replace(new_manifest.agreement, bundle=None))
        new_manifest = repredict(new_manifest, lambda name: folder / name)
        write_manifest(folder, new_manifest)
    return new_manifest
