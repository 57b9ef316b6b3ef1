"""Networks that are drawn to be measured: their shapes, styles, files, and which is next."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from predictors.errors import StretchError
from predictors.fitting.design import load_formula
from predictors.fitting.single import Timed
from predictors.fusion import fuse
from predictors.graph import OpGraph
from predictors.models.fitted import Grain
from scheduler.delegates import get_delegate
from stretch.tools.profiling.places import answer_board, make_weights, weight_bytes, write_network
from stretch.tools.profiling.run import Chooser, appoint, doubt
from stretch.tools.profiling.styles import STYLES, Drawing, draw


def start(activation="relu", size=32):
    drawing = Drawing(np.random.default_rng(0), activation)
    drawing.add("input", shape=(1, 16, size, size))
    return drawing


def test_shapes_are_those_of_the_finished_graph():
    built = start()
    x = built.squeeze(built.depthwise(built.unit(built.last, 24, 3, 2), 5))
    built.pool(x)
    shapes = dict(built.shapes)
    graph = built.finish("net")
    assert {op.name: op.shape for op in graph.ops if op.name in shapes} == shapes


@given(st.integers(0, 1000), st.integers(8, 64), st.integers(65, 2000))
def test_widths_are_near_their_bounds_and_never_below_the_lower(seed, low, high):
    drawing = Drawing(np.random.default_rng(seed), "relu")
    assert low <= drawing.width(low, high) <= high + 16


@pytest.mark.representatives(5)
@pytest.mark.parametrize("style", STYLES)
def test_a_seed_always_gives_the_same_network_and_another_seed_another(style):
    assert draw(style, 3) == draw(style, 3)
    assert draw(style, 3) != draw(style, 4)


@pytest.mark.representatives(5)
@pytest.mark.parametrize("style", STYLES)
def test_networks_are_graphs_that_files_keep_and_small_enough_to_be_measured(style):
    for seed in range(8):
        graph = draw(style, seed)
        assert OpGraph.from_json(graph.to_json()) == graph
        assert 0 < graph.macs <= 2.5e9
        assert graph.input.shape[1] == 3


@pytest.mark.slow
def test_together_they_have_every_kind_of_kernel_and_the_shapes_of_real_networks():
    costs = [kernel.cost for style in STYLES for seed in range(25) for kernel in fuse(draw(style, seed), "onnxruntime")]
    assert {cost.kind for cost in costs} >= {"conv1x1", "conv", "depthwise", "grouped", "linear", "pool", "reduce", "elementwise", "copy"}
    dense = [cost for cost in costs if cost.kind in ("conv", "conv1x1")]
    assert {1, 9, 25, 49, 7} <= {cost.taps for cost in dense}
    assert {1, 4} <= {cost.stride for cost in dense}
    assert {9, 25, 49} <= {cost.taps for cost in costs if cost.kind == "depthwise"}
    assert {49, 56 * 56, 112 * 112} <= {cost.pixels for cost in dense}
    assert min(cost.out_channels for cost in dense) <= 16
    assert max(cost.out_channels for cost in dense) >= 1024
    assert {"add", "mul", "silu", "gelu", "layer_norm", "batch_norm"} <= {cost.variant for cost in costs}


@pytest.mark.torch
@pytest.mark.representatives(5)
@pytest.mark.parametrize("style", STYLES)
def test_results_are_finite_and_no_denormal_numbers(tmp_path, style):
    graph = draw(style, 0)
    compiled = get_delegate("cpu").create(()).compile(write_network(graph, tmp_path / "x.onnx"))
    x = np.random.default_rng(0).standard_normal(graph.input.shape, np.float32)
    y = np.zeros(graph.by_name[graph.output].shape, np.float32)
    compiled.run([x], [y])
    assert np.isfinite(y).all()
    assert 1e-6 < np.abs(y).max() < 1e12


def test_every_weight_of_the_graph_is_made_in_its_shape():
    graph = draw("inverted", 0)
    weights = make_weights(graph)
    for op in graph.ops:
        assert {key: value.shape for key, value in weights.get(op.name, {}).items()} == graph.op_weights(op)
    assert weight_bytes(graph) == sum(value.nbytes for weight in weights.values() for value in weight.values())


@pytest.mark.parametrize("question", ["", "{}", "[1]", '{"name": "x", "ops": []}'])
def test_board_that_asks_for_what_is_no_network_is_refused(question):
    with pytest.raises(StretchError):
        answer_board(question)


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
    choice = chooser.choose(6, lambda graph: float(len(graph.ops)))
    longest = sorted((len(graph.ops) for graph in choice), reverse=True)
    assert len({graph.name for graph in choice}) == 6
    drawn = Chooser([]).draw(18)
    assert longest[:3] == sorted((len(graph.ops) for graph in drawn), reverse=True)[:3]
