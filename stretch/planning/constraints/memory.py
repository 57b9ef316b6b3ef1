"""What runs at the same time fits into memory together."""

from collections.abc import Sequence
from math import ceil
from typing import TYPE_CHECKING, Annotated

import msgspec

from stretch.planning.constraints.base import Bound, Limit, register
from stretch.planning.options import Option

if TYPE_CHECKING:
    from stretch.planning.cost.ways import Ints, Ways


@register
class PeakMemory(Bound):
    """Activation bytes alive at one time."""

    option = Option(
        "peak_memory",
        Annotated[int, msgspec.Meta(gt=0, le=1 << 50)] | None,
        None,
        "Bytes of activations alive at one time, at most.",
    )
    whole = True
    words = "activations take {:.3g} bytes at best, at most {:.10g} are allowed"

    def part(self, ways: "Ways") -> "Ints":
        """Those of all branches."""
        return ways.peak_bytes

    def of(self, ways: "Ways", segment_ms: float) -> float:
        """One byte: the bound is no share."""
        return 1

    def limits(self, value: int, ways: "Sequence[Ways]") -> list[Limit]:
        """The bytes, up to those of the largest combination."""
        largest = max(int(way.peak_bytes.max()) for way in ways)
        return [Limit(value, max(largest, value), put=lambda _, number: ceil(number))]
