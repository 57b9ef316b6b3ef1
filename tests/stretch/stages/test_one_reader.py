"""Every verb reads an ONNX file as the same network, with the same operators, input notation and exit codes."""

import numpy as np
import onnx
import pytest
from onnx import helper

pytest.importorskip("torch")

from predictors.formats.onnx import read_onnx
from stretch.stages.network import read_graph, read_network
from tests.scheduler.bundles import onnx_model
from tests.stretch.cli.commands import call, spawn, succeed

pytestmark = pytest.mark.torch

ABSENT = "import sys\nfor name in ('torch', 'torchvision', 'timm'):\n    sys.modules[name] = None"


def weight(*shape):
    return np.random.default_rng(0).normal(0, 0.1, shape).astype(np.float32)


def conv(reads, writes, filters, **attributes):
    return helper.make_node("Conv", [reads, filters], [writes], pads=[1, 1, 1, 1], **attributes)


def recurrent(kind, gates, directions=1):
    """A recurrent layer with 6 hidden units."""
    stored = {"w": weight(directions, gates * 6, 4), "r": weight(directions, gates * 6, 6)}
    options = {"linear_before_reset": 1} if kind == "GRU" else {}
    options |= {"hidden_size": 6, "direction": "forward" if directions == 1 else "bidirectional"}
    return onnx_model([helper.make_node(kind, ["x", *stored], ["y"], **options)], {"x": [5, 1, 4]}, {"y": None}, stored)


TRANSPOSE = helper.make_node("Transpose", ["s"], ["t"], perm=[0, 3, 1, 2])
FIRST = {"a": weight(8, 3, 3, 3)}
FILES = {
    "lstm": recurrent("LSTM", 4),
    "gru": recurrent("GRU", 3, directions=2),
    "rnn": recurrent("RNN", 1),
    "uneven split": onnx_model(
        [
            conv("x", "p", "a"),
            helper.make_node("Split", ["p", "n"], ["q", "r"], axis=1),
            helper.make_node("Concat", ["r", "q"], ["y"], axis=1),
        ],
        {"x": [1, 3, 8, 8]},
        {"y": None},
        FIRST | {"n": np.array([2, 6])},
    ),
    "channels last": onnx_model(
        [helper.make_node("Sub", ["x", "m"], ["s"]), TRANSPOSE, conv("t", "y", "a", strides=[2, 2])],
        {"x": [1, 8, 12, 3]},
        {"y": None},
        FIRST | {"m": weight(3)},
    ),
    "one axis": onnx_model(
        [helper.make_node("Conv", ["x", "a"], ["y"], pads=[1, 1])], {"x": [1, 4, 20]}, {"y": None}, {"a": weight(8, 4, 3)}
    ),
    "transposed": onnx_model(
        [helper.make_node("ConvTranspose", ["x", "a"], ["y"], strides=[2, 2], group=2)],
        {"x": [1, 4, 6, 6]},
        {"y": None},
        {"a": weight(4, 3, 2, 2)},
    ),
    "largest": onnx_model(
        [conv("x", "c", "a"), helper.make_node("TopK", ["c", "k"], ["y", "i"])],
        {"x": [1, 3, 8, 8]},
        {"y": None},
        FIRST | {"k": np.array([3])},
    ),
}


def written(tmp_path, model):
    onnx.save(model, tmp_path / "net.onnx")
    return str(tmp_path / "net.onnx")


def figures(graph):
    return graph.macs, [op.shape for op in graph.inputs], graph.by_name[graph.outputs[0]].shape


@pytest.mark.representatives(2)
@pytest.mark.parametrize("name", FILES)
def test_predicted_network_with_and_without_torch_is_the_branched_network(tmp_path, name):
    path = written(tmp_path, FILES[name])
    read, branched = read_graph(path).graph, read_network(path).graph
    assert read.macs > 0
    assert (*figures(read), read.params) == (*figures(branched), branched.params)
    assert figures(read_onnx(path)) == figures(read)


