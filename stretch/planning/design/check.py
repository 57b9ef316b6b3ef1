"""Whether a segment's join fits its branches."""

from predictors.errors import StretchError
from predictors.joins import join_of, joins_that
from stretch.planning.design.bands import check_rows
from stretch.planning.design.branch_design import SegmentDesign
from stretch.planning.design.channels import check_channels
from stretch.planning.design.paths import check_paths
from stretch.planning.design.portions import check_portions
from stretch.planning.network.segments import Segment


def check_join(segment: Segment, design: SegmentDesign) -> None:
    """Refuse a segment whose join does not fit its branches."""
    where, join = f"segment `{segment.name}`", join_of(design.join)
    if join.placed or any(b.ends is not None for b in design.branches):
        check_portions(segment, design)
        return
    processors = [b.processor for b in design.branches]
    if not processors or len(set(processors)) != len(processors):
        raise StretchError(f"{where} needs one branch per processor, it has {', '.join(processors) or 'none'}")
    if len(processors) == 1:
        alone = design.branches[0]
        if (alone.rows, alone.paths, alone.channels) != (None, None, None) or join.exact:
            what = "paths" if join.paths or alone.paths is not None else "rows"
            what = "channels" if join.channels or alone.channels is not None else what
            raise StretchError(
                f"{where} has one branch, and {what} are divided among two or more", f'leave out its {what} and its join = "{design.join}"'
            )
        if join.convolves:
            raise StretchError(f"{where} has one branch and nothing to join by `{design.join}`", 'set join = "none"')
        if join.meets is None and design.branches[0].width != segment.width:
            raise StretchError(f'{where} keeps its width {segment.width} with join = "none"', 'set join = "concat" to let the width change')
        return
    if join.meets is None:
        first, *others = (f'"{name}"' for name in joins_that(lambda join: True))
        raise StretchError(f"{where} has {len(processors)} branches that nothing joins", f"set join to {', '.join(others)} or {first}")
    if len(segment.graph.by_name[segment.end].shape) != 4 and not join.channels:
        raise StretchError(f"{where} ends with a vector, branches join at feature maps", "let it end before the flattening")
    check_rows(segment, design)
    check_paths(segment, design)
    check_channels(segment, design)
    if join.divides and sum(b.partition for b in design.branches) != segment.width:
        raise StretchError(
            f"{where} has partitions that add up to {sum(b.partition for b in design.branches)}, its width is {segment.width}"
        )
