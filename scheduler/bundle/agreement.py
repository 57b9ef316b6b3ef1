"""Agreement of a branched network with its original, measured on held-back images: part of a bundle's manifest."""

from typing import Annotated, Literal

import msgspec

from predictors.devices import Precision

_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Error = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
_Images = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class SegmentAgreement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The original with one of its segments replaced by the branched segment."""

    segment: str  # Name of the segment.
    #: Share of images with the same best class as the original; None if the outputs are not classes, or the segment has other input or
    #: output channels than the original's and cannot replace it.
    value: _Share | None
    error: _Error | None  # Root of the squared error of the network's outputs over the root of the original's square; None if not measured.


class AgreementFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Comparison of two networks on images."""

    #: Share of images with the same best class; None if the outputs are not classes, or the original gives nearly always the same class.
    value: _Share | None
    low: _Share | None  # Lower end of the 95 % interval (Wilson's).
    high: _Share | None  # Upper end of the interval.
    top5_overlap: _Share | None  # Shared portion of the five best classes; None with five classes or fewer.
    error: _Error  # Root of the squared error of the outputs over the root of the original's square.
    images: _Images  # Number of images of the measurement.
    #: Number of classes that the original gives for the images; None if the outputs are not classes, or in bundles of earlier versions.
    classes: Annotated[int, msgspec.Meta(ge=1)] | None = None


class BundleAgreement(AgreementFigures, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A bundle's subgraphs in the planned precisions, run by delegates, compared with the original in fp32."""

    precisions: dict[str, tuple[Precision, ...]]  # Precisions of the subgraphs of each processor, sorted.
    delegates: dict[str, str]  # Delegates that ran the subgraphs in the measurement, by processor.
    source: Literal["measured"] = "measured"  # Always ``measured``.


class Agreement(AgreementFigures, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Comparison of a branched network with its original on images."""

    precision: Literal["fp32"] = "fp32"  # Precision of both networks.
    source: Literal["measured"] = "measured"  # Always ``measured``.
    segments: tuple[SegmentAgreement, ...] = ()  # Each segment that differs from the original, alone.
    bundle: BundleAgreement | None = None  # Comparison of the bundle's files as planned to run; None if not measured.
