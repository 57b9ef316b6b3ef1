"""Why no design meets the constraints: the tightest rule and the nearest value at which there is one."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from math import ceil, floor, log10

import msgspec

from predictors.errors import InfeasibleError
from predictors.graph import OpGraph
from stretch.planning.config import PlanConfig
from stretch.planning.constraints import ConstraintFilter
from stretch.planning.search import search_exact
from stretch.planning.search.space import DesignSpace

#: Bisections for the nearest value of a rule; the last one is exact to 1 in 4 000.
STEPS = 12
#: Floors are lowered in these steps, each of which needs a new design space.
FLOORS = tuple(round(0.975 - 0.025 * i, 3) for i in range(37))

_LOWER, _UPPER = "--macs, lower end", "--macs, upper end"
_FLOOR_FLAGS = ("--min-depth", "--min-width")


@dataclass(frozen=True)
class _Rule:
    """A rule that may be to blame.

    Args:
        flag: Its name on the command line.
        value: Its value now.
        loosest: A value at which it rules nothing out.
        change: The configuration with another value.
    """

    flag: str
    value: float
    loosest: float
    change: Callable[[float], PlanConfig]


def explain_infeasible(
    graph: OpGraph, space: DesignSpace, config: PlanConfig, build: Callable[[PlanConfig], DesignSpace]
) -> InfeasibleError:
    """The error for a request that no design meets.

    Every rule is dropped alone; of those whose absence helps, the one that
    needs the smallest relative change is named with the nearest value that
    works, which is checked by a search.

    Args:
        graph: The original network.
        space: The design space of the request.
        config: The request, checked.
        build: Makes the design space of another request.
    """
    if not any(len(o.candidates) > 1 for options in space.options for o in options):
        return InfeasibleError(f"`{graph.name}` has no segment that can branch", "give other meeting points with --meet, or another model")

    can_branch = space.most_meetings
    low, high = ceil(config.macs[0] * graph.macs), floor(config.macs[1] * graph.macs)
    if 0 < can_branch < config.n_meet and search_exact(space, low, high, can_branch) is not None:
        return InfeasibleError(
            f"no design of `{graph.name}` meets the constraints; the tightest is --n-meet {config.n_meet}",
            f"the nearest value with a design is --n-meet {can_branch}",
        )

    def feasible(changed: PlanConfig) -> bool:
        same_floors = (changed.min_depth, changed.min_width) == (config.min_depth, config.min_width)
        other = space.under(ConstraintFilter.of(changed)) if same_floors else build(changed)
        low, high = ceil(changed.macs[0] * graph.macs), floor(changed.macs[1] * graph.macs)
        return search_exact(other, low, high, changed.n_meet) is not None

    best: tuple[float, _Rule, float] | None = None
    for rule in _rules(space, config):
        # Lower floors need a larger space; with three processors they are tried last.
        if best is not None and rule.flag in _FLOOR_FLAGS and len(config.processors) > 2:
            continue
        if not feasible(rule.change(rule.loosest)):
            continue
        value = _nearest(rule, feasible)
        change = abs(value - rule.value) / abs(rule.value)
        if best is None or change < best[0]:
            best = (change, rule, value)
    if best is None:
        return _explain_pair(graph, _rules(space, config), config, feasible)
    _, rule, value = best
    return InfeasibleError(
        f"no design of `{graph.name}` meets the constraints; the tightest is {_setting(rule, rule.value, config)}",
        f"the nearest value with a design is {_setting(rule, value, config)}",
    )


def _explain_pair(graph: OpGraph, rules: list[_Rule], config: PlanConfig, feasible: Callable[[PlanConfig], bool]) -> InfeasibleError:
    """The error where one rule alone does not help: two that together do, with values that work together."""
    for first, second in combinations(rules, 2):
        if not feasible(_both(config, first, first.loosest, second, second.loosest)):
            continue

        def with_second_free(changed: PlanConfig, second: _Rule = second) -> bool:
            return feasible(_merged(config, changed, second.change(second.loosest)))

        value = _nearest(first, with_second_free)

        def with_first_set(changed: PlanConfig, first: _Rule = first, value: float = value) -> bool:
            return feasible(_merged(config, first.change(value), changed))

        other = _nearest(second, with_first_set)
        together = f"{_setting(first, value, config)} with {_setting(second, other, config)}"
        return InfeasibleError(
            f"no design of `{graph.name}` meets the constraints; the tightest are "
            f"{_setting(first, first.value, config)} and {_setting(second, second.value, config)}",
            f"the nearest values with a design are {together}",
        )
    return InfeasibleError(
        f"no design of `{graph.name}` meets the constraints, and dropping any two of them does not help",
        "give other meeting points with --meet, or other processors",
    )


def _both(config: PlanConfig, first: _Rule, one: float, second: _Rule, two: float) -> PlanConfig:
    return _merged(config, first.change(one), second.change(two))


def _merged(config: PlanConfig, first: PlanConfig, second: PlanConfig) -> PlanConfig:
    """`config` with what either of two others changes; both ends of the range of multiply-accumulates count apart."""
    changes = {
        name: getattr(other, name)
        for other in (first, second)
        for name in config.__struct_fields__
        if getattr(other, name) != getattr(config, name)
    }
    low, high = ((a if a != c else b) for a, b, c in zip(first.macs, second.macs, config.macs, strict=True))
    return msgspec.structs.replace(config, **(changes | {"macs": (low, high)}))


def _setting(rule: _Rule, value: float, config: PlanConfig) -> str:
    """A rule with a value, as it is written on the command line."""
    if rule.flag == _LOWER:
        return f"--macs {_text(value)}:{_text(config.macs[1])}"
    if rule.flag == _UPPER:
        return f"--macs {_text(config.macs[0])}:{_text(value)}"
    return f"{rule.flag} {_text(value)}"


def _text(value: float) -> str:
    return f"{value:.6g}" if value < 1e6 else str(round(value))


def _rules(space: DesignSpace, config: PlanConfig) -> list[_Rule]:
    def change(field: str) -> Callable[[float], PlanConfig]:
        return lambda value: msgspec.structs.replace(config, **{field: value})

    low, high = config.macs
    rules = [
        _Rule("--alpha", config.alpha, 1e6, change("alpha")),
        _Rule("--beta", config.beta, 1e6, change("beta")),
        _Rule("--balance", config.balance, 1e-6, change("balance")),
        _Rule("--segment-macs", config.segment_macs, 1e-6, change("segment_macs")),
        _Rule(_LOWER, low, min(0.01, low / 2), lambda value: msgspec.structs.replace(config, macs=(value, high))),
        _Rule(_UPPER, high, max(100.0, high * 2), lambda value: msgspec.structs.replace(config, macs=(low, value))),
        _Rule("--min-depth", config.min_depth, FLOORS[-1], change("min_depth")),
        _Rule("--min-width", config.min_width or 1.0, FLOORS[-1], change("min_width")),
    ]
    if config.n_meet > 1:
        rules.append(_Rule("--n-meet", config.n_meet, 1, lambda value: msgspec.structs.replace(config, n_meet=round(value))))
    if config.peak_memory is not None:
        largest = max(int(o.peak_bytes.max()) for options in space.options for o in options)
        rules.append(
            _Rule(
                "--peak-memory",
                config.peak_memory,
                max(largest, config.peak_memory),
                lambda value: msgspec.structs.replace(config, peak_memory=ceil(value)),
            )
        )
    return rules


def _nearest(rule: _Rule, feasible: Callable[[PlanConfig], bool]) -> float:
    """The value nearest to the present one at which there is a design, rounded towards the loose side."""
    steps = _ladder(rule)
    if steps is not None:
        low, high = 0, len(steps) - 1
        while low < high:
            middle = (low + high) // 2
            if feasible(rule.change(steps[middle])):
                high = middle
            else:
                low = middle + 1
        return steps[high]
    tight, loose = rule.value, rule.loosest
    # First by factors of ten, so that bisection starts near the value.
    outward = 10.0 if loose > tight else 0.1
    near = tight * outward
    while (near < loose if loose > tight else near > loose) and not feasible(rule.change(near)):
        tight, near = near, near * outward
    loose = min(near, loose) if loose > tight else max(near, loose)
    for _ in range(STEPS):
        middle = (tight + loose) / 2
        if feasible(rule.change(middle)):
            loose = middle
        else:
            tight = middle
    rounded = _outward(loose, up=loose > rule.value)
    return rounded if feasible(rule.change(rounded)) else loose


def _ladder(rule: _Rule) -> list[float] | None:
    """The values to choose from, tight to loose, where a rule has steps."""
    if rule.flag in _FLOOR_FLAGS:
        return [f for f in FLOORS if f < rule.value]
    if rule.flag == "--n-meet":
        return [float(n) for n in range(round(rule.value) - 1, 0, -1)]
    return None


def _outward(value: float, *, up: bool) -> float:
    """`value` with four digits, rounded up or down."""
    digits = 3 - floor(log10(value))
    scale = 10.0**digits
    return (ceil(value * scale) if up else floor(value * scale)) / scale
