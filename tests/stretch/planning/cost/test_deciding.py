"""What a recommendation hangs on: numbers at half and at twice, and how fast the other processors would have to be."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stretch.planning.cost.compare import BRANCHED, NO_CLEAR_WINNER, Branch, PredictedRun, recommend
from stretch.planning.cost.deciding import deciding
from stretch.planning.cost.uncertain import LINKS, Unknown, computing, link

CPU, GPU = (Unknown(f"all on {name}", 1 / 1.2, 1.2, computing(name)) for name in ("cpu", "gpu"))
LINK = link("gpu")


def run(*segments, fixed=0.0):
    return PredictedRun([[Branch(parts) for parts in segment] for segment in segments], fixed)


def test_each_group_of_numbers_is_changed_in_all_runs_alike():
    branched, alone = run([{CPU: 5.0}, {GPU: 4.0, LINK: 2.0}]), run([{GPU: 9.0}])
    found = deciding(branched, {"single:gpu": alone}, (), "single:gpu")
    rows = {(row.numbers, row.factor): row for row in found.changes}
    assert set(rows) == {(group, factor) for group in (LINKS, "times on cpu", "times on gpu") for factor in (0.5, 2.0)}
    assert rows["times on gpu", 2.0].makespan_ms == pytest.approx(10.0)
    assert rows["times on gpu", 2.0].speedup == pytest.approx(18 / 10)
    assert rows["times on cpu", 2.0].makespan_ms == pytest.approx(10.0)
    assert rows["times on cpu", 2.0].speedup == pytest.approx(0.9)
    assert rows[LINKS, 0.5].makespan_ms == pytest.approx(5.0)


def test_what_would_be_recommended_is_what_is_recommended_of_runs_with_these_numbers():
    branched, alone = run([{CPU: 6.0}, {GPU: 6.0}]), run([{GPU: 9.0}])
    rows = {(row.numbers, row.factor): row.recommended for row in deciding(branched, {"single:gpu": alone}, (), None).changes}
    assert (
        rows["times on gpu", 0.5] == recommend(run([{CPU: 6.0}, {GPU: 3.0}]), {"single:gpu": run([{GPU: 4.5}])}).recommended == "single:gpu"
    )
    assert (
        rows["times on gpu", 2.0] == recommend(run([{CPU: 6.0}, {GPU: 12.0}]), {"single:gpu": run([{GPU: 18.0}])}).recommended == BRANCHED
    )


def test_controls_that_are_only_told_decide_nothing():
    branched = run([{CPU: 6.0}, {CPU: 6.0}])
    found = deciding(branched, {"trained": run([{GPU: 1.0}])}, ("trained",), None)
    assert {row.recommended for row in found.changes} == {BRANCHED}
    assert {row.speedup for row in found.changes} == {None}
    assert NO_CLEAR_WINNER not in {row.recommended for row in found.changes}


@given(st.floats(1.0, 20.0), st.floats(1.0, 20.0), st.floats(1.0, 20.0))
def test_crossover_is_where_the_branches_take_as_long_as_the_best_single_processor(cpu, gpu, alone):
    branched, single = run([{CPU: cpu}, {GPU: gpu}]), run([{GPU: alone}])
    found = deciding(branched, {"single:gpu": single}, (), "single:gpu").crossover
    if max(cpu, gpu) <= alone or gpu > alone:
        assert found is None
    else:
        assert branched.ms({CPU: 1 / found}) == pytest.approx(alone, rel=1e-4)
