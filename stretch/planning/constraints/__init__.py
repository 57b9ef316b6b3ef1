"""Constraints of a design (paper 003, equations 4 to 6 and section 4.3), each registered under the name of its option."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import msgspec
import numpy as np

from predictors.errors import TightRule
from predictors.registry import Registry, import_modules
from stretch.planning.options import Option, Positive, Range, Ratio

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from stretch.planning.cost.branch import SegmentOptions
    from stretch.planning.network.segments import Segment

#: Rounding tolerance of comparisons between a time and a share of another time.
ROUNDING = 1e-12

#: Upper and lower bounds on a ratio that exclude nothing.
NO_UPPER_BOUND, NO_LOWER_BOUND = 1e6, 1e-6


@dataclass(frozen=True)
class Limit:
    """A number of a constraint that may be too tight."""

    constraint: "Constraint"  # The constraint.
    value: float  # The requested number.
    loosest: float  # A number that excludes nothing.
    ladder: tuple[float, ...] | None = None  # Allowed numbers, from tight to loose; None for any number.
    #: Returns the constraint's value with this number replaced.
    with_number: Callable[[Any, float], Any] = lambda value, number: number

    def change(self, request: Any, number: float) -> Any:
        """Return the request with this number replaced by `number`."""
        name = self.constraint.option.name
        return msgspec.structs.replace(request, **{name: self.with_number(getattr(request, name), number)})

    def rule(self, request: Any, nearest: float) -> TightRule:
        """Return the rule for an error message, with the nearest number that has a design."""
        name = self.constraint.option.name
        return TightRule(name, getattr(request, name), getattr(self.change(request, nearest), name))


class Constraint(ABC):
    """A rule of designs. A request's option of the same name holds its value; if this is None, the rule is off and no method is called."""

    #: Option of a request that sets its value.
    option: ClassVar[Option]
    #: Whether it limits the offered depths and widths, so that another value needs another space.
    offers: ClassVar[bool] = False
    #: Whether whole segments must meet it.
    whole: ClassVar[bool] = False
    #: Whether exactly divided segments must meet it. Rules that guard accuracy do not apply to them, because they lose none, and
    #: the search only uses them where they are faster, transfers included.
    exact: ClassVar[bool] = True

    def offers_scale(self, value: Any, segment: "Segment", what: str, count: float) -> bool:
        """Return whether a branch of a segment may keep `count` blocks (`what` is ``depth``) or channels (``width``)."""
        return True

    def mask(self, value: Any, options: "SegmentOptions", segment_ms: float) -> "NDArray[np.bool_] | None":
        """Return a mask of the combinations that meet the rule; None if the rule masks none."""
        return None

    @abstractmethod
    def limits(self, value: Any, options: "Sequence[SegmentOptions]") -> "list[Limit]":
        """Return the numbers that an error message may blame."""

    def explain_miss(self, value: Any, options: "Sequence[SegmentOptions]", segment_ms: Sequence[float]) -> str | None:
        """Return the reason why no option meets the rule, as the end of a sentence; None if one does."""
        return None


class Bound(Constraint):
    """A rule that bounds the ratio of a part to a whole."""

    #: Whether the value is a maximum, not a minimum.
    at_most: ClassVar[bool] = True
    #: End of a sentence on the best ratio of all options: the first number is this ratio, the second the requested value.
    words: ClassVar[str]

    #: Arrays of `SegmentOptions` for the part and for the whole; an empty `reference` is the time of the original segment on the fastest
    #: of its processors.
    measured: ClassVar[str]
    reference: ClassVar[str] = ""

    def numerator(self, options: "SegmentOptions") -> "NDArray[Any]":
        """Return the part, per combination."""
        return np.asarray(getattr(options, self.measured))

    def denominator(self, options: "SegmentOptions", segment_ms: float) -> "NDArray[np.float64] | float":
        """Return the whole, per combination or for all."""
        return getattr(options, self.reference) if self.reference else segment_ms

    def mask(self, value: float, options: "SegmentOptions", segment_ms: float) -> "NDArray[np.bool_]":
        """Return a mask of the combinations that meet the rule."""
        part, allowed = self.numerator(options), value * self.denominator(options, segment_ms)
        return part <= allowed + ROUNDING if self.at_most else part >= allowed - ROUNDING

    def limits(self, value: float, options: "Sequence[SegmentOptions]") -> list[Limit]:
        """Return the bound on the ratio."""
        return [Limit(self, value, NO_UPPER_BOUND if self.at_most else NO_LOWER_BOUND)]

    def explain_miss(self, value: float, options: "Sequence[SegmentOptions]", segment_ms: Sequence[float]) -> str | None:
        """Return a sentence on the best ratio; None if it meets the rule."""
        shares = [self.numerator(item) / self.denominator(item, ms) for item, ms in zip(options, segment_ms, strict=True)]
        best = min(float(share.min()) for share in shares) if self.at_most else max(float(share.max()) for share in shares)
        return self.words.format(best, value) if (best > value if self.at_most else best < value) else None


