"""Width scaling: how many channels a branch may have (paper 003, R_width)."""

from collections.abc import Iterable, Sequence
from math import gcd, lcm

from predictors.channels import Pieces
from predictors.devices import DeviceProfile
from predictors.errors import StretchError
from stretch.planning.network.channels import ChannelGroups
from stretch.planning.network.segments import Segment

#: Width ratios that are tried where a branch's trunk is a concatenation of several groups.
_RATIOS = tuple(n / 64 for n in range(1, 65))


def scaled_units(units: int, per: int, ratio: float, align: int) -> int:
    """Units a group keeps at a width ratio, its channels a multiple of `align` where it is large enough."""
    if ratio == 1:
        return units
    step = align // gcd(align, per)
    wanted = units * ratio
    if wanted < step:
        return max(1, round(wanted))
    return round(wanted / step) * step


def aligns(device: DeviceProfile, processors: Iterable[str]) -> dict[str, int]:
    """Channels that each processor computes at a time, of which its branches' widths are multiples."""
    return {name: device.processor(name).width_slice for name in processors}


def legal_widths(segment: Segment, align: int, floor: float = 0.0, ceiling: float = 1.0) -> list[int]:
    """Widths a branch of `segment` may have, ascending; the original width is always one.

    Args:
        segment: The segment.
        align: Width rounding of the processor, in channels.
        floor: Smallest width ratio.
        ceiling: Largest width ratio; above 1 where a sequential control widens.
    """
    full = segment.width
    if segment.fixed_width:
        return [full]
    pieces = segment.channels.pieces[segment.end]
    if len(pieces) == 1:
        step = lcm(align, pieces[0][1])
        widths = set(range(step, int(full * ceiling) + 1, step))
    else:
        widths = set(trunk_widths(segment.channels, pieces, align))
    return sorted({w for w in widths if floor * full <= w <= ceiling * full} | {full})


def trunk_widths(channels: ChannelGroups, pieces: Pieces, align: int) -> dict[int, float]:
    """Width of a concatenated trunk → the ratio of its groups; what comes from the input stays."""
    per = per_unit(channels)
    widths: dict[int, float] = {}
    for ratio in _RATIOS:
        kept = {g: scaled_units(channels.units[g], per[g], ratio, align) if _scales(channels, g) else channels.units[g] for g, _ in pieces}
        widths[sum(kept[g] * size for g, size in pieces)] = ratio
    return widths


def _scales(channels: ChannelGroups, group: int) -> bool:
    return group not in channels.frozen and group != channels.input_group


def per_unit(channels: ChannelGroups) -> dict[int, int]:
    """Channels of one unit where its group is narrowest: at its producers."""
    per: dict[int, int] = {}
    for pieces in channels.pieces.values():
        for group, size in pieces:
            per[group] = min(per.get(group, size), size)
    return per


def partitions(width: int, widths: Sequence[int], align: int) -> list[int]:
    """Channels each branch of a `project` join contributes: in proportion to its width, in steps of `align`.

    Args:
        width: Channels of the joined tensor.
        widths: Channels of each branch's trunk.
        align: Step; 1 is used where `width` is not a multiple of it or too small.

    Raises:
        StretchError: If there are more branches than channels.
    """
    if width < len(widths):
        raise StretchError(f"{width} channels cannot be divided among {len(widths)} branches", "use fewer processors, or join by `sum`")
    step = align if width % align == 0 and width // align >= len(widths) else 1
    slots, total = width // step, sum(widths)
    exact = [slots * w / total for w in widths]
    counts = [max(1, int(e)) for e in exact]
    while sum(counts) != slots:
        short = sum(counts) < slots
        errors = [e - c for e, c in zip(exact, counts, strict=True)]
        if short:
            counts[errors.index(max(errors))] += 1
        else:
            over = [i for i, c in enumerate(counts) if c > 1]
            counts[min(over, key=lambda i: errors[i])] -= 1
    return [c * step for c in counts]
