"""Ways and designs that are measured are ones that a planner may choose."""

import numpy as np

from stretch.planning.design.scale import scaled_graph
from stretch.planning.search.sampling import NEAR, random_designs, trials
from tests.stretch.planning.cost.measured import GRAPH, merged_space

SPACE = merged_space()


def test_trials_keep_to_the_rules_and_compute_about_as_much_as_their_segment():
    for trial in trials(SPACE, 3):
        assert trial.ways.allowed[:, trial.index].any()
        assert NEAR[0] <= trial.ways.macs[trial.index] / trial.ways.segment.graph.macs <= NEAR[1]
        assert trial.ways.segment.start == SPACE.segments[trial.first].start
        assert trial.stages(SPACE)[0] == SPACE.segments[trial.first].name
        assert len(trial.stages(SPACE)) == trial.ways.span


def test_first_way_of_a_segment_is_its_fastest():
    found = trials(SPACE, 1)
    for trial in found:
        every = [w for w in SPACE.options[trial.first] if w.span == trial.ways.span and w.branched]
        fastest = min(
            float(
                np.where(w.allowed, w.ms, np.inf)[
                    :, (w.macs / w.segment.graph.macs >= NEAR[0]) & (w.macs / w.segment.graph.macs <= NEAR[1])
                ].min()
            )
            for w in every
        )
        assert float(trial.ways.ms[:, trial.index].min()) <= fastest + 1e-9


def test_random_designs_branch_fit_the_network_differ_and_are_the_same_for_a_seed():
    found = random_designs(SPACE, GRAPH.name, "mi9", 12, (0.9, 1.1), 3)
    assert found == random_designs(SPACE, GRAPH.name, "mi9", 12, (0.9, 1.1), 3)
    assert len(set(found)) == len(found) == 12
    for design in found:
        assert design.n_meet >= 1
        assert 0.9 <= scaled_graph(GRAPH, design).macs / GRAPH.macs <= 1.1
    assert len({tuple(part.name for part in design.segments if not part.whole) for design in found}) == 4


def test_space_without_designs_in_the_range_gives_fewer():
    assert random_designs(SPACE, GRAPH.name, "mi9", 2, (0.01, 0.02), 0) == []