#: Constraints by the name of their option.
constraints: Registry[Constraint] = Registry("constraint")

#: Order in which rules are checked for the one to blame; others follow by name.
FIRST = ("alpha", "beta", "balance", "segment_macs", "macs", "min_depth", "min_width", "n_meet", "peak_memory")


def all_constraints() -> list[Constraint]:
    """Return every constraint."""
    names = [*(name for name in FIRST if name in constraints), *(name for name in constraints if name not in FIRST)]
    return [constraints.get(name) for name in names]


def register(constraint: type[Constraint]) -> type[Constraint]:
    """Register a constraint class under the name of its option; a class decorator."""
    constraints.register(constraint.option.name)(constraint())
    return constraint


# The planner's constraints: equations 4 to 6 of paper 003, floors, and bounds on whole designs.

#: Steps in which a floor is lowered; each step needs a new design space.
STEPS = tuple(round(0.975 - 0.025 * i, 3) for i in range(37))

#: Rounding tolerance of comparisons between blocks or channels and a share of the original's.
RATIO_ROUNDING = 1e-9


@register
class Balance(Bound):
    """Branches take similar time on their own processors (equation 6)."""

    option = Option(
        "balance", Ratio, 0.5, "Minimum ratio of the fastest to the slowest branch of a stretched segment (NN-Stretch paper, eq. 6)."
    )
    exact, at_most, measured, reference = False, False, "fastest_ms", "slowest_ms"
    words = "the fastest branch takes at most {:.2g} of the slowest; the minimum is {:g}"


@register
class Capacity(Bound):
    """A branched segment keeps its share of the computation; else the search would shrink the expensive segments."""

    option = Option("segment_macs", Ratio, 0.9, "Minimum MACs of each stretched segment, relative to the original segment's.")
    exact, at_most, measured = False, False, "macs"
    words = "a branched segment has at most {:.2g} of the original's MACs; the minimum is {:g}"

    def denominator(self, options: "SegmentOptions", segment_ms: float) -> float:
        """Return the multiply-accumulates of the original segment."""
        return options.segment.graph.macs


@register
class Communication(Bound):
    """The transfer at a meeting point is amortised over its segment (equation 4)."""

    option = Option(
        "alpha", Positive, 0.2, "Maximum share of a stretched segment's latency spent on data transfer (NN-Stretch paper, eq. 4)."
    )
    exact, measured = False, "exchange_ms"
    words = "a transfer takes at least {:.2g} of the segment; the maximum is {:g}"


@register
class Straggler(Bound):
    """No branch takes much longer than the original segment (equation 5)."""

    option = Option(
        "beta",
        Positive,
        1.1,
        "Maximum latency of a stretched branch, relative to the unsplit segment on its fastest processor (NN-Stretch paper, eq. 5).",
    )
    exact, measured = False, "slowest_ms"
    words = "the slowest branch takes at least {:.2g} times as much as the segment on its fastest processor; the maximum is {:g}"


