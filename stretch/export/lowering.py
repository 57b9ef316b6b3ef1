"""Lowering a bundle's subgraphs to int8 or fp16: calibrated on images, quantised or rounded, compared with fp32."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import onnx
from numpy.typing import NDArray

from predictors.errors import StretchError
from scheduler.bundle.load import Bundle
from scheduler.bundle.manifest import Manifest, SubgraphEntry
from scheduler.bundle.rows import cut
from scheduler.formats.int8_edges import Edge, edges
from scheduler.progress import Progress
from stretch.export import channels
from stretch.export.bands import band_of, whole_of
from stretch.export.channels import Scales, in_scales, is_divided, scales_of
from stretch.quantize.compare import Loss, loss
from stretch.quantize.half import to_half
from stretch.quantize.layers import layer_losses
from stretch.quantize.qdq import quantise
from stretch.quantize.replay import Run, replay, runner, several

Array = NDArray[Any]

#: Property of a float subgraph: trained int8 scale and zero point of each tensor, as JSON.
RANGES = "stretch.ranges"

_Scale = Annotated[float, msgspec.Meta(gt=0, le=1e30)]
_Zero = Annotated[int, msgspec.Meta(ge=0, le=255)]

#: Join of bands of rows.
BANDS = "rows"

#: Number of images for ranges; more rarely widen them.
CALIBRATION_IMAGES = 64

#: Memory for calibration inputs, in bytes.
CALIBRATION_BYTES = 2 << 30

#: Number of images for the comparison of layers, which stores every layer's output.
LAYER_IMAGES = 4


@dataclass
class Lowered:
    """A subgraph in another precision, and its loss."""

    precision: str  # ``int8`` or ``fp16``.
    model: onnx.ModelProto
    edges: tuple[dict[str, Edge], dict[str, Edge]] | None  # Scales of its int8 inputs and outputs; None in fp16.
    loss: Loss  # Of its outputs, on the inputs of the float subgraph.
    layers: dict[str, Loss]  # By layer; empty if not requested.


class Lowering:
    """Lowers the subgraphs of an fp32 bundle to other precisions, in their order.

    Args:
        bundle: An fp32 bundle.
        chosen: New precisions by subgraph.
        images: Representative inputs of the model.
        progress: Called during calibration.

    Attributes:
        floats: Runs each subgraph in fp32.
    """

    def __init__(self, bundle: Bundle, chosen: Mapping[str, str], images: Sequence[Array], progress: Progress) -> None:
        self.bundle, self.chosen = bundle, dict(chosen)
        self.floats = {sub.name: runner(str(bundle.file(sub.file))) for sub in bundle.manifest.subgraphs}
        self._samples = _samples(bundle.manifest, self.floats, _wholes(bundle), self.chosen, images, progress)
        self._handed: Scales = {}

    def lower(self, sub: SubgraphEntry, *, layers: bool = True) -> Lowered:
        """Lower one of the chosen subgraphs; may be called once for each.

        Args:
            sub: The subgraph; a portion comes after the portions whose outputs it reads.

        Raises:
            StretchError: If it cannot be quantised, or a weight is too large for fp16.
        """
        reads, writes = self._samples.pop(sub.name)
        model = onnx.load(self.bundle.file(sub.file))
        precision = self.chosen[sub.name]
        lowered = to_half(model) if precision != "int8" else self._int8(sub, model, reads)
        run = runner(lowered)
        inputs = [
            tuple(np.ascontiguousarray(cut(x, sub.rows.get(name))) for name, x in zip(sub.inputs, sample, strict=True)) for sample in reads
        ]
        lost = loss(
            pair for sample, expected in zip(inputs, writes, strict=True) for pair in zip(expected, several(run(*sample)), strict=True)
        )
        known = edges(lowered) if precision == "int8" else None
        return Lowered(precision, lowered, known, lost, layer_losses(model, lowered, inputs[:LAYER_IMAGES]) if layers else {})

    def accept(self, lowered: Lowered) -> None:
        """Let later portions of the segment read this one's outputs in their int8 scale."""
        if lowered.edges is not None:
            self._handed |= {name: (np.float32(edge.scale), np.uint8(edge.zero_point)) for name, edge in lowered.edges[1].items()}

    def _int8(self, sub: SubgraphEntry, model: onnx.ModelProto, reads: list[tuple[Array, ...]]) -> onnx.ModelProto:
        manifest = self.bundle.manifest
        if is_band(manifest, sub):
            # all bands have the scales of the whole segment
            return band_of(quantise(_whole(self.bundle, sub), reads), model)
        if is_divided(manifest, sub):
            scales = scales_of(quantise(_whole(self.bundle, sub), reads))
            return in_scales(quantise(model, reads, scales), scales)
        # outputs of another portion keep their int8 scale
        within = {name for other in manifest.subgraphs if other.segment == sub.segment for name in other.outputs}
        handed = {name: scale for name, scale in self._handed.items() if name in within and name in sub.inputs}
        return quantise(model, reads, read_ranges(model, self.bundle.file(sub.file)) | handed)


