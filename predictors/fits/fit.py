"""A fit: numbers that turn kernels into times, their errors on networks left out, and their source."""

from typing import Annotated

import msgspec

_Text = Annotated[str, msgspec.Meta(min_length=1)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e15)]
_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class _FitStruct(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Base of the structures of a fit; unknown keys are refused."""


class Trees(_FitStruct, frozen=True):
    """Boosted regression trees over features of a kernel, all nodes in flat lists.

    A node goes to its left child where its feature is at most its threshold,
    else to its right; a leaf is its own child. The prediction is `base` plus the
    values of the leaves that the trees end in.
    """

    features: tuple[_Text, ...]  # Names of the features (`predictors.models.fitted`), which `feature` counts.
    roots: tuple[_Count, ...]  # First node of each tree.
    feature: tuple[_Count, ...]  # Feature that each node asks for.
    threshold: tuple[float, ...]  # Bound of each node.
    left: tuple[_Count, ...]  # Left child of each node.
    right: tuple[_Count, ...]  # Right child of each node.
    value: tuple[float, ...]  # Each leaf's addition; 0 in other nodes.
    base: float  # Start of every prediction.
    bound: Annotated[float, msgspec.Meta(gt=0, le=5)]  # Maximum absolute value of the prediction.

    def __post_init__(self) -> None:
        """Refuse nodes that do not exist or form a cycle."""
        nodes = len(self.feature)
        if any(len(column) != nodes for column in (self.threshold, self.left, self.right, self.value)):
            raise ValueError("the lists of its nodes differ in length")
        if max((*self.roots, *self.left, *self.right), default=-1) >= nodes:
            raise ValueError("a child is no node")
        if not all(
            left > node < right or left == node == right for node, left, right in zip(range(nodes), self.left, self.right, strict=True)
        ):
            raise ValueError("a child comes before its parent")
        if max(self.feature, default=-1) >= len(self.features):
            raise ValueError("a node reads a feature that does not exist")


class KernelGroup(_FitStruct, frozen=True):
    """Kernels that one formula times."""

    terms: dict[_Text, _NotNegative]  # ms for a unit of each term (`predictors.models.fitted`).
    trees: Trees | None = None  # The logarithm of time ÷ sum of terms, where enough kernels were measured.
    kernels: _Count = 0  # Measured kernels that it was fitted to; 0 where only whole networks were measured.


class Correction(_FitStruct, frozen=True):
    """From the sum of kernels to a whole network.

    ``scale · sum + per_kernel_ms · kernels + per_weight_ms · weights + per_io_element_ms · elements of inputs and outputs + fixed_ms``
    """

    scale: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0  # Factor on each kernel.
    per_kernel_ms: _NotNegative = 0.0  # Time of each kernel in addition to its own.
    fixed_ms: _NotNegative = 0.0  # Time of an inference in addition to its kernels.
    #: Time of each weight element in addition to the kernel's time: a kernel that is timed alone has its weights in a cache; in a
    #: network others drive them out.
    per_weight_ms: _NotNegative = 0.0
    per_io_element_ms: _NotNegative = 0.0  # Time of each element of inputs and outputs: these move to a processor that is not the CPU.


class Interval(_FitStruct, frozen=True):
    """Where the measured time of a network lies around the predicted one."""

    coverage: Annotated[float, msgspec.Meta(gt=0, lt=1)]  # Share of networks of other families that it is made to hold.
    low: Annotated[float, msgspec.Meta(gt=0, le=1)]  # Lower end ÷ prediction.
    high: Annotated[float, msgspec.Meta(ge=1, le=1e6)]  # Upper end ÷ prediction.
    method: _Text  # How it was found, with its source.


class HeldOut(_FitStruct, frozen=True):
    """How good fits made in the same way were on networks whose family they had not seen."""

    networks: _Count  # Networks, each left out once with its family.
    families: _Count  # Families.
    folds: _Count  # Fits that were made.
    within_10: _Share  # Share within ±10 % of the measured time.
    within_20: _Share  # Share within ±20 %.
    mape: _NotNegative  # Mean absolute error relative to the measured time.
    coverage: _Share  # Share within the interval that was made without them.


class Fit(_FitStruct, frozen=True, omit_defaults=True):
    """The kernel model of one processor with one core set at one precision."""

    processor: _Text  # Family name, such as ``cpu``.
    core_set: _Text  # Such as ``1large``.
    precision: _Text  # Such as ``fp32``.
    backend: _Text  # Fusion rules that its kernels were made by.
    runtime: _Text  # Runtime and version that was measured.
    groups: dict[_Text, KernelGroup]  # Kernel groups by ``kind`` or ``kind:variant``.
    correction: Correction  # From kernels to networks.
    interval: Interval  # Around a network's time.
    held_out: HeldOut  # How good it is.
    source: _Text  # Measurements it was fitted to, in words.
    #: Id of the profile whose device was measured, where that is another one with the same chip; None: the device itself.
    sibling: _Text | None = None
