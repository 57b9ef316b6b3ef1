"""Agreement of a branched network with its original, measured on held-back images: part of a bundle's manifest."""

from typing import Annotated, Literal

import msgspec

from predictors.devices import Precision

_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Error = Annotated[float, msgspec.Meta(ge=0, le=1e30)]
_Images = Annotated[int, msgspec.Meta(ge=1, le=1 << 40)]


class SegmentAgreement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The original with one of its segments replaced by the branched one."""

    segment: str  # Its name.
    #: Share of images with the same best class as the original; None where outputs are no classes, or the segment reads or writes other
    #: channels than the original's and cannot replace it.
    value: _Share | None
    error: (
        _Error | None
    )  # Root of the squared error of the network's outputs over the root of the original's square; None if it was not measured.


class AgreementFigures(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Comparison of two networks on images."""

    #: Share of images with the same best class; None where outputs are no classes, or the original answers nearly always the same.
    value: _Share | None
    low: _Share | None  # Lower end of its 95 % interval (Wilson's).
    high: _Share | None  # Upper end.
    top5_overlap: _Share | None  # Share of the five best classes that both have; None with five classes or fewer.
    error: _Error  # Root of the squared error of the outputs over the root of the original's square.
    images: _Images  # Images it was measured on.
    #: Classes that the original answers for them; None where outputs are no classes, or in bundles of earlier versions.
    classes: Annotated[int, msgspec.Meta(ge=1)] | None = None


class BundleAgreement(AgreementFigures, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A bundle's subgraphs in the precisions planned for the device's processors, run by delegates, compared with the original in fp32."""

    precisions: dict[str, tuple[Precision, ...]]  # Precisions that the subgraphs of each processor computed in, sorted.
    delegates: dict[str, str]  # Delegates that computed them where this was measured, by processor.
    source: Literal["measured"] = "measured"  # Always ``measured``.


class Agreement(AgreementFigures, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Comparison of a branched network with its original on images."""

    precision: Literal["fp32"] = "fp32"  # Precision of both.
    source: Literal["measured"] = "measured"  # Always ``measured``.
    segments: tuple[SegmentAgreement, ...] = ()  # Each segment that is not the original's, alone.
    bundle: BundleAgreement | None = None  # The same of the files as they are planned to run; None where that was not measured.
