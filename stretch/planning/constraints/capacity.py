"""A branched segment keeps its share of the computation; else the search would empty the expensive ones."""

from typing import TYPE_CHECKING

from stretch.planning.constraints.base import Bound, register
from stretch.planning.options import Option, Ratio

if TYPE_CHECKING:
    from stretch.planning.cost.ways import Ints, Ways


@register
class Capacity(Bound):
    """Multiply-accumulates of a branched segment over the original's."""

    option = Option(
        "segment_macs",
        Ratio,
        0.9,
        "MACs of each stretched segment over the original segment's, at least.",
        "Multiply-accumulates of each branched segment over the original segment's, at least.",
    )
    exact = False
    at_most = False
    words = "a branched segment has {:.2g} of the original's MACs at best, the limit is {:g}"

    def part(self, ways: "Ways") -> "Ints":
        """Those of the branches and their join."""
        return ways.macs

    def of(self, ways: "Ways", segment_ms: float) -> float:
        """Those of the original."""
        return ways.segment.graph.macs
