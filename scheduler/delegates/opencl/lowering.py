"""The state of the way from nodes to kernel launches: layouts are chosen and memory is named here."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from predictors.in_place import TensorPlace, places
from scheduler.delegates.base import Array, UnableError
from scheduler.delegates.opencl.device import Traits
from scheduler.delegates.opencl.graph import KernelGraph
from scheduler.delegates.opencl.launch import Launch
from scheduler.delegates.opencl.schedule import Options, Schedules
from scheduler.delegates.opencl.tensors import Blocking, Shape, TensorView, image_shape, plain

#: Kernels index elements with 32-bit integers.
MAX_ELEMENTS = 2**31 - 1


class UnsupportedError(UnableError):
    """An operator that no kernel here computes; the message is the reason."""


@dataclass
class KernelLowering:
    """State of the way from nodes to launches; templates ask it for tensors and append launches."""

    graph: KernelGraph  # What to lower.
    blocking: Blocking  # Of blocked tensors.
    traits: Traits  # Of the device.
    options: Options  # Switches.
    schedules: Schedules  # Tuned schedules.
    mover: "Mover"  # Makes the launch that copies elements between layouts.

    def __post_init__(self) -> None:
        """Find out which tensors lie inside a concatenation."""
        self.launches: list[Launch] = []
        self._blocked: dict[str, TensorView] = {}
        self._plain: dict[str, TensorView] = {name: plain(name, self.graph.shapes[name], "input") for name in self.graph.inputs}
        self._slices = concat_slices(self.graph, self.blocking)
        for name, shape in self.graph.shapes.items():
            if prod(shape) > MAX_ELEMENTS:
                raise UnsupportedError(f"tensor `{name}` has more than {MAX_ELEMENTS} elements, the opencl delegate's limit")

    def shape(self, name: str) -> Shape:
        """Shape of a tensor."""
        return self.graph.shapes[name]

    def blocked(self, name: str) -> TensorView:
        """A tensor in blocks; converts it where it is plain so far."""
        if name not in self._blocked:
            shape = self.shape(name)
            if len(shape) not in (2, 4):
                raise UnsupportedError(f"`{name}` has rank {len(shape)}, blocks of channels need rank 2 or 4")
            target = self.blocking.blocked(f"{name}:blocked", shape)
            self.move(self._plain[name], target, name)
            self._blocked[name] = target
        return self._blocked[name]

    def plain(self, name: str) -> TensorView:
        """A tensor in row-major order; converts it where it is blocked so far."""
        if name not in self._plain:
            target = plain(f"{name}:plain", self.shape(name))
            self.move(self._blocked[name], target, name)
            self._plain[name] = target
        return self._plain[name]

    def is_plain(self, name: str) -> bool:
        """Whether a tensor exists in row-major order and not in blocks."""
        return name in self._plain and name not in self._blocked

    def result(self, name: str, *, may_be_plain: bool = False) -> TensorView:
        """Memory for what a kernel writes: blocks, the caller's memory where the kernel can write it, or a slice of a concatenation."""
        if may_be_plain and name in self.graph.outputs and not any(name in node.inputs for node in self.graph.nodes):
            return self.plain_result(name)
        if name in self._slices:
            parent, first = self._slices[name]
            if parent not in self._blocked:
                self._blocked[parent] = self.result(parent)
            view = self._blocked[parent].channels(first, self.shape(name)[1])
        else:
            view = self.blocking.blocked(name, self.shape(name))
        self._blocked[name] = view
        return view

    def plain_result(self, name: str) -> TensorView:
        """Memory in row-major order for what a kernel writes, the caller's where `name` is an output."""
        view = plain(name, self.shape(name), "output" if name in self.graph.outputs else "device")
        self._plain[name] = view
        return view

    def alias(self, name: str, view: TensorView) -> None:
        """Let `name` be elements that another tensor has; nothing is launched."""
        (self._plain if view.plain else self._blocked)[name] = view

    def in_slice(self, name: str) -> bool:
        """Whether a tensor's place is a slice of a concatenation that need not be copied."""
        return name in self._slices

    def constant(self, name: str) -> Array:
        """A constant's values.

        Raises:
            UnsupportedError: If the tensor is computed.
        """
        if name not in self.graph.constants:
            raise UnsupportedError(f"`{name}` is computed, the kernels take a constant in its place")
        return self.graph.constants[name]

    @property
    def native(self) -> bool:
        """Whether kernels compute with half: the device has it and tensors are stored in it, unless the switch says otherwise."""
        wanted = self.options.arithmetic
        return self.blocking.half and (self.traits.fp16 if wanted == "auto" else wanted == "half")

    def add(self, launch: Launch) -> None:
        """Append a launch, its work-group within the device's limits."""
        launch = launch.within(self.traits.max_local, self.traits.max_sizes)
        self.launches.append(replace(launch, defines=(*launch.defines, ("NATIVE", str(int(self.native))))))

    def move(self, source: TensorView, target: TensorView, name: str) -> None:
        """Copy elements between layouts."""
        self.add(self.mover(self, source, target, name))

    def own_plain(self, name: str) -> TensorView | None:
        """A tensor's memory in row-major order, if it has any so far."""
        return self._plain.get(name)


#: Makes a launch that copies elements of one view to another, for a tensor of a name.
Mover = Callable[[KernelLowering, TensorView, TensorView, str], Launch]


def concat_slices(graph: KernelGraph, blocking: Blocking) -> dict[str, TensorPlace]:
    """Tensors that can be written straight into a concatenation of channels: the result's name and the first channel.

    A part must start at a block and be written by a node of this graph, which
    writes it nowhere else; of several concatenations of a tensor, the first has it.
    """
    views = ("Slice", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Concat")
    written = {node.output for node in graph.nodes if node.op not in views} - set(graph.outputs)
    joined = [
        (node.output, node.inputs)
        for node in graph.nodes
        if node.op == "Concat" and len(graph.shapes[node.output]) == 4 and node.attrs["axis"] % 4 == 1
    ]
    channels = {name: image_shape(graph.shapes[name])[1] for _, parts in joined for name in parts}
    return places(joined, channels, written, blocking.lanes)


def as_float(values: Array) -> Array:
    """Constants as contiguous float32."""
    return np.ascontiguousarray(values, np.float32)
