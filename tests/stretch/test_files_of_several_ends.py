"""Files of several inputs and outputs through the whole of the main job, against the runtime of the file."""

import json
import warnings

import numpy as np
import onnxruntime
import pytest
import torch

import stretch
from predictors.errors import UsageError
from scheduler import Session
from scheduler.checks.verify import verify_bundle
from stretch.cli import app
from tests.stretch.models.tflite.files import random
from tests.stretch.several import form

#: Largest difference of a bundle from the runtime of the file, as a part of its largest output.
CLOSE = 1e-4


def check_bundle(folder, inputs, want):
    """Assert that a bundle gives what a runtime gave, by name; both are arrays by name."""
    with Session(folder, {"cpu": "cpu", "gpu": "cpu"}) as session, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = session.run(inputs)
    assert got.keys() == want.keys()
    for name, value in want.items():
        assert got[name].shape == value.shape
        assert np.abs(got[name] - value).max() <= CLOSE * max(1e-3, float(np.abs(value).max()))
    assert verify_bundle(folder).ok


class Towers(torch.nn.Module):
    """Two towers without arguments of other kinds, which exporters take for inputs."""

    def __init__(self, towers, named):
        super().__init__()
        self.towers, self.named = towers, named

    def forward(self, image, mask):
        scores, more = self.towers(image, mask)
        return {"scores": scores, "maps": [more["map"]]} if self.named else (scores, more["map"])


def onnx_file(path, name, **more):
    """A network of several inputs and outputs as an ONNX file, with what the runtime gives for inputs by name."""
    module, shapes = form(name)
    module = Towers(module, named=False).eval() if name == "towers" else module
    shapes = shapes if isinstance(shapes, dict) else {"x": shapes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, tuple(map(torch.zeros, shapes.values())), str(path), dynamo=False, input_names=list(shapes), **more)
    inputs = {key: random(shape, seed) for seed, (key, shape) in enumerate(shapes.items())}
    session = onnxruntime.InferenceSession(str(path))
    return inputs, dict(zip([output.name for output in session.get_outputs()], session.run(None, inputs), strict=True))


LEVELS = [f"{head}_{level}" for head in ("scores", "boxes") for level in range(3)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "outputs"), [("pyramid", LEVELS), ("towers", ["scores", "map"]), ("deep", ["early", "late"])])
def test_bundle_of_an_onnx_file_gives_what_the_runtime_does_by_the_names_of_the_file(tmp_path, name, outputs):
    path = tmp_path / "net.onnx"
    inputs, want = onnx_file(path, name, output_names=outputs)
    result = stretch.branch(str(path), "mi9", out=tmp_path / "b", processors=("cpu", "gpu"), lossless=True)
    assert result.plan.exact
    assert list(want) == outputs
    check_bundle(tmp_path / "b", inputs if len(inputs) > 1 else {"input": inputs["x"]}, want)


def test_command_line_takes_a_shape_for_each_input_of_a_file_and_tells_of_its_stages(tmp_path, capsys):
    path = tmp_path / "net.onnx"
    axes = {"image": {0: "batch"}, "mask": {0: "batch"}}
    onnx_file(path, "towers", output_names=["scores", "map"], dynamic_axes=axes)
    out = tmp_path / "b"
    sizes = ["--input", "image=2x3x16x16", "--input", "mask=2x1x16x16"]
    with pytest.raises(SystemExit) as stop:
        app(
            [
                "branch",
                str(path),
                *sizes,
                "--device",
                "mi9",
                "--processors",
                "cpu,gpu",
                "--lossless",
                "--anyway",
                "--out",
                str(out),
                "--json",
            ]
        )
    assert (stop.value.code, json.loads(capsys.readouterr().out)["exact"]) == (0, True)
    inputs = {"image": random((2, 3, 16, 16)), "mask": random((2, 1, 16, 16), 1)}
    session = onnxruntime.InferenceSession(str(path))
    check_bundle(out, inputs, dict(zip(("scores", "map"), session.run(None, inputs), strict=True)))
    with pytest.raises(SystemExit):
        app(["list", "models", str(path), "--details", *sizes, "--json"])
    (item,) = json.loads(capsys.readouterr().out)["items"]
    assert (item["family"], item["captured"]) == ("file", "traced")
    assert "it lies beside the backbone and runs whole" in [stage["why"] for stage in item["stages"]]


def test_shape_of_an_input_that_a_file_does_not_have_is_refused(tmp_path):
    onnx_file(tmp_path / "net.onnx", "towers")
    with pytest.raises(UsageError, match=r"net\.onnx has no input `picture`"):
        stretch.branch(str(tmp_path / "net.onnx"), "mi9", input_shape={"picture": (1, 3, 16, 16)}, dry_run=True)
