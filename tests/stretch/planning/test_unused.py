"""Why a processor has no work: what the sentence says is what the search finds."""

from copy import copy
from dataclasses import replace
from itertools import product
from math import ceil, floor

import msgspec
import pytest

from predictors.predictor import LatencyPredictor
from stretch.planning.choose import choose
from stretch.planning.config import PlanConfig
from stretch.planning.cost.branch import Costs
from stretch.planning.network.segments import split_segments
from stretch.planning.search.exact import search_exact
from stretch.planning.unused import unused_processors
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import LOOSE

MI9 = specified("mi9")
GRAPH = small_resnet()


def asked(device=MI9, **changes):
    """The config, the choice and what is told of it."""
    config = PlanConfig(**({"processors": ("cpu", "gpu", "dsp")} | LOOSE | changes)).checked(device)
    costs = Costs(LatencyPredictor(device), config.precision)
    choice = choose(GRAPH, config, costs, split_segments(GRAPH))
    used = {name for options, _ in choice.found.picks for name in options.processors}
    return config, choice, used, unused_processors(GRAPH, config, choice, sorted(used))


def exhaustive(config, choice, processor):
    """The fastest design with a processor, over every assignment of processors to segments."""
    low, high = ceil(config.macs[0] * GRAPH.macs), floor(config.macs[1] * GRAPH.macs)
    best = []
    for groups in product(*choice.space.options):
        if any(processor in group.processors for group in groups):
            space = copy(choice.space)
            space.options = [[group] for group in groups]
            found = search_exact(space, low, high, choice.n_meet)
            if found is not None:
                best.append(found.ms)
    return min(best, default=None)


@pytest.mark.slow
def test_time_of_the_fastest_design_with_it_is_that_of_an_exhaustive_search():
    config, choice, used, told = asked()
    assert len(told) == 3 - len(used) > 0
    for each in told:
        assert each.ms == pytest.approx(exhaustive(config, choice, each.processor))
        assert each.ms >= each.best_ms == choice.found.ms
        assert f"the {each.processor} is not used: the fastest design that uses it is predicted to take {each.ms:.2f} ms" in each.sentence
        assert each.rule == ""


def test_merged_stages_do_not_pass_for_a_use():
    _, choice, _, told = asked(slow_start(30), merge="always")
    assert choice.space.longest_span > 1
    assert any(options.span > 1 for options, _ in choice.found.picks)
    for each in told:
        assert each.ms > each.best_ms == choice.found.ms
    assert "dsp" in [each.processor for each in told]


def slow_link(factor):
    """The device with exchanges of the dsp so many times slower."""
    link = MI9.links["dsp"]
    changes = {name: slower(getattr(link, name), factor) for name in ("map_ms", "unmap_ms", "sync_ms")}
    return replace(MI9, links=MI9.links | {"dsp": msgspec.structs.replace(link, **changes)})


def slow_start(factor):
    """The device with launches of the dsp so many times slower."""
    dsp = MI9.processors["dsp"]
    return replace(MI9, processors=MI9.processors | {"dsp": msgspec.structs.replace(dsp, launch_us=slower(dsp.launch_us, factor))})


def slower(quantity, factor):
    return msgspec.structs.replace(quantity, value=quantity.value * factor)


@pytest.mark.parametrize(
    ("device", "flag", "measure"),
    [
        (slow_link(1000), "alpha", lambda g, base: g.exchange_ms.min() / base),
        (slow_start(1000), "beta", lambda g, base: g.slowest_ms.min() / base),
    ],
)
def test_rule_that_keeps_it_out_is_named_with_the_nearest_value(device, flag, measure):
    _, choice, _, told = asked(device)
    each = next(each for each in told if each.processor == "dsp")
    groups = [o for options in choice.space.options for o in options if "dsp" in o.processors and len(o.candidates) > 1]
    nearest = min(measure(group, choice.space.alone_ms(group)) for group in groups)
    assert f"no branch on it meets `{flag}`: " in each.rule
    assert f" {nearest:.2g} " in each.rule
    assert "at most 10 is allowed" in each.rule