def test_channels_first_input_is_accepted_for_a_channels_last_file_by_every_verb(capsys, tmp_path):
    path = written(tmp_path, FILES["channels last"])
    args = ("predict", path, "--device", "mi9", "--input", "3x8x12", "--json")
    answers = [succeed(capsys, *args).data, spawn(ABSENT, *args).data]
    answers.append(succeed(capsys, "advise", *args[1:]).data)
    assert {(tuple(answer["input"]), answer["macs"]) for answer in answers} == {((1, 3, 8, 12), 8 * 4 * 6 * 27)}
    assert "torch is not installed" in answers[1]["warnings"][0]
    assert "channels last" in answers[0]["warnings"][0]


@pytest.mark.representatives(2)
@pytest.mark.parametrize("verb", ["predict", "advise", "branch", "search", "compare", "export"])
def test_open_size_ends_every_verb_with_one_sentence_and_code(capsys, tmp_path, verb):
    model = onnx_model([conv("x", "y", "a")], {"x": [1, 3, "h", "w"]}, {"y": None}, FIRST)
    more = ("--as", "code", "--out", tmp_path / "out") if verb == "export" else ("--device", "mi9")
    outcome = call(capsys, verb, written(tmp_path, model), *more)
    assert (outcome.code, "size of the input `x`" in outcome.message, "--input 3x224x224" in outcome.hint) == (2, True, True)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["mi9", "mi9,pixel6"])
def test_open_size_of_a_sequence_is_requested_by_its_name(capsys, tmp_path, device):
    model = onnx_model([helper.make_node("Conv", ["x", "a"], ["y"])], {"x": ["n", 4, "length"]}, {"y": None}, {"a": weight(8, 4, 3)})
    args = ("predict", written(tmp_path, model), "--device", device)
    outcome = call(capsys, *args)
    assert (outcome.code, "--input x=1x4x16" in outcome.hint) == (2, True)
    assert succeed(capsys, *args, "--input", "x=1x4x20", "--json").out


def test_boolean_outputs_of_a_file_are_read_or_refused_in_one_sentence(capsys, tmp_path):
    model = onnx_model(
        [conv("x", "c", "a"), helper.make_node("Greater", ["c", "k"], ["y"])],
        {"x": [1, 3, 8, 8]},
        {"y": None},
        FIRST | {"k": weight(8, 1, 1)},
    )
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.BOOL
    outcome = call(capsys, "predict", written(tmp_path, model), "--device", "mi9")
    assert outcome.code == 0 or outcome.message
    assert "unexpected" not in outcome.err


REFUSED = {
    "values": [conv("x", "c", "a"), helper.make_node("NonZero", ["c"], ["y"])],
    "another domain": [helper.make_node("Mine", ["x"], ["y"], domain="my")],
    "ranks": [helper.make_node("Gemm", ["x", "a"], ["y"])],
}


@pytest.mark.representatives(1)
@pytest.mark.parametrize("name", REFUSED)
def test_unreadable_file_is_refused_by_predict_and_branch_with_the_same_message(capsys, tmp_path, name):
    model = onnx_model(REFUSED[name], {"x": [1, 3, 8, 8]}, {"y": None}, FIRST)
    outcomes = [call(capsys, verb, written(tmp_path, model), "--device", "mi9") for verb in ("predict", "branch")]
    assert ([outcome.code for outcome in outcomes], outcomes[0].message) == ([1, 1], outcomes[1].message)


def test_network_that_branch_refuses_is_predicted_with_the_reason_as_a_warning(capsys, tmp_path):
    nodes = [conv("x", "o", "b"), helper.make_node("DeformConv", ["x", "a", "o"], ["y"], pads=[1, 1, 1, 1])]
    model = onnx_model(nodes, {"x": [1, 3, 8, 8]}, {"y": None}, FIRST | {"b": weight(18, 3, 3, 3)}, opset=19)
    answer = succeed(capsys, "predict", written(tmp_path, model), "--device", "mi9", "--json").data
    assert "DeformConv" in answer["warnings"][0]
    assert answer["macs"] >= 18 * 64 * 27
