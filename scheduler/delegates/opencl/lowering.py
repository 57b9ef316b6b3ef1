"""State of the lowering from nodes to kernel launches, which chooses layouts and names memory; and helpers of the templates."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from predictors.in_place import TensorPlacement, find_joined, tensor_placements
from scheduler.delegates.base import Array, UnableError
from scheduler.delegates.opencl.device import Traits
from scheduler.delegates.opencl.graph import NONE, FusedActivation, KernelGraph, KernelNode
from scheduler.delegates.opencl.launch import (
    TEXEL,
    Argument,
    Blocking,
    Defines,
    Launch,
    Shape,
    Size,
    TensorArgument,
    TensorView,
    image_shape,
    row_major_view,
)
from scheduler.delegates.opencl.schedule import Options, Schedules


@dataclass
class KernelLowering:
    """State of the lowering from nodes to launches; templates read tensors from it and append launches."""

    graph: KernelGraph  # Graph to lower.
    blocking: Blocking  # Layout of blocked tensors.
    traits: Traits  # Traits of the device.
    options: Options  # Options of the compilation.
    schedules: Schedules  # Tuned schedules.

    def __post_init__(self) -> None:
        """Find the tensors that are written directly into a concatenation."""
        self.launches: list[Launch] = []
        self._blocked: dict[str, TensorView] = {}
        self._row_major: dict[str, TensorView] = {
            name: row_major_view(name, self.graph.shapes[name], "input") for name in self.graph.inputs
        }
        self._slices = concat_slices(self.graph, self.blocking)

    def shape(self, name: str) -> Shape:
        """Return the shape of a tensor."""
        return self.graph.shapes[name]

    def blocked(self, name: str) -> TensorView:
        """Return a tensor in blocks, converted if it exists only in row-major order."""
        if name not in self._blocked:
            shape = self.shape(name)
            if len(shape) not in (2, 4):
                raise UnableError(f"`{name}` has rank {len(shape)}, blocks of channels need rank 2 or 4")
            target = self.blocking.blocked(f"{name}:blocked", shape)
            self.move(self._row_major[name], target, name)
            self._blocked[name] = target
        return self._blocked[name]

    def row_major(self, name: str) -> TensorView:
        """Return a tensor in row-major order, converted if it exists only in blocks."""
        if name not in self._row_major:
            target = row_major_view(f"{name}:plain", self.shape(name))
            self.move(self._blocked[name], target, name)
            self._row_major[name] = target
        return self._row_major[name]

    def is_row_major_only(self, name: str) -> bool:
        """Return whether a tensor exists in row-major order but not in blocks."""
        return name in self._row_major and name not in self._blocked

    def result(self, name: str, *, allow_row_major: bool = False) -> TensorView:
        """Return memory for a kernel's result: blocks, the caller's memory if the kernel can write it, or a slice of a concatenation."""
        if allow_row_major and name in self.graph.outputs and not any(name in node.inputs for node in self.graph.nodes):
            return self.row_major_result(name)
        if name in self._slices:
            parent, first = self._slices[name]
            if parent not in self._blocked:
                self._blocked[parent] = self.result(parent)
            view = self._blocked[parent].channels(first, self.shape(name)[1])
        else:
            view = self.blocking.blocked(name, self.shape(name))
        self._blocked[name] = view
        return view

    def row_major_result(self, name: str) -> TensorView:
        """Return row-major memory for a kernel's result; the caller's memory if `name` is an output."""
        view = row_major_view(name, self.shape(name), "output" if name in self.graph.outputs else "device")
        self._row_major[name] = view
        return view

    def alias(self, name: str, view: TensorView) -> None:
        """Make `name` a view of another tensor, without a launch."""
        (self._row_major if view.is_row_major else self._blocked)[name] = view

    def joined_view(self, parts: Sequence[str]) -> TensorView | None:
        """Return the concatenation of tensors that are already adjacent in a larger tensor, else None."""
        placement = find_joined(parts, {name: self.shape(name)[1] for name in parts}, self._slices)
        return placement and self._blocked[placement[0]].channels(placement[1], sum(self.shape(name)[1] for name in parts))

    def is_slice(self, name: str) -> bool:
        """Return whether a tensor is written as a slice of a concatenation and needs no copy."""
        return name in self._slices

    def constant(self, name: str) -> Array:
        """Return a constant's values.

        Raises:
            UnableError: If the tensor is not constant.
        """
        if name not in self.graph.constants:
            raise UnableError(f"`{name}` is computed, the kernels take a constant in its place")
        return self.graph.constants[name]

    @property
    def native(self) -> bool:
        """Whether kernels compute in half precision: the device and the storage of tensors have it, unless the option says otherwise."""
        arithmetic = self.options.arithmetic
        return self.blocking.half and (self.traits.fp16 if arithmetic == "auto" else arithmetic == "half")

    def add(self, launch: Launch) -> None:
        """Append a launch, with a work-group within the device's limits."""
        launch = launch.with_legal_local(self.traits.max_local, self.traits.max_sizes)
        self.launches.append(replace(launch, defines=(*launch.defines, ("NATIVE", str(int(self.native))))))

    def move(
        self,
        source: TensorView,
        target: TensorView,
        name: str,
        *,
        start: tuple[int, int, int, int] = (0, 0, 0, 0),
        scale: tuple[int, int, int, int] = (1, 1, 1, 1),
        fill: float = 0.0,
        pad_lanes: bool = True,
    ) -> None:
        """Add a launch that copies elements one by one, with mapped indices."""
        n, channels, height, width = target.image
        _, c, h, w = source.image
        block = target.lanes if not target.is_row_major else source.lanes
        grid_macros, grid, local = light_grid(self.traits, -(-channels // block), height * width, n)
        last = 0 if target.is_row_major or not pad_lanes else block - 1
        macros = defines(
            XPLAIN=source.is_row_major, YPLAIN=target.is_row_major, BX=source.lanes, BY=target.lanes, BLOCK=block, LAST=last, **grid_macros
        )
        arguments = (
            TensorArgument(source),
            TensorArgument(target, written=True),
            (c, h, w, 0),
            (channels, height, width, 0),
            start,
            scale,
            float(fill),
        )
        description = f"{'x'.join(map(str, source.shape))}{':plain' if source.is_row_major else ''}->{'x'.join(map(str, target.shape))}{':plain' if target.is_row_major else ''}"
        self.add(Launch("move", name, macros, arguments, grid, description, local=local))

    def existing_row_major(self, name: str) -> TensorView | None:
        """Return a tensor's row-major memory, or None if it has none yet."""
        return self._row_major.get(name)


def concat_slices(graph: KernelGraph, blocking: Blocking) -> dict[str, TensorPlacement]:
    """Return the tensors that can be written directly into a concatenation of channels, with the result's name and the first channel.

    A part must start at a block, and the node of this graph that writes it must
    write it there only. If a tensor is in several concatenations, the last one holds it.
    """
    views = ("Slice", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Concat")
    writable = {node.output for node in graph.nodes if node.op not in views} - set(graph.outputs)
    concatenations = [
        (node.output, node.inputs)
        for node in graph.nodes
        if node.op == "Concat" and len(graph.shapes[node.output]) == 4 and node.attrs["axis"] % 4 == 1
    ]
    channels = {name: image_shape(graph.shapes[name])[1] for _, parts in concatenations for name in parts}
    return tensor_placements(concatenations, channels, writable, blocking.lanes)


def as_float(values: Array) -> Array:
    """Return constants as contiguous float32."""
    return np.ascontiguousarray(values, np.float32)


#: Work-group of kernels with little work per work-item on a CPU: PoCL loops over it, which costs less than one group per work-item.
CPU_LIGHT = (4, 16, 1)
#: Work-group of depthwise kernels on a CPU, the fastest of four on a Zen 4.
CPU_DEPTHWISE = (4, 4, 1)


def defines(**macros: int | str) -> Defines:
    """Return macros in a fixed order, so that equal sets of macros are built once."""
    return tuple(sorted((name, str(int(value) if isinstance(value, bool) else value)) for name, value in macros.items()))


def switches(state: KernelLowering) -> dict[str, int]:
    """Return the macros of the options that change the computation of a convolution, but not its result."""
    options = state.options
    return {"REGIONS": options.borders == "regions", "MERGED": options.loads == "merged", "UNROLL": options.unroll}


def reads_vectors(state: KernelLowering) -> bool:
    """Return whether convolutions load a block of inputs as a vector and split it; PoCL is faster with one load of a float per lane."""
    access = state.options.access
    return state.blocking.half or not state.traits.cpu if access == "auto" else access == "vector"


def activation_arguments(activation: FusedActivation) -> tuple[Argument, Argument]:
    """Return the two arguments of the kernels' macro `ACT_ARGS`."""
    return float(activation.a), float(activation.b)


def activation(node: KernelNode) -> FusedActivation:
    """Return the activation at the end of a node."""
    kind = node.attrs.get("activation", NONE)
    return kind if isinstance(kind, FusedActivation) else NONE


def light_grid(traits: Traits, blocks: int, pixels: int, images: int) -> tuple[dict[str, int], Size, Size]:
    """Return macros, grid and work-group of a kernel with one work-item per pixel and block of channels.

    Neighbouring work-items read adjacent memory: blocks of one pixel, or pixels of one block.
    """
    first = int(traits.blocks_inside)
    grid = (blocks, pixels, images) if first else (pixels, blocks, images)
    return {"CHANNELS_FIRST": first}, grid, CPU_LIGHT if traits.cpu else fit_local(traits, grid)


def fit_local(traits: Traits, grid: Size, channels_first: int = 1) -> Size:
    """Return a work-group for a grid: the device's own for a large grid, else with a first side no longer than the grid's."""
    if traits.cpu:
        channels, pixels, images = traits.local
        return (channels, pixels, images) if channels_first else (pixels, channels, images)
    first = min(traits.local[0], _power(grid[0]))
    return (first, min(prod(traits.local) // first, _power(grid[1])), 1)


def _power(size: int) -> int:
    """Return the smallest power of 2 that is at least `size`."""
    return int(1 << (size - 1).bit_length())


def line_local(traits: Traits) -> Size:
    """Return the work-group of a kernel with a one-dimensional grid."""
    return (16,) if traits.cpu else (min(64, traits.max_local),)


def describe(node: KernelNode, *shapes: tuple[int, ...]) -> str:
    """Return an operator and its shapes in words."""
    return f"{node.op.lower()} " + " ".join("x".join(map(str, shape)) for shape in shapes)


def image_power(state: KernelLowering, weights: Array) -> int:
    """Return the exponent of the power of 2 that is the width of an image of these weights; 0 if the device has no image that large."""
    width, height, _ = state.traits.images
    texels = weights.size // TEXEL
    if state.blocking.lanes != TEXEL or width < 2:
        return 0
    power = min(width.bit_length() - 1, max(1, (texels - 1).bit_length()))
    return power if texels <= height << power else 0


def reads_image(state: KernelLowering, x: TensorView) -> bool:
    """Return whether a kernel reads an input as an image, provided its memory is not too large for an image."""
    return state.blocking.lanes == x.lanes == TEXEL and state.traits.images[2] > 0


def strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the row-major strides of a shape, in elements."""
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
