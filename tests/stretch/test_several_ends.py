"""Networks of several inputs and outputs, branched and written as bundles, against torch and ONNX Runtime."""

import json
import warnings

import onnxruntime
import pytest
import torch

import stretch
from predictors.errors import UsageError
from scheduler import Session
from scheduler.checks.verify import verify_bundle
from stretch.api.exporting import export
from stretch.network.capture.results import walk_leaves
from stretch.stages.branched import FLOAT
from tests.stretch.cli.commands import call
from tests.stretch.network.models.onnx.oracle import random
from tests.stretch.several import FORMS, assert_equal, form
from tests.stretch.small import compared, given

LOOSE = {"alpha": 1000.0, "beta": 1000.0, "balance": 0.001, "macs": (0.4, 2.0), "segment_macs": 0.1}


@pytest.mark.representatives(2)
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("requested", [{"lossless": True}, {}], ids=["exact", "stretched"])
def test_bundle_has_the_outputs_of_torch_under_the_names_of_the_returned_structure(tmp_path, name, requested):
    module, given_shapes = form(name)
    result = stretch.branch(module, "mi9", out=tmp_path / "b", input_shape=given_shapes, processors=("cpu", "gpu"), **(requested or LOOSE))
    x = given(op.shape for op in result.plan.graph.inputs)
    with torch.no_grad():
        want, original = result.model(*x), module(*x)
    with pytest.raises(UsageError, match=f"{len(x) + 1} tensors were given"):
        result.model(*x, x[0])
    if result.plan.exact:
        assert_equal(want, original)
    if name == "towers":
        # a constant is returned, with a warning
        assert any("`output_1_note`" in warning for warning in result.warnings)
        assert want[1]["note"] is None
    assert [key for key, _ in walk_leaves(want)] == [key for key, _ in walk_leaves(original)]
    inputs = {op.name: item.numpy() for op, item in zip(result.plan.graph.inputs, x, strict=True)}
    with Session(tmp_path / "b", {"cpu": "cpu", "gpu": "cpu"}) as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        answers = [session.run(inputs), session.submit(inputs).result(60)]
    named = {key: value.numpy() for key, value in walk_leaves(want) if isinstance(value, torch.Tensor)}
    for got in answers:
        got = got if isinstance(got, dict) else {"output": got}
        assert set(got) == set(named)
        compared([got[key] for key in named], list(named.values()))
    assert verify_bundle(tmp_path / "b").ok


def check_bundle(folder, inputs, want):
    """Assert that a bundle returns the arrays `want`, by name, and that it is valid."""
    with Session(folder, {"cpu": "cpu", "gpu": "cpu"}) as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = session.run(inputs)
    assert got.keys() == want.keys()
    compared([got[name] for name in want], list(want.values()))
    assert verify_bundle(folder).ok


class Towers(torch.nn.Module):
    """Two towers without optional arguments, which exporters would turn into inputs."""

    def __init__(self, towers):
        super().__init__()
        self.towers = towers

    def forward(self, image, mask):
        scores, maps = self.towers(image, mask)
        return scores, maps["map"]


def onnx_file(path, name, **options):
    """Write a network of several inputs and outputs as an ONNX file; return inputs and the runtime's outputs by name."""
    module, shapes = form(name)
    module = Towers(module).eval() if name == "towers" else module
    shapes = shapes if isinstance(shapes, dict) else {"x": shapes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(map(torch.zeros, shapes.values())), str(path), dynamo=False, input_names=list(shapes), **options)
    inputs = {key: random(shape, seed) for seed, (key, shape) in enumerate(shapes.items())}
    session = onnxruntime.InferenceSession(str(path))
    return inputs, dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs), strict=True))


LEVELS = [f"{head}_{level}" for head in ("scores", "boxes") for level in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "outputs"), [("pyramid", LEVELS), ("towers", ["scores", "map"]), ("deep", ["early", "late"])])
def test_bundle_of_an_onnx_file_has_the_outputs_of_the_runtime_under_the_names_of_the_file(tmp_path, name, outputs):
    path = tmp_path / "net.onnx"
    inputs, want = onnx_file(path, name, output_names=outputs)
    result = stretch.branch(str(path), "mi9", out=tmp_path / "b", processors=("cpu", "gpu"), lossless=True)
    assert result.plan.exact
    assert list(want) == outputs
    check_bundle(tmp_path / "b", inputs if len(inputs) > 1 else {"input": inputs["x"]}, want)


def test_warning_of_a_bundle_of_several_inputs_says_that_export_is_not_possible(tmp_path):
    module, shapes = form("towers")
    result = stretch.branch(module, "mi9", out=tmp_path / "b", input_shape=shapes, processors=("cpu", "gpu"), **LOOSE)
    [message] = [warning for warning in result.warnings if warning.startswith(FLOAT)]
    assert message.endswith("`stretch export` cannot convert networks with several inputs")
    for precision in ("fp16", "int8"):
        with pytest.raises(UsageError, match="has 2 inputs"):
            export(tmp_path / "b", tmp_path / "rounded", precision={"gpu": precision})


def test_command_line_takes_a_shape_for_each_input_of_a_file_and_lists_its_stages(tmp_path, capsys):
    path = tmp_path / "net.onnx"
    axes = {"image": {0: "batch"}, "mask": {0: "batch"}}
    onnx_file(path, "towers", output_names=["scores", "map"], dynamic_axes=axes)
    out = tmp_path / "b"
    sizes = ["--input", "image=2x3x16x16", "--input", "mask=2x1x16x16"]
    branched = call(capsys, "branch", path, *sizes, "--device", "mi9", "--processors", "cpu,gpu", "--lossless", "--out", out, "--json")
    assert (branched.code, json.loads(branched.out)["exact"]) == (0, True)
    inputs = {"image": random((2, 3, 16, 16)), "mask": random((2, 1, 16, 16), 1)}
    session = onnxruntime.InferenceSession(str(path))
    check_bundle(out, inputs, dict(zip(("scores", "map"), session.run(None, inputs), strict=True)))
    (item,) = json.loads(call(capsys, "list", "models", path, "--details", *sizes, "--json").out)["items"]
    assert (item["family"], item["captured"]) == ("file", "traced")
    assert "it is outside the backbone and runs whole" in [stage["why"] for stage in item["stages"]]
