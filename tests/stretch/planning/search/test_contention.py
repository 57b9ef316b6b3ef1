"""Plans for pairs of processors that slow each other down or speed each other up."""

from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictors.devices import load_device
from scheduler.simulate.clock import predicted_trace
from stretch.planning.config import PlanConfig
from stretch.planning.cost.makespan import timeline
from stretch.planning.plan import plan
from stretch.planning.search.exact import search_exact, search_pruned
from stretch.planning.search.space import Totals
from tests.effort import examples
from tests.predictors.networks import small_resnet
from tests.predictors.specified import contending, kept, specified
from tests.stretch.planning.spaces import LOOSE, as_design, fastest_by_brute_force, make_space

GRAPH = small_resnet(64)
PAIRS = list(permutations(("cpu", "gpu", "dsp"), 2))
FACTORS = st.fixed_dictionaries(dict.fromkeys(PAIRS, st.sampled_from((0.5, 0.8, 1.0, 1.3, 2.0))))


@settings(max_examples=examples(20))
@given(FACTORS, st.sampled_from([("cpu", "gpu"), ("cpu", "gpu", "dsp")]))
def test_search_equals_brute_force_and_no_timeline_takes_longer_than_the_search_states(factors, processors):
    device = contending(specified("mi9"), factors)
    floor = 0.85 if len(processors) == 2 else 0.95
    space = make_space(GRAPH, device, processors, min_width=floor)
    low, high = round(0.9 * GRAPH.macs), round(1.6 * GRAPH.macs)
    found = search_exact(space, Totals(low, high, 1))
    assert found.ms == pytest.approx(fastest_by_brute_force(space, low, high, 1)[0])
    assert search_pruned(space, Totals(low, high, 1))[0].ms == pytest.approx(found.ms)
    run = timeline(GRAPH, as_design(GRAPH, found.segments(space.costs)), space.costs)
    # a processor slows down again as soon as the processor that speeds it up has finished, earlier than the search assumes
    if min(factors.values()) >= 1:
        assert run.makespan_ms <= found.ms * (1 + 1e-9)
    if min(factors.values()) >= 1 and max(factors.values()) == 1:
        assert run.makespan_ms == pytest.approx(found.ms)


def profile_with(factors, folder):
    """The file of a profile whose processors change each other's speed."""
    lines = []
    for line in Path(kept("mi9")).read_text().splitlines():
        lines.append(line)
        for (slowed, other), value in factors.items():
            if line == f"[processors.{slowed}]":
                lines.append(f'contention.{other} = {{ value = {value}, low = 0.1, high = 9, memory = 1.5, source = "uncertainty" }}')
    path = folder / "mi9.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.torch
@pytest.mark.representatives(2)
@pytest.mark.parametrize("factors", [None, (0.7, 1.4, 1.2, 0.8, 1.0, 1.1), (1.1, 1.2, 0.6, 0.9, 1.3, 1.0)])
def test_simulation_takes_as_long_as_the_timeline(factors, tmp_path):
    pytest.importorskip("torch")
    import stretch
    from scheduler.bundle.load import load_bundle

    # the unchanged profile has measured constants, which a run adds once
    device = "mi9" if factors is None else str(profile_with(dict(zip(PAIRS, factors, strict=True)), tmp_path))
    config = PlanConfig(processors=("cpu", "gpu", "dsp"), alpha=50, beta=50, balance=0.01)
    result = stretch.branch("tiny_resnet", device, out=tmp_path / "bundle", weights="none", config=config)
    trace = predicted_trace(load_bundle(tmp_path / "bundle").manifest, load_device(device))
    assert trace.makespan_ms == pytest.approx(result.plan.run.makespan_ms, abs=1e-5)


def test_processors_that_speed_each_other_up_make_no_plan_slower():
    config = PlanConfig(processors=("cpu", "gpu"), **LOOSE)
    makespan_ms = {
        factor: plan(GRAPH, contending(specified("mi9"), {("gpu", "cpu"): factor}), config).run.makespan_ms for factor in (0.6, 1.0, 1.5)
    }
    assert makespan_ms[0.6] <= makespan_ms[1.0] <= makespan_ms[1.5]
