import numpy as np
import pytest

from predictors.fitting.formula import load_formula
from predictors.fitting.single import Timed
from predictors.fusion import fuse
from predictors.models.terms import Grain
from stretch.profiling.choose import Chooser, appoint, doubt
from stretch.profiling.styles import STYLES, draw

GRAIN = Grain(16, 1, 4)


def costs(name: str):
    style, _, seed = name.rpartition("-")
    return [kernel.cost for kernel in fuse(draw(style, int(seed)), "onnxruntime")]


@pytest.fixture(scope="module")
def committee():
    """Fits to plain networks whose kernels take a millisecond for 10⁷ products, and one for each million elements."""
    rows = []
    for seed in range(30):
        for cost in costs(f"plain-{seed}"):
            products = cost.pixels * cost.out_channels * cost.groups * cost.in_channels * cost.taps
            rows.append(Timed(f"plain-{seed}", cost, 0.01 + products / 1e7 + (cost.reads + cost.writes) / 1e6))
    return appoint(rows, load_formula("onnxruntime"), GRAIN, 0)


def test_fits_doubt_kernels_that_they_never_saw_more_than_those_they_did(committee):
    known = np.median([doubt(committee, costs(f"plain-{seed}"), GRAIN) for seed in range(100, 110)])
    strange = np.median([doubt(committee, costs(f"inverted-{seed}"), GRAIN) for seed in range(10)])
    assert strange >= known


def test_networks_of_most_doubt_are_taken_beside_some_as_they_come():
    chooser = Chooser([])
    found = chooser.choose(6, lambda graph: float(len(graph.ops)))
    longest = sorted((len(graph.ops) for graph in found), reverse=True)
    assert len({graph.name for graph in found}) == 6
    drawn = Chooser([]).draw(18)
    assert longest[:3] == sorted((len(graph.ops) for graph in drawn), reverse=True)[:3]


def test_styles_take_turns_while_there_are_no_fits():
    found = Chooser([]).choose(len(STYLES), None)
    assert [graph.name.rpartition("-")[0] for graph in found] == list(STYLES)


def test_what_was_measured_is_not_drawn_again():
    first = [graph.name for graph in Chooser([]).draw(40)]
    again = [graph.name for graph in Chooser(first).draw(40)]
    assert not set(first) & set(again)
