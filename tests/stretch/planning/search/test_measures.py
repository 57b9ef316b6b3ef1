"""What adds up over a design, and which processors a space may be kept to."""

import dataclasses

import msgspec
import numpy as np
import pytest

from predictors.errors import UsageError
from stretch.planning.search.exact import search_exact, search_least
from stretch.planning.search.measures import LATENCY, MACS, Power, on_only, told_by, weighed
from tests.predictors.networks import small_resnet
from tests.predictors.specified import specified
from tests.stretch.planning.spaces import every_design, make_space

GRAPH = small_resnet(blocks=(1, 1))
LOW, HIGH = round(0.9 * GRAPH.macs), round(1.6 * GRAPH.macs)


def test_total_of_a_design_is_what_the_search_says_of_it():
    space = make_space(GRAPH, min_width=0.85)
    found = search_exact(space, LOW, HIGH, 1)
    assert LATENCY.total(space, found.picks) == pytest.approx(found.ms)
    assert MACS.total(space, found.picks) == found.macs
    both = weighed((2.0, LATENCY), (1e-6, MACS), (0.0, told_by(lambda ways: np.full(len(ways.macs), np.inf))))
    assert both.total(space, found.picks) == pytest.approx(2 * found.ms + 1e-6 * found.macs)


@pytest.mark.parametrize("measure", [MACS, weighed((1.0, LATENCY), (1e-8, MACS))])
def test_design_of_least_of_a_measure_equals_brute_force(measure):
    space = make_space(GRAPH, min_width=0.85)
    found = search_least(space, LOW, HIGH, 1, measure)
    assert found.value == pytest.approx(min(measure.total(space, picks) for picks, _, _ in every_design(space, LOW, HIGH, 1)))


def test_space_kept_to_some_processors_gives_work_to_no_other():
    space = make_space(GRAPH, processors=("cpu", "gpu", "dsp"))
    part = on_only(space, ("gpu", "dsp"))
    assert on_only(space, space.processors) is space
    assert {name for options in part.options for each in options for name in each.processors} == {"gpu", "dsp"}


def test_profile_without_the_power_of_a_processor_is_refused_by_its_name():
    device = specified("mi9")
    gpu = device.processors["gpu"]
    bare = dataclasses.replace(device, processors={**device.processors, "gpu": without_power(gpu)})
    with pytest.raises(UsageError, match="states no power of the gpu"):
        Power.of(bare, ("cpu", "gpu"))
    assert set(Power.of(bare, ("cpu", "dsp")).computing) == {"cpu", "dsp"}


def without_power(processor):
    cores = {name: msgspec.structs.replace(each, power_w=None) for name, each in processor.core_sets.items()}
    return msgspec.structs.replace(processor, core_sets=cores)
