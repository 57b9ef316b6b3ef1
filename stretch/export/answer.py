"""What an export wrote and how it compares, as plain data: JSON and the terminal's table both read these structs, whose fields are the JSON's keys."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from scheduler.bundle.manifest import Manifest
from stretch.quantize.compare import Loss

if TYPE_CHECKING:
    from stretch.export.tflite.aot import Compiled


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a bundle."""

    file: str  # Its path in the bundle.
    bytes: int  # Its size.
    sha256: str  # Of its bytes.


class ExportedSubgraph(msgspec.Struct, frozen=True, kw_only=True):
    """One subgraph with what was compared: another precision with fp32, or TFLite with ONNX."""

    name: str  # Its name.
    processor: str  # Where it runs.
    precision: str  # That it computes in.
    cosine: float | None  # Of its output with what it was compared with; None where it was not compared.
    snr_db: float | None  # Of its output, decibels; None likewise.


class ExportAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that was written again."""

    bundle: Path  # Its folder.
    files: list[WrittenFile]  # Its files.
    format: Literal["onnx", "tflite"]  # ``onnx``, or ``tflite`` where it has a TFLite file beside its ONNX files.
    subgraphs: list[ExportedSubgraph]  # Its subgraphs.
    checks: dict[str, Any]  # What was compared, as the bundle states it.
    device: str  # What it was planned for.
    predicted: dict[str, Any]  # Times on that device, as the bundle states them; empty where its profile cannot be read.
    recommended: str  # What to run there.
    warnings: list[str]  # What a person should know.


class ChipSubgraph(msgspec.Struct, frozen=True, kw_only=True):
    """Code of one subgraph for one chip, compared with the int8 subgraph."""

    name: str  # The subgraph.
    chip: str  # The chip.
    cosine: float  # Of their outputs.
    snr_db: float  # Of its output, decibels.


class ChipSignature(ChipSubgraph, frozen=True, kw_only=True):
    """Code of one signature of a TFLite file for one chip, compared with the int8 subgraph."""

    operators: int  # Operators that became code: all that the signature has.


class ChipsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that was written again with code for chips."""

    bundle: Path  # Its folder.
    files: list[WrittenFile]  # Its files.
    format: Literal["qnn", "tflite"]  # ``qnn`` for a file a subgraph, ``tflite`` for copies of the TFLite file.
    subgraphs: list[ChipSubgraph] | list[ChipSignature]  # Code of each subgraph for each chip.
    checks: dict[str, Any]  # What was compared, as the bundle states it.
    warnings: list[str]  # What a person should know.


def export_answer(
    folder: Path, form: Literal["onnx", "tflite"], manifest: Manifest, losses: Mapping[str, Loss], warnings: list[str]
) -> ExportAnswer:
    """What was written in other precisions or as TFLite, summed up.

    Args:
        manifest: The new bundle's description.
        warnings: What a person should know.
    """
    return ExportAnswer(
        bundle=folder,
        files=_files(manifest),
        format=form,
        subgraphs=[
            ExportedSubgraph(
                name=sub.name,
                processor=sub.processor,
                precision=sub.precision,
                cosine=losses[sub.name].cosine if sub.name in losses else None,
                snr_db=losses[sub.name].snr_db if sub.name in losses else None,
            )
            for sub in manifest.subgraphs
        ],
        checks=manifest.checks["tflite" if form == "tflite" else "precision"],
        device=manifest.device,
        predicted=manifest.predicted,
        recommended=manifest.recommended,
        warnings=warnings,
    )


def contexts_answer(folder: Path, manifest: Manifest, losses: Mapping[str, Mapping[str, Loss]], warnings: list[str]) -> ChipsAnswer:
    """What was compiled, a file a subgraph and chip, summed up.

    Args:
        warnings: What a person should know.
    """
    subgraphs = [
        ChipSubgraph(name=name, chip=chip, cosine=each.cosine, snr_db=each.snr_db)
        for chip, found in losses.items()
        for name, each in found.items()
    ]
    checks = manifest.checks["contexts"]
    return ChipsAnswer(bundle=folder, files=_files(manifest), format="qnn", subgraphs=subgraphs, checks=checks, warnings=warnings)


def aot_answer(folder: Path, manifest: Manifest, compiled: "Mapping[str, Mapping[str, Compiled]]", warnings: list[str]) -> ChipsAnswer:
    """What was compiled, a TFLite file a chip, summed up.

    Args:
        warnings: What a person should know.
    """
    signatures = [
        ChipSignature(name=name, chip=chip, operators=each.operators, cosine=each.loss.cosine, snr_db=each.loss.snr_db)
        for chip, found in compiled.items()
        for name, each in found.items()
    ]
    checks = manifest.checks["aot"]
    return ChipsAnswer(bundle=folder, files=_files(manifest), format="tflite", subgraphs=signatures, checks=checks, warnings=warnings)


def _files(manifest: Manifest) -> list[WrittenFile]:
    return [WrittenFile(file=name, bytes=entry.bytes, sha256=entry.sha256) for name, entry in manifest.files.items()]
