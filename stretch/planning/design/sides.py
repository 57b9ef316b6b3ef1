"""What a design says of a network's taps and sides, checked."""

from predictors.errors import StretchError
from stretch.planning.design.branch_design import BranchDesign
from stretch.planning.network.backbone import Backbone, is_tap
from stretch.planning.network.segments import Segment


def check_sides(backbone: Backbone, design: BranchDesign) -> list[str]:
    """The processor of each side of a backbone, in order."""
    names, placed = [side.name for side in backbone.sides], [side.name for side in design.sides]
    if names != placed:
        there, had = (", ".join(value) or "none" for value in (names, placed))
        raise StretchError(
            f"the design places {had} beside the backbone of `{backbone.graph.name}`, which has {there}", "give each of them a processor"
        )
    return [side.processor for side in design.sides]


def check_taps(segment: Segment, width: int) -> None:
    """See that what others read of a segment is its end, with the channels that it has in the original."""
    inner = next((op.name for op in segment.graph.ops if op.name not in (segment.start, segment.end) and is_tap(op)), None)
    if inner is not None:
        raise StretchError(
            f"segment `{segment.name}` reaches beyond `{inner}`, which is read beside the backbone or returned",
            f"let a segment end at `{inner}`",
        )
    if segment.tapped and width != segment.width:
        raise StretchError(
            f"segment `{segment.name}` has {width} channels behind its meeting point, and what is read beside the backbone needs {segment.width}",
            "join its branches by `project` or `sum`",
        )
