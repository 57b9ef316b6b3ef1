"""What a design must keep to (paper 003, equations 4 to 6 and section 4.3): a file for each rule, which is planned with, named and asked for as it is."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from predictors.registry import Registry, import_modules
from stretch.planning.options import Option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from stretch.planning.cost.branch import SegmentOptions
    from stretch.planning.network.segments import Segment

#: Room for rounding where a time is compared with a share of another.
ROUNDING = 1e-12

#: A bound on a ratio that rules nothing out: from above, and from below.
ENDLESS, NOTHING = 1e6, 1e-6


@dataclass(frozen=True)
class Limit:
    """One number of a constraint that may be too tight."""

    value: float  # The number now.
    loosest: float  # A number that rules nothing out.
    ladder: tuple[float, ...] | None = None  # The numbers to choose from, tight to loose; None where any will do.
    put: Callable[[Any, float], Any] = lambda value, number: number  # The constraint's value with another number in place of this one.


class Constraint(ABC):
    """A rule of designs. Its value is that of its option in a request; where that is None, the rule is not asked for, and no method is called."""

    #: How it is asked for.
    option: ClassVar[Option]
    #: Whether it decides which depths and widths are offered, so that another value needs another space.
    offers: ClassVar[bool] = False
    #: Whether segments that stay whole must keep to it.
    whole: ClassVar[bool] = False
    #: Whether segments that are divided exactly must: they lose no accuracy, so what guards it says nothing of them, and
    #: they are there only where they are faster, their exchange included.
    exact: ClassVar[bool] = True

    def offers_depth(self, value: Any, segment: "Segment", depth: int) -> bool:
        """Whether a branch of a segment may keep so many blocks."""
        return True

    def offers_width(self, value: Any, segment: "Segment", width: float) -> bool:
        """Whether a branch of a segment may have so many channels."""
        return True

    def mask(self, value: Any, options: "SegmentOptions", segment_ms: float) -> "NDArray[np.bool_] | None":
        """Which combinations keep to it."""
        return None

    @abstractmethod
    def limits(self, value: Any, options: "Sequence[SegmentOptions]") -> "list[Limit]":
        """The numbers that a refusal may blame."""

    def missed(self, value: Any, options: "Sequence[SegmentOptions]", segment_ms: Sequence[float]) -> str | None:
        """Why none of some ways keeps to it, as the end of a sentence; None if one does."""
        return None


class Bound(Constraint):
    """A rule that a part stays within a share of a whole."""

    #: Whether the share is the most, not the least.
    at_most: ClassVar[bool] = True
    #: The end of a sentence about the best share that there is: the first number that share, the second the value.
    words: ClassVar[str]

    #: The array of `SegmentOptions` that is compared, and that which it is compared with; empty for the original segment on the fastest
    #: of its processors.
    measured: ClassVar[str]
    reference: ClassVar[str] = ""

    def part(self, options: "SegmentOptions") -> "NDArray[np.float64]":
        """What is compared, per combination."""
        return getattr(options, self.measured)

    def of(self, options: "SegmentOptions", segment_ms: float) -> "NDArray[np.float64] | float":
        """What it is compared with."""
        return getattr(options, self.reference) if self.reference else segment_ms

    def mask(self, value: float, options: "SegmentOptions", segment_ms: float) -> "NDArray[np.bool_]":
        """Which combinations keep to it."""
        part, allowed = self.part(options), value * self.of(options, segment_ms)
        return part <= allowed + ROUNDING if self.at_most else part >= allowed - ROUNDING

    def limits(self, value: float, options: "Sequence[SegmentOptions]") -> list[Limit]:
        """The share."""
        return [Limit(value, ENDLESS if self.at_most else NOTHING)]

    def missed(self, value: float, options: "Sequence[SegmentOptions]", segment_ms: Sequence[float]) -> str | None:
        """The best share, where it is not good enough."""
        shares = [self.part(way) / self.of(way, ms) for way, ms in zip(options, segment_ms, strict=True)]
        if self.at_most:
            best = min(float(share.min()) for share in shares)
            return self.words.format(best, value) if best > value else None
        best = max(float(share.max()) for share in shares)
        return self.words.format(best, value) if best < value else None


#: Constraints by the name of their option.
constraints: Registry[Constraint] = Registry("constraint")

#: The order in which rules are looked at where one is to be blamed; others follow by name.
FIRST = ("alpha", "beta", "balance", "segment_macs", "macs", "min_depth", "min_width", "n_meet", "peak_memory")


def all_constraints() -> list[Constraint]:
    """Every constraint."""
    names = [*(name for name in FIRST if name in constraints), *(name for name in constraints if name not in FIRST)]
    return [constraints.get(name) for name in names]


def register(constraint: type[Constraint]) -> type[Constraint]:
    """Decorator that makes a constraint known under the name of its option."""
    constraints.register(constraint.option.name)(constraint())
    return constraint


import_modules(__name__, __path__)
