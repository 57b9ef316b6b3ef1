from itertools import product

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import UsageError
from scheduler.bundle.load import load_bundle
from scheduler.bundle.manifest import Alternative
from scheduler.placement.priority import choose_processors


@pytest.fixture(scope="module")
def manifest(bundles, tmp_path_factory):
    """cpu is slow and thirsty, gpu fast; what a subgraph takes does not depend on it."""
    return with_times(load_bundle(bundles.two_branches(tmp_path_factory.mktemp("b"))).manifest, {"cpu": (3.0, 9.0), "gpu": (1.0, 2.0)})


def with_times(manifest, times, **changes):
    ways = {name: Alternative(*time) for name, time in times.items()}
    entries = tuple(msgspec.structs.replace(s, alternatives=ways, **changes) for s in manifest.subgraphs)
    return msgspec.structs.replace(manifest, subgraphs=entries)


def places(manifest):
    return {entry.name: entry.processor for entry in manifest.subgraphs}


def test_work_of_a_processor_that_is_left_out_moves_with_its_prediction(manifest):
    moved = choose_processors(manifest, ["gpu"])
    assert set(places(moved).values()) == {"gpu"}
    assert {entry.name: entry.predicted_ms for entry in moved.subgraphs if entry.name == "stem"} == {"stem": 1.0}


def test_energy_goes_where_least_is_taken_though_branches_then_wait(manifest):
    assert set(places(choose_processors(manifest, priority="energy")).values()) == {"gpu"}


def test_latency_keeps_branches_apart_while_that_is_done_first(manifest):
    both = places(choose_processors(with_times(manifest, {"cpu": (1.5, 9.0), "gpu": (1.0, 2.0)}), priority="latency"))
    assert {both["s1.cpu"], both["s1.gpu"]} == {"cpu", "gpu"}
    slow = places(choose_processors(with_times(manifest, {"cpu": (3.0, 9.0), "gpu": (1.0, 2.0)}), priority="latency"))
    assert slow["s1.cpu"] == slow["s1.gpu"] == "gpu"


def test_branches_that_cost_the_same_anywhere_stay_where_they_were_designed(manifest):
    same = with_times(manifest, {"cpu": (1.0, 1.0), "gpu": (1.0, 1.0)})
    assert places(choose_processors(same, priority="latency")) == places(manifest)


def test_float_subgraph_is_not_moved_to_a_processor_without_floating_point(bundles, tmp_path):
    ways = {"cpu": (3.0, 9.0), "dsp": (1.0, 1.0)}
    manifest = load_bundle(bundles.two_branches(tmp_path / "b", processors=("cpu", "dsp"))).manifest
    assert places(choose_processors(with_times(manifest, ways), priority="energy"))["stem"] == "cpu"
    assert places(choose_processors(with_times(manifest, ways, precision="int8"), priority="energy"))["stem"] == "dsp"


@pytest.mark.parametrize(("ways", "what"), [({"cpu": (1.0, 1.0)}, "time"), ({"cpu": (1.0, None), "gpu": (1.0, None)}, "energy")])
def test_priority_without_the_predictions_it_needs_is_a_usage_error(manifest, ways, what):
    with pytest.raises(UsageError, match=f"needs the predicted {what}"):
        choose_processors(with_times(manifest, ways), priority="energy")


times = st.floats(0.1, 10)


@given(st.lists(st.tuples(times, times, times, times), min_size=6, max_size=6))
def test_no_other_distribution_of_a_segment_takes_less(manifest, drawn):
    """Oracle: every distribution, tried."""
    entries = tuple(
        msgspec.structs.replace(s, alternatives={"cpu": Alternative(a, b), "gpu": Alternative(c, d)})
        for s, (a, b, c, d) in zip(manifest.subgraphs, drawn, strict=True)
    )
    given_ = msgspec.structs.replace(manifest, subgraphs=entries)
    fast, frugal = (choose_processors(given_, priority=p) for p in ("latency", "energy"))
    for segment in ("s1", "s2"):
        branches = [e for e in entries if e.segment == segment]

        def slowest(names, branches=branches):
            return max(sum(e.alternatives[n].ms for e, n in zip(branches, names, strict=True) if n == p) for p in ("cpu", "gpu"))

        ways = list(product(("cpu", "gpu"), repeat=len(branches)))
        assert slowest([places(fast)[e.name] for e in branches]) == min(map(slowest, ways))
        least = min(sum(e.alternatives[n].mj for e, n in zip(branches, names, strict=True)) for names in ways)
        assert sum(e.alternatives[places(frugal)[e.name]].mj for e in branches) == pytest.approx(least)
