"""All legal designs of one network on one device, as arrays of options per segment."""

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import replace
from itertools import combinations
from math import log10, prod

import numpy as np

from predictors.joins import DEFAULT, JoinKind
from stretch.planning.cost.branch import Costs
from stretch.planning.cost.options import Mask, SegmentOptions
from stretch.planning.network.segments import Segment, join_kinds
from stretch.planning.search.lazy_options import LazyOptions, OptionsCache, Thinning, pixels
from stretch.planning.search.rules import Rules

#: Scales of a branch that are looked at first where any will do.
SAMPLE = Thinning(4, 3)
#: Combinations of scales in runs of segments up to which all of them are worked out.
MOST_COMBINATIONS = 400_000
#: Scales of a branch in a run where there are more, by the number of processors: combinations are a power of it. The search for the least
#: latency (`stretch.planning.search.pruning`) has all of them nevertheless.
STEPS = {2: Thinning(9, 8), 3: Thinning(6, 6)}
#: The same with more processors.
FEWEST = Thinning(4, 3)


class DesignSpace:
    """Every combination of processors, depths and widths of every segment.

    Most joins keep the width of the backbone, so segments are independent of each
    other. One that widens it, such as `concat`, couples them: then costs hold
    for the number of channels that `arriving` states per segment. Where what
    follows cannot read other widths, `project` takes its place.

    Scaled copies are offers (`stretch.planning.search.lazy_options`) until somebody asks for all options:
    some searches work out the few that they need.

    Args:
        segments: The segments of the network, in order.
        processors: Processors that branches may use.
        costs: Costs on the device.
        rules: The constraints.
        join: How branches meet.
        arriving: Channels that arrive at each segment; the original's if None.
        stretched: Whether segments may become scaled copies; else all stay whole.
        kept: Names of those that may not.
        holders: Processors that may hold a tensor between segments; those that branches may use if None. Designs of spaces that
            differ in `processors` alone can be told by the same measures where these are the same.
    """

    def __init__(
        self,
        segments: Sequence[Segment],
        processors: Sequence[str],
        costs: Costs,
        rules: Rules,
        join: JoinKind = DEFAULT,
        arriving: Sequence[int] | None = None,
        *,
        stretched: bool = True,
        kept: Collection[str] = (),
        holders: Sequence[str] | None = None,
    ) -> None:
        self.segments = tuple(segments)
        self.processors = tuple(processors)
        #: Processors that may hold a tensor between segments; the host joins even where no branch uses it.
        self.holders = tuple(dict.fromkeys((costs.host, *(processors if holders is None else holders))))
        self.costs = costs
        self.rules = rules
        self.join = join
        self.kept = frozenset(kept)
        self.arriving = tuple(arriving) if arriving is not None else tuple(s.in_width for s in self.segments)
        #: What is worked out already of each segment's options, by the segment at which they start.
        self.ready: list[list[SegmentOptions]] = []
        #: What is not.
        self.offers: list[list[LazyOptions]] = []
        #: Whether `options` lacks some scales of segments that the space has.
        self.thinned = False
        self._options: list[list[SegmentOptions]] | None = None
        for i, segment in enumerate(self.segments):
            self.ready.append([self.whole(segment, p, self.arriving[i]) for p in self.processors])
            able = stretched and segment.branchable and segment.name not in self.kept
            self.offers.append(self.offered(segment, i, 1) if able else [])

    @property
    def options(self) -> list[list[SegmentOptions]]:
        """All options of each segment, by the segment at which they start."""
        if self._options is None:
            built = [[self.checked(offer.options(self.holders)) for offer in offers if offer.count] for offers in self.offers]
            self._options = [[*ready, *more] for ready, more in zip(self.ready, built, strict=True)]
        return self._options

    @options.setter
    def options(self, options: list[list[SegmentOptions]]) -> None:
        self._options, self.ready, self.offers = options, options, [[] for _ in options]

    @property
    def size_log10(self) -> float:
        """Decimal logarithm of the number of designs, constraints aside."""
        # from the end: designs of everything behind a segment; an integer has no upper limit
        behind = [1]
        for ready, offers in zip(reversed(self.ready), reversed(self.offers), strict=True):
            some = [(len(options.macs), options.span) for options in ready] + [(offer.full.count, offer.span) for offer in offers]
            behind.insert(0, sum(count * behind[span - 1] for count, span in some))
        return log10(behind[0])

    @property
    def most_meetings(self) -> int:
        """Most segments that can branch in one design, each by itself within the rules."""
        behind = [0]
        for ready, offers in zip(reversed(self.ready), reversed(self.offers), strict=True):
            able = [1 + behind[o.span - 1] for o in ready if o.branched and o.allowed.any()]
            able += [1 + behind[offer.span - 1] for offer in offers if offer.count and self._able(offer)]
            behind.insert(0, max([behind[0], *able]))
        return behind[0]

    def _able(self, offer: LazyOptions) -> bool:
        """Whether some way of an offer keeps to the rules; few of its scales mostly tell."""
        some = (offer.full.thinned(SAMPLE), offer)
        return any(self.checked(item.options(self.holders)).allowed.any() for item in some)

    @property
    def longest_span(self) -> int:
        """Segments in the longest run that may be merged; 1 where none may."""
        return max(o.span for options in (*self.ready, *self.offers) for o in options)

    def alone_ms(self, options: SegmentOptions) -> float:
        """The original segment on the fastest of the processors that its options use, ms.

        Rules compare with it, so that what two processors may do does not depend on which others there are.
        """
        if options.alone_ms is not None:
            return options.alone_ms
        return min(self.costs.whole(options.segment, p).ms for p in options.processors)

    def leaving_ms(self, holder: str) -> float:
        """Transfer of the network's output to the host, from the processor that holds it, ms."""
        last = self.segments[-1]
        return self.costs.transfer(holder, self.costs.host, prod(last.graph.by_name[last.end].shape))

    def whole(self, segment: Segment, processor: str, arriving: int) -> SegmentOptions:
        """The way to run a segment in one piece on a processor, where so many channels arrive."""
        cost = self.costs.branch(segment, processor, segment.depth, segment.width, arriving)
        elements = pixels(segment, segment.start) * arriving
        entering = np.array([[self.costs.transfer(h, processor, elements)] for h in self.holders])
        ms = np.array([cost.ms])
        return self.checked(SegmentOptions(
            segment, "none", ((cost,),), np.array([cost.macs]), np.array([cost.params]), entering + ms, np.ones((len(self.holders), 1), bool),
            np.ones(1), entering, ms, ms, np.array([cost.peak_bytes]), busy=lambda: {processor: ms},
        ))  # fmt: skip

    def offered(self, segment: Segment, first: int, span: int) -> list[LazyOptions]:
        """A segment in scaled copies, on every subset of the processors."""
        following = self.segments[first + span] if first + span < len(self.segments) else None
        kind: JoinKind = self.join if self.join in join_kinds(segment, following) else DEFAULT
        counts = range(2, min(len(self.processors), segment.width) + 1)
        subsets = (subset for count in counts for subset in combinations(self.processors, count))
        every = (LazyOptions(segment, subset, kind, self.arriving[first], self.costs, self.rules, span) for subset in subsets)
        return [self.costs.remembered(OptionsCache).shared(offer) for offer in every]

    def with_offers(self, more: Sequence[Sequence[LazyOptions]]) -> "DesignSpace":
        """The same designs and those that use `more`, listed by the segment at which they start."""
        other = copy(self)
        other._options = None
        other.offers = [[*offers, *extra] for offers, extra in zip(self.offers, more, strict=True)]
        return other

    def with_runs(self, more: Sequence[Sequence[LazyOptions]]) -> "DesignSpace":
        """The same with offers of runs of segments; of more than `MOST_COMBINATIONS` combinations `options` has only those of a few scales.

        Those of many branches are thinned first.
        """
        thinned = False
        for branches in range(len(self.processors), 1, -1):
            if sum(offer.count for extra in more for offer in extra) <= MOST_COMBINATIONS:
                break
            few = STEPS.get(len(self.processors), FEWEST)
            more = [[offer.thinned(few) if len(offer.subset) == branches else offer for offer in extra] for extra in more]
            thinned = True
        other = self.with_offers(more)
        other.thinned = self.thinned or thinned
        return other

    def checked(self, options: SegmentOptions) -> SegmentOptions:
        """Options with the rules applied."""
        return replace(options, allowed=self.allowed(options))

    def allowed(self, options: SegmentOptions) -> Mask:
        """Which combinations meet every rule, per holder."""
        return self.rules.allowed(options, self.alone_ms(options))

    def under(self, rules: Rules) -> "DesignSpace":
        """The same designs under other rules; the floors on depth and width are taken as they are."""
        other = copy(self)
        other.rules = rules
        other.options = [[other.checked(o) for o in options] for options in self.options]
        return other
