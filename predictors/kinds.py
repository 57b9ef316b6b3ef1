"""Facts of a kind of operator, without torch; the kinds themselves are in `predictors.operators`.

Each operator has a cost rule, so that cost is known without running anything.
Layout is NCHW throughout; padding is (top, left, bottom, right).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from predictors.channels import ChannelRule, Narrowed, freeze_all
from predictors.registry import Registry
from predictors.rows import RowRule, all_rows
from predictors.shapes import Attrs, Shape, pixels, width
from predictors.slices import Additive, SliceRule, all_channels


class KernelWork(NamedTuple):
    """Computation of a kernel, apart from the tensors that it moves."""

    kind: str  # One of `predictors.devices.KERNEL_KINDS`.
    in_channels: int  # Input channels of one group.
    out_channels: int  # Output channels of one group.
    groups: int  # Groups; 1 for a dense kernel.
    taps: int  # Positions of the convolution or pooling window.
    pixels: int  # Output positions, batch included.
    stride: int = 1  # Input positions for each output position: down times across.


def per_channel(kind: str) -> "WorkRule":
    """Return a kernel of this kind that does a step for each element of its result."""

    def work(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> KernelWork:
        return KernelWork(kind, 1, 1, width(out), 1, pixels(out))

    return work


def same_shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    """Return the shape of the first input."""
    return ins[0]


def no_macs(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> int:
    """Return 0: the kind sums no products."""
    return 0


def no_weights(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    """Return no weights: the kind learns nothing."""
    return {}


def unscaled(attrs: Attrs, narrowed: Narrowed) -> Attrs:
    """Return the attributes unchanged: none depends on channels."""
    return attrs


def never(attrs: Attrs) -> bool:
    """Return False."""
    return False


WorkRule = Callable[[Sequence[Shape], Attrs, Shape], KernelWork]

#: Work of a kernel that computes each element from the elements at the same place.
elementwise_work = per_channel("elementwise")

#: Trait of a kind that no runtime launches a kernel for: a view of its input, or nothing at inference.
UNLAUNCHED = "unlaunched"
#: Trait of a kind that clips at zero, which every runtime fuses into convolutions.
RECTIFIER = "rectifier"
#: Trait of a kind with one input whose result at a place depends on that place alone and its channel's weights.
POINTWISE = "pointwise"


@dataclass(frozen=True)
class Kind:
    """Facts of one kind of operator."""

    shape: Callable[[Sequence[Shape], Attrs], Shape] = same_shape  # Output shape from input shapes and attributes.
    macs: Callable[[Sequence[Shape], Attrs, Shape], int] = no_macs  # Multiply-accumulates from input shapes, attributes, output shape.
    weights: Callable[[Sequence[Shape], Attrs], dict[str, Shape]] = no_weights  # Shape of each weight, by name, output channels first.
    channels: ChannelRule = freeze_all  # How its output's channels are tied to those it reads (`predictors.channels`).
    rows: RowRule = all_rows  # Which rows it reads for a band of rows of its output (`predictors.rows`).
    slices: SliceRule = all_channels  # Which channels it reads for some channels of its output (`predictors.slices`).
    #: Effect on a sum, where the operator may be applied to each term instead; None where it needs the whole sum.
    additive: Additive | None = None
    work: WorkRule = elementwise_work  # The computation of its kernel, where it is not fused into another.
    scaled: Callable[[Attrs, Narrowed], Attrs] = unscaled  # Its attributes where it has other numbers of channels.
    dense: Callable[[Attrs], bool] = never  # Whether, given its attributes, its ``weight`` has a column for each channel that it reads.
    min_inputs: int = 1  # Fewest inputs.
    weightless: bool = True  # It neither computes with weights nor mixes channels, so a meeting point may be pushed past it.
    elementwise: bool = False  # Output element i depends only on input elements i.
    identity: bool = False  # At inference it returns its input.
    folds: bool = False  # Runtimes fold its weights into those of the operator before it.
    #: ONNX operators that compute it and no other kind from its inputs alone, element by element: the check of bundles takes their shape
    #: from this kind.
    nodes: tuple[str, ...] = ()
    traits: frozenset[str] = frozenset()  # Traits that fusion rules read: `UNLAUNCHED`, `RECTIFIER`, `POINTWISE`.
    stated: bool = False  # Whether attributes state the shape, channels included, so that the operator cannot be scaled.


#: Kinds by name; those of this package are registered once `predictors.operators` is imported.
kinds: Registry[Kind] = Registry("operator kind")
