"""Subgraphs of a bundle in int8 or fp16, one by one: calibrated on images, quantised or rounded, compared with their float form."""

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

#: Property of a float subgraph: scale and zero point of each tensor that it was trained with in int8, as JSON.
RANGES = "stretch.ranges"

_Scale = Annotated[float, msgspec.Meta(gt=0, le=1e30)]
_Zero = Annotated[int, msgspec.Meta(ge=0, le=255)]

#: How subgraphs meet that compute bands of rows.
BANDS = "rows"

#: Images that ranges are taken from; more seldom widen them.
CALIBRATION_IMAGES = 64

#: Memory for what subgraphs read while they are calibrated.
CALIBRATION_BYTES = 2 << 30

#: Images of the comparison layer by layer, which keeps every layer's output.
LAYER_IMAGES = 4


@dataclass
class Lowered:
    """A subgraph in another precision and how it compares."""

    precision: str  # ``int8`` or ``fp16``.
    model: onnx.ModelProto  # The subgraph.
    edges: tuple[dict[str, Edge], dict[str, Edge]] | None  # Scales of what it reads and writes in int8; None in fp16.
    loss: Loss  # Of its outputs, given what its float form reads.
    layers: dict[str, Loss]  # Of each layer; empty where that was not asked for.


class Lowering:
    """An fp32 bundle whose subgraphs are brought into other precisions, in their order.

    Args:
        bundle: An fp32 bundle.
        chosen: Precision of each subgraph that is to change.
        images: What the model will meet, of its input's shape.
        progress: Told of calibration.

    Attributes:
        floats: How each subgraph computes in fp32.
    """

    def __init__(self, bundle: Bundle, chosen: Mapping[str, str], images: Sequence[Array], progress: Progress) -> None:
        self.bundle, self.chosen = bundle, dict(chosen)
        self.floats = {sub.name: runner(str(bundle.file(sub.file))) for sub in bundle.manifest.subgraphs}
        self._samples = _samples(bundle.manifest, self.floats, _wholes(bundle), self.chosen, images, progress)
        self._handed: Scales = {}

    def lower(self, sub: SubgraphEntry, *, layers: bool = True) -> Lowered:
        """One of the chosen subgraphs in its precision; each may be asked for once.

        Args:
            sub: The subgraph; one that reads what another portion hands on comes after that one.

        Raises:
            StretchError: If it cannot be quantised, or a weight is too large for fp16.
        """
        reads, writes = self._samples.pop(sub.name)
        model = onnx.load(self.bundle.file(sub.file))
        precision = self.chosen[sub.name]
        made = to_half(model) if precision != "int8" else self._int8(sub, model, reads)
        run = runner(made)
        own = [tuple(np.ascontiguousarray(cut(x, sub.rows.get(name))) for name, x in zip(sub.inputs, each, strict=True)) for each in reads]
        lost = loss(pair for each, expected in zip(own, writes, strict=True) for pair in zip(expected, several(run(*each)), strict=True))
        known = edges(made) if precision == "int8" else None
        return Lowered(precision, made, known, lost, layer_losses(model, made, own[:LAYER_IMAGES]) if layers else {})

    def accept(self, lowered: Lowered) -> None:
        """Let later portions of the same segment read what this one hands on in the scale that it was rounded in."""
        if lowered.edges is not None:
            self._handed |= {name: (np.float32(edge.scale), np.uint8(edge.zero_point)) for name, edge in lowered.edges[1].items()}

    def _int8(self, sub: SubgraphEntry, model: onnx.ModelProto, reads: list[tuple[Array, ...]]) -> onnx.ModelProto:
        manifest = self.bundle.manifest
        if is_band(manifest, sub):
            # all bands have the scales of the whole, which is calibrated as if nothing had been cut
            return band_of(quantise(_whole(self.bundle, sub), reads), model)
        if is_divided(manifest, sub):
            scales = scales_of(quantise(_whole(self.bundle, sub), reads))
            return in_scales(quantise(model, reads, scales), scales)
        # what another portion of the segment hands on keeps the scale that it was rounded in
        within = {name for other in manifest.subgraphs if other.segment == sub.segment for name in other.outputs}
        handed = {name: scale for name, scale in self._handed.items() if name in within and name in sub.inputs}
        return quantise(model, reads, read_ranges(model, self.bundle.file(sub.file)) | handed)


def stated_ranges(ranges: Mapping[str, tuple[float, int]]) -> dict[str, str]:
    """What the float file of a subgraph states of the ranges that it was trained with; nothing if there are none."""
    return {RANGES: msgspec.json.encode(ranges).decode()} if ranges else {}


def read_ranges(model: onnx.ModelProto, file: Path) -> Scales:
    """Scales and zero points that a subgraph's float file states."""
    text = next((entry.value for entry in model.metadata_props if entry.key == RANGES), "{}")
    try:
        found = msgspec.json.decode(text, type=dict[str, tuple[_Scale, _Zero]])
    except msgspec.MsgspecError as error:
        raise StretchError(f"{file} states no scales in `{RANGES}`: {error}", "write the bundle again with `stretch extract`") from error
    return {name: (np.float32(scale), np.uint8(zero)) for name, (scale, zero) in found.items()}


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
    """What each chosen subgraph reads, a band with all rows, and writes in fp32, for as many images as memory allows."""
    found: dict[str, tuple[list[tuple[Array, ...]], list[tuple[Array, ...]]]] = {name: ([], []) for name in chosen}
    bands = {name for join in manifest.joins if join.segment in wholes for name in join.inputs}
    used = 0
    for image in images[:CALIBRATION_IMAGES]:
        progress("calibration")
        tensors = replay(manifest, floats, image, wholes)
        for sub in manifest.subgraphs:
            if sub.name in chosen:
                found[sub.name][0].append(tuple(tensors[name] for name in sub.inputs))
                found[sub.name][1].append(tuple(tensors[name] for name in sub.outputs))
        used += sum(tensor.nbytes for name, tensor in tensors.items() if name not in bands)  # which lie in the whole
        if used > CALIBRATION_BYTES:
            break
    return found


def _wholes(bundle: Bundle) -> dict[str, Run]:
    """How each segment in bands or in output channels is computed as one."""
    found: dict[str, Run] = {}
    for sub in bundle.manifest.subgraphs:
        if sub.segment not in found and (is_band(bundle.manifest, sub) or is_divided(bundle.manifest, sub)):
            found[sub.segment] = runner(_whole(bundle, sub))
    return found


def _whole(bundle: Bundle, band: SubgraphEntry) -> onnx.ModelProto:
    """The segment that a band is cut from, or that a branch has channels of."""
    if is_divided(bundle.manifest, band):
        return channels.whole_of(bundle, band)
    file = bundle.file(band.file)
    shape = next(tensor.shape for tensor in bundle.manifest.tensors if tensor.name == band.input)
    return whole_of(onnx.load(file), shape, file)
