"""Every command that a verb prints runs unchanged and has the printed answer."""

import json
import shutil
from pathlib import Path

import onnx
import pytest
from onnx import helper

pytest.importorskip("torch")

from tests.predictors.specified import kept
from tests.scheduler.bundles import onnx_model
from tests.stretch.cli.commands import LOOSE, follow, printed, succeed
from tests.stretch.stages.test_one_reader import FILES, FIRST, conv

pytestmark = pytest.mark.torch

#: Two towers with named inputs of `forward`.
CODE = """
from torch import nn


class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3), nn.Conv2d(3, 8, 3)

    def forward(self, left, right):
        return self.a(left) * self.b(right)


def make():
    return Towers()
"""

MODELS = {
    "name": ("tiny_resnet",),
    "name and size": ("tiny_resnet", "--input", "3x64x64"),
    "file": ("last.onnx", "--input", "3x8x12"),
    "open size": ("my open.onnx", "--input", "3x24x24"),
    "code": ("my nets/net.py:make", "--trust-code", "--input", "left=1x3x16x16", "--input", "right=1x3x16x16"),
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    onnx.save(FILES["channels last"], "last.onnx")
    onnx.save(
        onnx_model([conv("x", "c", "a"), helper.make_node("Relu", ["c"], ["y"])], {"x": [1, 3, "h", "w"]}, {"y": None}, FIRST),
        "my open.onnx",
    )
    Path("my nets").mkdir()
    Path("my nets/net.py").write_text(CODE)
    shutil.copy(kept("pixel6"), "my board.toml")


@pytest.mark.representatives(2)
@pytest.mark.parametrize("precision", [None, "fp16"])
@pytest.mark.parametrize("model", MODELS)
def test_advised_command_predicts_the_advised_time(capsys, home, model, precision):
    args = (*MODELS[model], "--device", "mi9,my board.toml", *(() if precision is None else ("--precision", precision)))
    answers = json.loads(succeed(capsys, "advise", *args, "--json", "--quiet").out)["answers"]
    assert len(answers) == 2
    for answer in answers:
        [done] = follow(capsys, answer["command"], "--json", "--quiet", *(["--dry-run"] if " branch " in answer["command"] else []))
        kind = {"--lossless": "exact", "--kinds": "stretched"}
        advised = next((answer[kind[flag]] for flag in kind if flag in answer["command"]), answer["best_single"])
        advised_ms = advised.get("ms")
        if " branch " in answer["command"]:
            assert done.data["predicted"]["makespan_ms"] == pytest.approx(advised_ms)
        else:
            [row] = done.data["processors"].values()
            assert (row["latency_ms"], row["precision"]) == (pytest.approx(advised_ms), answer["best_single"]["precision"])


@pytest.mark.representatives(1)
@pytest.mark.parametrize("model", ["open size", "code", "name"])
def test_table_of_advice_ends_with_commands_that_run(capsys, home, model):
    follow(capsys, succeed(capsys, "advise", *MODELS[model], "--device", "mi9").out)


@pytest.mark.representatives(1)
@pytest.mark.parametrize("model", ["code", "open size"])
def test_dry_run_of_a_design_that_is_not_recommended_ends_with_advice_on_the_same_inputs(capsys, home, model):
    done = succeed(capsys, "branch", *MODELS[model], "--device", "mi9", "--dry-run")
    [command] = printed(done.out)
    # a shape is printed with its batch
    assert sorted(arg.removeprefix("1x") for arg in command) == sorted(arg.removeprefix("1x") for arg in ("advise", *MODELS[model]))
    follow(capsys, done.out)


def test_printed_command_runs_a_bundle_in_a_folder_with_a_space(capsys, home):
    args = ("tiny_resnet", "--weights", "none", "--device", "my board.toml", *LOOSE, "--out", "my runs/one")
    done = succeed(capsys, "branch", *args)
    [outcome] = follow(capsys, done.out, "--repeat", 2, "--warmup", 0)
    assert "my runs/one" in outcome.out
    assert all(command[1] == "my runs/one" for command in printed(outcome.out))