def stated_ranges(ranges: Mapping[str, tuple[float, int]]) -> dict[str, str]:
    """File properties with the trained ranges of a subgraph, if any."""
    return {RANGES: msgspec.json.encode(ranges).decode()} if ranges else {}


def read_ranges(model: onnx.ModelProto, file: Path) -> Scales:
    """Trained scales and zero points in a subgraph's float file."""
    text = next((entry.value for entry in model.metadata_props if entry.key == RANGES), "{}")
    try:
        ranges = msgspec.json.decode(text, type=dict[str, tuple[_Scale, _Zero]])
    except msgspec.MsgspecError as error:
        raise StretchError(f"{file} states no scales in `{RANGES}`: {error}", "write the bundle again with `stretch extract`") from error
    return {name: (np.float32(scale), np.uint8(zero)) for name, (scale, zero) in ranges.items()}


def is_band(manifest: Manifest, sub: SubgraphEntry) -> bool:
    """Whether a subgraph computes a band of rows of its segment."""
    return any(join.kind == BANDS and sub.outputs[0] in join.inputs for join in manifest.joins)


def _samples(
    manifest: Manifest,
    floats: Mapping[str, Run],
    wholes: Mapping[str, Run],
    chosen: Mapping[str, str],
    images: Sequence[Array],
    progress: Progress,
) -> dict[str, tuple[list[tuple[Array, ...]], list[tuple[Array, ...]]]]:
    """Inputs (for a band with all rows) and fp32 outputs of each chosen subgraph, for as many images as memory allows."""
    samples: dict[str, tuple[list[tuple[Array, ...]], list[tuple[Array, ...]]]] = {name: ([], []) for name in chosen}
    bands = {name for join in manifest.joins if join.segment in wholes for name in join.inputs}
    used = 0
    for image in images[:CALIBRATION_IMAGES]:
        progress("calibration")
        tensors = replay(manifest, floats, image, wholes)
        for sub in manifest.subgraphs:
            if sub.name in chosen:
                samples[sub.name][0].append(tuple(tensors[name] for name in sub.inputs))
                samples[sub.name][1].append(tuple(tensors[name] for name in sub.outputs))
        used += sum(tensor.nbytes for name, tensor in tensors.items() if name not in bands)  # which lie in the whole
        if used > CALIBRATION_BYTES:
            break
    return samples


def _wholes(bundle: Bundle) -> dict[str, Run]:
    """Runs each segment in bands or output channels as a whole."""
    wholes: dict[str, Run] = {}
    for sub in bundle.manifest.subgraphs:
        if sub.segment not in wholes and (is_band(bundle.manifest, sub) or is_divided(bundle.manifest, sub)):
            wholes[sub.segment] = runner(_whole(bundle, sub))
    return wholes


def _whole(bundle: Bundle, band: SubgraphEntry) -> onnx.ModelProto:
    """The whole segment of a band or of a branch of output channels."""
    if is_divided(bundle.manifest, band):
        return channels.whole_of(bundle, band)
    file = bundle.file(band.file)
    shape = next(tensor.shape for tensor in bundle.manifest.tensors if tensor.name == band.input)
    return whole_of(onnx.load(file), shape, file)
