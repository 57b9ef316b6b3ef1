import numpy as np
import pytest

from predictors.errors import StretchError
from scheduler.delegates import get_delegate
from stretch.profiling.files import answer_board, make_weights, weight_bytes, write_network
from stretch.profiling.styles import STYLES, draw


@pytest.mark.representatives(13)
@pytest.mark.torch
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
    made = make_weights(graph)
    for op in graph.ops:
        assert {key: value.shape for key, value in made.get(op.name, {}).items()} == graph.op_weights(op)
    assert weight_bytes(graph) == sum(value.nbytes for own in made.values() for value in own.values())


@pytest.mark.torch
def test_board_is_given_the_file_that_would_be_written_here(tmp_path):
    graph = draw("residual", 0)
    assert answer_board(graph.to_json().decode()) == write_network(graph, tmp_path / "x.onnx").read_bytes()


@pytest.mark.parametrize("question", ["", "{}", "[1]", '{"name": "x", "ops": []}'])
def test_board_that_asks_for_what_is_no_network_is_refused(question):
    with pytest.raises(StretchError):
        answer_board(question)
