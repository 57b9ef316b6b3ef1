"""Width scaling: how many channels a branch may have (paper 003, R_width)."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from predictors.channels import Pieces
from predictors.devices import DeviceProfile
from predictors.errors import StretchError
from stretch.planning.network.channels import ChannelGroups
from stretch.planning.network.segments import Segment

#: Width ratios that are tried where a branch's backbone is a concatenation of several groups.
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
        widths = set(backbone_widths(segment.channels, pieces, align))
    return sorted({w for w in widths if floor * full <= w <= ceiling * full} | {full})


def backbone_widths(channels: ChannelGroups, pieces: Pieces, align: int) -> dict[int, float]:
    """Width of a concatenated backbone → the ratio of its groups; what comes from the input stays."""
    scaled = [(group, size) for group, size in pieces if group not in channels.frozen and group != channels.input_group]
    stays = sum(channels.units[group] * size for group, size in pieces) - sum(channels.units[group] * size for group, size in scaled)
    # backbones of dozens of pieces have few that differ
    alike = Counter((channels.units[group], channels.per_unit[group], size) for group, size in scaled)
    return {
        stays + sum(scaled_units(units, per, ratio, align) * size * count for (units, per, size), count in alike.items()): ratio
        for ratio in _RATIOS
    }


def partitions(width: int, widths: Sequence[int], align: int) -> list[int]:
    """Channels each branch of a `project` join contributes: in proportion to its width, in steps of `align`.

    Args:
        align: Step; 1 is used where `width` is not a multiple of it or too small.
    """
    result: list[int] = each_partitions(width, np.array(widths)[:, None], align)[:, 0].tolist()
    return result


def each_partitions(width: int, widths: NDArray[np.int64], align: int) -> NDArray[np.int64]:
    """The same for many combinations of widths (branches × combinations)."""
    count = len(widths)
    if width < count:
        raise StretchError(f"{width} channels cannot be divided among {count} branches", "use fewer processors, or join by `sum`")
    step = align if width % align == 0 and width // align >= count else 1
    slots = width // step
    exact = slots * widths / widths.sum(axis=0)
    counts = np.maximum(1, exact.astype(np.int64))
    while (left := slots - counts.sum(axis=0)).any():
        short, over = np.flatnonzero(left > 0), np.flatnonzero(left < 0)
        errors = exact - counts
        counts[errors[:, short].argmax(axis=0), short] += 1
        # none is left without a channel
        counts[np.where(counts > 1, errors, np.inf)[:, over].argmin(axis=0), over] -= 1
    return counts * step