@register
class PeakMemory(Bound):
    """All tensors that are alive at one time fit into memory."""

    option = Option("peak_memory", Annotated[int, msgspec.Meta(gt=0, le=1 << 50)] | None, None, "Maximum activation bytes at one time.")
    whole, measured = True, "peak_bytes"
    words = "activations take at least {:.3g} bytes; the maximum is {:.10g}"

    def denominator(self, options: "SegmentOptions", segment_ms: float) -> float:
        """Return one byte, because the bound is no ratio."""
        return 1

    def limits(self, value: float, options: "Sequence[SegmentOptions]") -> list[Limit]:
        """Return the bound in bytes, up to the largest combination."""
        largest = max(int(item.peak_bytes.max()) for item in options)
        return [Limit(self, value, max(largest, value), with_number=lambda _, number: ceil(number))]


@register
class Intact(Bound):
    """One branch keeps some blocks of the original unchanged.

    Few images suffice to compensate for removed blocks, but not for narrower ones (Wang and Wu 2023, "Practical
    network acceleration with tiny sets").
    """

    option = Option("intact", Ratio | None, None, "Minimum share of a segment's blocks that one of its branches keeps with all channels.")
    exact, at_most = False, False
    words = "a branch keeps at most {:.2g} of the blocks with all of their channels; the minimum is {:g}"

    def numerator(self, options: "SegmentOptions") -> "NDArray[np.int64]":
        """Return the number of unchanged blocks in the branch with most of them."""
        depths = [np.array([b.depth * (b.width == options.segment.width) for b in branch]) for branch in options.candidates]
        return np.asarray(np.max([kept[at] for kept, at in zip(depths, options.scales_of(), strict=True)], axis=0))

    def denominator(self, options: "SegmentOptions", segment_ms: float) -> float:
        """Return the number of blocks of the segment."""
        return options.segment.depth


class _Floor(Constraint):
    """A branch keeps a minimum share of its segment."""

    offers = True
    scales: ClassVar[str]  # Scale that it bounds: ``depth`` or ``width``.

    def offers_scale(self, value: float, segment: "Segment", what: str, count: float) -> bool:
        """Return whether `count` blocks or channels reach the floor."""
        return what != self.scales or count >= value * getattr(segment, what) - RATIO_ROUNDING

    def limits(self, value: float, options: "Sequence[SegmentOptions]") -> list[Limit]:
        """Return the floor with the steps below it."""
        return [Limit(self, value, STEPS[-1], tuple(step for step in STEPS if step < value))]


@register
class DepthFloor(_Floor):
    """Minimum ratio of a branch's blocks to its segment's."""

    option, scales = Option("min_depth", Ratio, 0.5, "Minimum depth ratio of a branch."), "depth"


@register
class WidthFloor(_Floor):
    """Minimum ratio of a branch's channels to its segment's."""

    option = Option("min_width", Ratio | None, None, "Minimum width ratio of a branch; by default 0.5 for two processors, 0.375 for more.")
    scales = "width"


@register
class Meetings(Constraint):
    """Branches meet often enough; the search ensures it."""

    option = Option("n_meet", Annotated[int, msgspec.Meta(ge=1, le=1000)], 1, "Minimum number of meeting points, where branches join.")

    def limits(self, value: int, options: "Sequence[SegmentOptions]") -> list[Limit]:
        """Return the number of meeting points if it is above one."""
        return [Limit(self, value, 1, tuple(range(value - 1, 0, -1)), lambda _, number: round(number))] if value > 1 else []


@register
class TotalMacs(Constraint):
    """The whole design computes about as much as the original, not counting rows that bands compute twice; the search ensures it."""

    option = Option(
        "macs",
        Range,
        (0.97, 1.03),
        "Range of MACs relative to the original's; MACs computed twice by bands of rows do not count.",
        example="0.97:1.03",
    )

    def limits(self, value: tuple[float, float], options: "Sequence[SegmentOptions]") -> list[Limit]:
        """Return both ends of the range."""
        low, high = value
        return [
            Limit(self, low, min(0.01, low / 2), with_number=lambda now, number: (number, now[1])),
            Limit(self, high, max(100.0, high * 2), with_number=lambda now, number: (now[0], number)),
        ]


import_modules(__name__, __path__)
