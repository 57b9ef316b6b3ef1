"""Search with `concat` joins, whose widths change what the next segment reads.

Segments are coupled by the backbone's width. The search fixes the widths that
arrive, finds the best design for them exactly, takes over the widths that this
design has, and repeats; designs count only with the costs of their own widths.
The result meets every rule; it is not proved optimal.
"""

from collections.abc import Callable, Sequence

from stretch.planning.search.exact import SearchResult, search_exact
from stretch.planning.search.space import DesignSpace

#: Rounds in which a design must be found, and after which one that was found is taken.
ROUNDS, ENOUGH = 12, 4


def search_concat(build: Callable[[Sequence[int] | None], DesignSpace], low: int, high: int, n_meet: int) -> SearchResult | None:
    """The fastest design that the rounds come upon."""
    space = build(None)
    best: SearchResult | None = None
    shift = 0
    evaluated = 0
    seen: list[tuple[int, ...]] = []
    for turn in range(ROUNDS):
        search_result = search_exact(space, low - shift, high - shift, n_meet)
        if search_result is None:
            break
        evaluated += search_result.evaluated
        arriving = tuple(search_result.arriving)
        space = build(arriving)
        real = _with_costs_of(space, search_result)
        if real is not None and low <= real.macs <= high and (best is None or real.ms < best.ms):
            best = real
        settled = bool(seen) and arriving == seen[-1]
        if best is not None and (settled or turn + 1 >= ENOUGH):
            break
        # Where widths swing to and fro, the next round aims off by half of what this one was wrong.
        wrong = (
            sum(int(space.options[i][_group(space, i, o.processors)].macs[k]) for i, (o, k) in enumerate(search_result.picks))
            - search_result.macs
        )
        shift = wrong // 2 if arriving in seen else 0
        seen.append(arriving)
    if best is None:
        return None
    return SearchResult(best.picks, best.ms, best.macs, optimal=False, gap=float("nan"), evaluated=evaluated)


def _group(space: DesignSpace, at: int, processors: tuple[str, ...]) -> int:
    return next(i for i, o in enumerate(space.options[at]) if o.processors == processors)


def _with_costs_of(space: DesignSpace, search_result: SearchResult) -> SearchResult | None:
    """The same picks at the costs of a space built for their own widths; None if a rule is broken there."""
    holder, ms, macs = space.holders.index(space.costs.host), 0.0, 0
    picks = []
    for i, (options, index) in enumerate(search_result.picks):
        current = space.options[i][_group(space, i, options.processors)]
        if not current.allowed[holder, index]:
            return None
        ms += float(current.ms[holder, index])
        macs += int(current.macs[index])
        holder = space.holders.index(space.costs.host if len(current.candidates) > 1 else current.processors[0])
        picks.append((current, index))
    return SearchResult(tuple(picks), ms + space.leaving_ms(space.holders[holder]), macs, False, float("nan"), 0)
