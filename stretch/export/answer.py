"""Result of an export as plain data, for the JSON and the terminal's table; the fields are the JSON's keys."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from predictors.structs import filled
from scheduler.bundle.manifest import Manifest
from stretch.quantize.replay import Loss

if TYPE_CHECKING:
    from stretch.export.chips import CompiledSignature


class WrittenFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a bundle."""

    file: str  # Its path in the bundle.
    bytes: int  # Its size.
    sha256: str  # Of its bytes.


class ExportedSubgraph(msgspec.Struct, frozen=True, kw_only=True):
    """Comparison of one subgraph: its precision with fp32, or TFLite with ONNX."""

    name: str
    processor: str
    precision: str
    cosine: float | None  # Of its output and the reference; None if not compared.
    snr_db: float | None  # In decibels; None if not compared.


class ExportAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An exported bundle."""

    bundle: Path
    files: list[WrittenFile]
    format: Literal["onnx", "tflite"]  # ``onnx``, or ``tflite`` if it also has a TFLite file.
    subgraphs: list[ExportedSubgraph]
    checks: dict[str, Any]  # Comparisons, as recorded in the bundle.
    device: str  # Target device.
    predicted: dict[str, Any]  # Predicted times on that device; empty if its profile cannot be read.
    recommended: str  # What to run there: `branched` or a control.
    warnings: list[str]


class ChipSubgraph(msgspec.Struct, frozen=True, kw_only=True):
    """Code of one subgraph for one chip, compared with the int8 subgraph."""

    name: str
    chip: str
    cosine: float  # Of both outputs.
    snr_db: float  # In decibels.


class ChipSignature(ChipSubgraph, frozen=True, kw_only=True):
    """Code of one signature of a TFLite file for one chip, compared with the int8 subgraph."""

    operators: int  # Number of compiled operators: all of the signature.


class ChipsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle exported with code for chips."""

    bundle: Path
    files: list[WrittenFile]
    format: Literal["qnn", "tflite"]  # ``qnn`` for one file per subgraph, ``tflite`` for copies of the TFLite file.
    subgraphs: list[ChipSubgraph] | list[ChipSignature]  # Code of each subgraph for each chip.
    checks: dict[str, Any]  # Comparisons, as recorded in the bundle.
    warnings: list[str]


def export_answer(
    folder: Path, form: Literal["onnx", "tflite"], manifest: Manifest, losses: Mapping[str, Loss], warnings: list[str]
) -> ExportAnswer:
    """Summary of an export to other precisions or TFLite.

    Args:
        manifest: The new bundle's description.
    """
    return filled(
        ExportAnswer,
        manifest,
        bundle=folder,
        files=_files(manifest),
        format=form,
        subgraphs=[
            filled(
                ExportedSubgraph,
                sub,
                cosine=losses[sub.name].cosine if sub.name in losses else None,
                snr_db=losses[sub.name].snr_db if sub.name in losses else None,
            )
            for sub in manifest.subgraphs
        ],
        checks=manifest.checks["tflite" if form == "tflite" else "precision"],
        warnings=warnings,
    )


def contexts_answer(folder: Path, manifest: Manifest, losses: Mapping[str, Mapping[str, Loss]], warnings: list[str]) -> ChipsAnswer:
    """Summary of compiled code, one file per subgraph and chip."""
    subgraphs = [
        ChipSubgraph(name=name, chip=chip, cosine=loss.cosine, snr_db=loss.snr_db)
        for chip, subgraph_losses in losses.items()
        for name, loss in subgraph_losses.items()
    ]
    checks = manifest.checks["contexts"]
    return ChipsAnswer(bundle=folder, files=_files(manifest), format="qnn", subgraphs=subgraphs, checks=checks, warnings=warnings)


def aot_answer(
    folder: Path, manifest: Manifest, compiled: "Mapping[str, Mapping[str, CompiledSignature]]", warnings: list[str]
) -> ChipsAnswer:
    """Summary of compiled code, one TFLite file per chip."""
    signatures = [
        ChipSignature(name=name, chip=chip, operators=code.operators, cosine=code.loss.cosine, snr_db=code.loss.snr_db)
        for chip, codes in compiled.items()
        for name, code in codes.items()
    ]
    checks = manifest.checks["aot"]
    return ChipsAnswer(bundle=folder, files=_files(manifest), format="tflite", subgraphs=signatures, checks=checks, warnings=warnings)


def _files(manifest: Manifest) -> list[WrittenFile]:
    return [WrittenFile(file=name, bytes=entry.bytes, sha256=entry.sha256) for name, entry in manifest.files.items()]
