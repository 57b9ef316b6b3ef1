"""Constraints of a design (paper 003, equations 4 to 6 and section 4.3), each registered under the name of its option."""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np

from predictors.errors import StretchError, TightRule
from predictors.registry import import_modules
from stretch.planning.options import Option, Positive, Range, Ratio

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from stretch.planning.cost.branch import SegmentOptions
    from stretch.planning.network.segments import Segment

#: Rounding tolerances: of a time and a share of another time, and of blocks or channels and a share of the original's.
ROUNDING, RATIO_ROUNDING = 1e-12, 1e-9

#: Upper and lower bounds on a ratio that exclude nothing.
NO_UPPER_BOUND, NO_LOWER_BOUND = 1e6, 1e-6

#: Steps in which a floor is lowered; each step needs a new design space.
STEPS = tuple(round(0.975 - 0.025 * i, 3) for i in range(37))


@dataclass(frozen=True)
class Limit:
    """A number of a constraint that may be too tight."""

    option: str  # Name of the constraint's option.
    value: float  # The requested number.
    loosest: float  # A number that excludes nothing.
    ladder: tuple[float, ...] | None = None  # Allowed numbers, from tight to loose; None for any number.
    #: Returns the constraint's value with this number replaced.
    with_number: Callable[[Any, float], Any] = lambda value, number: number

    def change(self, request: Any, number: float) -> Any:
        """Return the request with this number replaced by `number`."""
        return msgspec.structs.replace(request, **{self.option: self.with_number(getattr(request, self.option), number)})

    def rule(self, request: Any, nearest: float) -> TightRule:
        """Return the rule for an error message, with the nearest number that has a design."""
        return TightRule(self.option, getattr(request, self.option), getattr(self.change(request, nearest), self.option))


@dataclass(frozen=True)
class Constraint:
    """A rule of designs. A request's option of the same name holds its value; if this is None, the rule is off and no method is called."""

    option: Option  # Option of a request that sets its value.
    #: Returns the part and the whole whose ratio it bounds, per combination of options, from the options and the time of the original
    #: segment on the fastest of their processors, ms; None for floors, and for rules on whole designs, which the search ensures.
    ratio: "Callable[[SegmentOptions, float], tuple[Any, Any]] | None" = None
    at_most: bool = True  # Whether the value is a maximum of the ratio, not a minimum.
    #: End of a sentence on the best ratio of all options: the first number is this ratio, the second the requested value.
    words: str = ""
    #: Scale of a branch, ``depth`` or ``width``, that it bounds from below, so that another value needs another space; empty for none.
    floor_of: str = ""
    whole: bool = False  # Whether whole segments must meet it.
    #: Whether exactly divided segments must meet it. Rules that guard accuracy do not apply to them, because they lose none, and
    #: the search only uses them where they are faster, transfers included.
    exact: bool = True
    #: Returns the numbers that an error message may blame, from the value and the options; None for the value alone.
    numbers: "Callable[[Any, Sequence[SegmentOptions]], list[Limit]] | None" = None

    def offers_scale(self, value: Any, segment: "Segment", what: str, count: float) -> bool:
        """Return whether a branch of a segment may keep `count` blocks (`what` is ``depth``) or channels (``width``)."""
        return what != self.floor_of or count >= value * getattr(segment, what) - RATIO_ROUNDING

    def mask(self, value: Any, options: "SegmentOptions", segment_ms: float) -> "NDArray[np.bool_] | None":
        """Return a mask of the combinations that meet the rule; None if the rule masks none."""
        if self.ratio is None:
            return None
        part, whole = self.ratio(options, segment_ms)
        return np.asarray(part <= value * whole + ROUNDING if self.at_most else part >= value * whole - ROUNDING)

    def limits(self, value: Any, options: "Sequence[SegmentOptions]") -> list[Limit]:
        """Return the numbers that an error message may blame."""
        if self.numbers is not None:
            return self.numbers(value, options)
        if self.floor_of:
            return [Limit(self.option.name, value, STEPS[-1], tuple(step for step in STEPS if step < value))]
        return [Limit(self.option.name, value, NO_UPPER_BOUND if self.at_most else NO_LOWER_BOUND)]

    def explain_miss(self, value: Any, options: "Sequence[SegmentOptions]", segment_ms: "Sequence[float]") -> str | None:
        """Return a sentence on the best ratio, if no option meets the rule; None if one does."""
        if self.ratio is None:
            return None
        shares = [part / whole for part, whole in map(self.ratio, options, segment_ms)]
        best = min(float(share.min()) for share in shares) if self.at_most else max(float(share.max()) for share in shares)
        return self.words.format(best, value) if (best > value if self.at_most else best < value) else None


#: Constraints by the name of their option, in the order in which they are checked for the one to blame.
constraints: dict[str, Constraint] = {}


