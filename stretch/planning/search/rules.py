"""All constraints of one request together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stretch.planning.config import PlanConfig
from stretch.planning.constraints import Constraint, all_constraints
from stretch.planning.cost.options import Mask, SegmentOptions
from stretch.planning.network.segments import Segment

#: Width ratios are offered in steps of 1/32; legal widths nearest to them are tried.
WIDTH_STEPS = 32


@dataclass(frozen=True)
class Rules:
    """The constraints of one request."""

    values: Mapping[str, Any]  # What is asked for, by the name of the option; rules that are not asked for are left out.

    @classmethod
    def of(cls, request: PlanConfig) -> "Rules":
        """The rules of a checked request."""
        mapping = {constraint.option.name: getattr(request, constraint.option.name) for constraint in all_constraints()}
        return cls({name: value for name, value in mapping.items() if value is not None})

    @cached_property
    def active(self) -> list[tuple[Constraint, Any]]:
        """The constraints that are asked for, each with its value."""
        return [
            (constraint, self.values[constraint.option.name]) for constraint in all_constraints() if constraint.option.name in self.values
        ]

    @cached_property
    def floors(self) -> dict[str, Any]:
        """What decides which depths and widths there are."""
        return {item.option.name: value for item, value in self.active if item.offers}

    def depths(self, segment: Segment) -> list[int]:
        """Depths a branch may have, ascending."""
        every = range(max(1, segment.min_depth), segment.depth + 1)
        return [depth for depth in every if all(item.offers_depth(value, segment, depth) for item, value in self.active)]

    def offers_width(self, segment: Segment, width: float) -> bool:
        """Whether a branch may have so many channels."""
        return all(item.offers_width(value, segment, width) for item, value in self.active)

    def widths(self, segment: Segment, legal: Sequence[int]) -> list[int]:
        """Widths a branch may have, ascending: of the legal ones, those nearest to an even grid of ratios.

        Args:
            legal: Widths that the processor's slice and the segment's groups allow.
        """
        allowed = [width for width in legal if self.offers_width(segment, width)]
        if len(allowed) <= WIDTH_STEPS // 2 + 1:
            return allowed
        targets = [segment.width * i / WIDTH_STEPS for i in range(1, WIDTH_STEPS + 1)]
        near = {min(allowed, key=lambda w: abs(w - t)) for t in targets if self.offers_width(segment, t)}
        return sorted(near | {allowed[0]})

    def allowed(self, options: SegmentOptions, segment_ms: float) -> Mask:
        """Which combinations keep to every rule, per processor that may hold the tensor before."""
        kept = np.ones(options.ms.shape, bool)
        for constraint, value in self.active:
            if options.exact and not constraint.exact:
                continue
            if (options.branched or constraint.whole) and (mask := constraint.mask(value, options, segment_ms)) is not None:
                kept &= mask
        return kept
