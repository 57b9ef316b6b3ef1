"""Facts about a kind of operator, without torch; the kinds themselves are in `predictors.operators`.

Each operator has a cost rule, so that its cost is known without running it.
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
    """Computation of a kernel, without the tensors that it moves."""

    kind: str  # One of `predictors.devices.KERNEL_KINDS`.
    in_channels: int  # Input channels of one group.
    out_channels: int  # Output channels of one group.
    groups: int  # Number of groups; 1 for a dense kernel.
    taps: int  # Positions of the convolution or pooling window.
    pixels: int  # Output positions, including the batch.
    stride: int = 1  # Input positions per output position: down times across.


def per_channel(kind: str) -> "WorkRule":
    """Return the work of a kernel of this kind that does one step per element of its result."""

    def work(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> KernelWork:
        return KernelWork(kind, 1, 1, width(out), 1, pixels(out))

    return work


def same_shape(ins: Sequence[Shape], attrs: Attrs) -> Shape:
    """Return the shape of the first input."""
    return ins[0]


def no_macs(ins: Sequence[Shape], attrs: Attrs, out: Shape) -> int:
    """Return 0: the kind computes no products."""
    return 0


def no_weights(ins: Sequence[Shape], attrs: Attrs) -> dict[str, Shape]:
    """Return no weights: the kind has none."""
    return {}


def unscaled(attrs: Attrs, narrowed: Narrowed) -> Attrs:
    """Return the attributes unchanged: none of them depends on channels."""
    return attrs


def never(attrs: Attrs) -> bool:
    """Return False."""
    return False


WorkRule = Callable[[Sequence[Shape], Attrs, Shape], KernelWork]

#: Work of a kernel that computes each element from the elements at the same position.
elementwise_work = per_channel("elementwise")

#: Trait of a kind without a kernel launch in any runtime: a view of its input, or nothing at inference.
UNLAUNCHED = "unlaunched"
#: Trait of a kind that clips at zero, which every runtime fuses into convolutions.
RECTIFIER = "rectifier"
#: Trait of a kind with one input whose result at a position depends only on that position and on its channel's weights.
POINTWISE = "pointwise"


@dataclass(frozen=True)
class Kind:
    """Facts about one kind of operator."""

    shape: Callable[[Sequence[Shape], Attrs], Shape] = same_shape  # Output shape from input shapes and attributes.
    macs: Callable[[Sequence[Shape], Attrs, Shape], int] = no_macs  # Multiply-accumulates from input shapes, attributes, output shape.
    weights: Callable[[Sequence[Shape], Attrs], dict[str, Shape]] = no_weights  # Shape of each weight, by name, output channels first.
    channels: ChannelRule = freeze_all  # Relation of its output's channels to its inputs' (`predictors.channels`).
    rows: RowRule = all_rows  # Input rows for a band of output rows (`predictors.rows`).
    slices: SliceRule = all_channels  # Input channels for some output channels (`predictors.slices`).
    #: Effect on a sum, if the operator may be applied to each term instead; None if it needs the whole sum.
    additive: Additive | None = None
    work: WorkRule = elementwise_work  # Work of its kernel, if it is not fused into another kernel.
    scaled: Callable[[Attrs, Narrowed], Attrs] = unscaled  # Attributes for other numbers of channels.
    dense: Callable[[Attrs], bool] = never  # Whether its ``weight``, given its attributes, has a column for each input channel.
    min_inputs: int = 1  # Minimum number of inputs.
    weightless: bool = True  # It neither has weights nor mixes channels, so a meeting point may be moved past it.
    elementwise: bool = False  # Output element i depends only on elements i of the inputs.
    identity: bool = False  # At inference it returns its input.
    folds: bool = False  # Runtimes fold its weights into those of the previous operator.
    #: ONNX operators that compute only this kind, elementwise and from its inputs alone: the check of bundles takes their shape from
    #: this kind.
    nodes: tuple[str, ...] = ()
    traits: frozenset[str] = frozenset()  # Traits that fusion rules read: `UNLAUNCHED`, `RECTIFIER`, `POINTWISE`.
    stated: bool = False  # Whether attributes state the shape, including channels, so that the operator cannot be scaled.


#: Kinds by name; the kinds of this package are registered by importing `predictors.operators`.
kinds: Registry[Kind] = Registry("operator kind")