def register(*added: Constraint) -> None:
    """Add constraints under the names of their options."""
    for constraint in added:
        if constraint.option.name in constraints:
            raise StretchError(f"constraint `{constraint.option.name}` is registered twice", "rename one of the two")
        constraints[constraint.option.name] = constraint


def _intact(options: "SegmentOptions", _: float) -> tuple[Any, int]:
    """Return the number of unchanged blocks in the branch with most of them, and the number of blocks of the segment."""
    depths = [np.array([b.depth * (b.width == options.segment.width) for b in branch]) for branch in options.candidates]
    return np.max([kept[at] for kept, at in zip(depths, options.scales_of(), strict=True)], axis=0), options.segment.depth


register(
    # the transfer at a meeting point is amortised over its segment
    Constraint(
        Option("alpha", Positive, 0.2, "Maximum share of a stretched segment's latency spent on data transfer (NN-Stretch paper, eq. 4)."),
        ratio=lambda options, segment_ms: (options.exchange_ms, segment_ms),
        words="a transfer takes at least {:.2g} of the segment; the maximum is {:g}",
        exact=False,
    ),
    # no branch takes much longer than the original segment
    Constraint(
        Option(
            "beta",
            Positive,
            1.1,
            "Maximum latency of a stretched branch, relative to the unsplit segment on its fastest processor (NN-Stretch paper, eq. 5).",
        ),
        ratio=lambda options, segment_ms: (options.slowest_ms, segment_ms),
        words="the slowest branch takes at least {:.2g} times as much as the segment on its fastest processor; the maximum is {:g}",
        exact=False,
    ),
    # branches take similar time on their own processors
    Constraint(
        Option(
            "balance", Ratio, 0.5, "Minimum ratio of the fastest to the slowest branch of a stretched segment (NN-Stretch paper, eq. 6)."
        ),
        ratio=lambda options, _: (options.fastest_ms, options.slowest_ms),
        at_most=False,
        words="the fastest branch takes at most {:.2g} of the slowest; the minimum is {:g}",
        exact=False,
    ),
    # a branched segment keeps its share of the computation; else the search would shrink the expensive segments
    Constraint(
        Option("segment_macs", Ratio, 0.9, "Minimum MACs of each stretched segment, relative to the original segment's."),
        ratio=lambda options, _: (options.macs, options.segment.graph.macs),
        at_most=False,
        words="a branched segment has at most {:.2g} of the original's MACs; the minimum is {:g}",
        exact=False,
    ),
    # the whole design computes about as much as the original, not counting rows that bands compute twice
    Constraint(
        Option(
            "macs",
            Range,
            (0.97, 1.03),
            "Range of MACs relative to the original's; MACs computed twice by bands of rows do not count.",
            example="0.97:1.03",
        ),
        numbers=lambda value, _: [
            Limit("macs", value[0], min(0.01, value[0] / 2), with_number=lambda now, number: (number, now[1])),
            Limit("macs", value[1], max(100.0, value[1] * 2), with_number=lambda now, number: (now[0], number)),
        ],
    ),
    Constraint(Option("min_depth", Ratio, 0.5, "Minimum depth ratio of a branch."), floor_of="depth"),
    Constraint(
        Option("min_width", Ratio | None, None, "Minimum width ratio of a branch; by default 0.5 for two processors, 0.375 for more."),
        floor_of="width",
    ),
    # branches meet often enough
    Constraint(
        Option("n_meet", Annotated[int, msgspec.Meta(ge=1, le=1000)], 1, "Minimum number of meeting points, where branches join."),
        numbers=lambda value, _: (
            [Limit("n_meet", value, 1, tuple(range(value - 1, 0, -1)), lambda _, number: round(number))] if value > 1 else []
        ),
    ),
    # all tensors that are alive at one time fit into memory; the loosest bound is that of the largest combination
    Constraint(
        Option("peak_memory", Annotated[int, msgspec.Meta(gt=0, le=1 << 50)] | None, None, "Maximum activation bytes at one time."),
        ratio=lambda options, _: (options.peak_bytes, 1),
        words="activations take at least {:.3g} bytes; the maximum is {:.10g}",
        whole=True,
        numbers=lambda value, options: [
            Limit("peak_memory", value, max(value, *(int(item.peak_bytes.max()) for item in options)), None, lambda _, number: ceil(number))
        ],
    ),
    # one branch keeps some blocks of the original unchanged: few images suffice to compensate for removed blocks, but not for narrower
    # ones (Wang and Wu 2023, "Practical network acceleration with tiny sets")
    Constraint(
        Option("intact", Ratio | None, None, "Minimum share of a segment's blocks that one of its branches keeps with all channels."),
        ratio=_intact,
        at_most=False,
        words="a branch keeps at most {:.2g} of the blocks with all of their channels; the minimum is {:g}",
        exact=False,
    ),
)

import_modules(__name__, __path__)
