"""`stretch advise` on the command line."""

import json
import shlex

import msgspec
import pytest

import stretch
from predictors.devices import load_device
from stretch.models.tiny import tiny_resnet
from tests.stretch.cli.commands import call

pytestmark = pytest.mark.torch


def test_command_of_an_answer_plans_what_was_advised(capsys, tmp_path):
    words = ("resnet18", "--device", "a03s", "--precision", "fp16", "--html", tmp_path / "advice.html")
    data = json.loads(call(capsys, "advise", *words, "--json", "--quiet").out)
    assert "a03s, exact" in (tmp_path / "advice.html").read_text()
    answer = next(answer for answer in data["answers"] if answer["device"] == "a03s")
    branches = answer[answer["recommended"]]
    planned = json.loads(call(capsys, *shlex.split(answer["command"])[1:], "--weights", "none", "--dry-run", "--json", "--quiet").out)
    assert planned["recommended"] == branches["recommended"] == "branched"
    assert planned["predicted"]["makespan_ms"] == pytest.approx(branches["ms"])


def test_terminal_has_a_row_and_a_reason_for_each_device(capsys):
    out = call(capsys, "advise", "tiny_resnet", "--device", "pixel*").out
    assert all(f"\n{name} " in out and f"\n{name}: " in out for name in ("pixel4", "pixel6"))


def test_function_answers_what_the_command_prints(capsys):
    words = ("advise", "tiny_resnet", "--device", "pixel*", "--precision", "fp16", "--json", "--quiet")
    printed = json.loads(call(capsys, *words).out)
    advice = stretch.advise("tiny_resnet", ["pixel4", load_device("pixel6")], precision="fp16")
    assert printed | json.loads(msgspec.json.encode(advice)) == printed
    module = stretch.advise(tiny_resnet(), "pixel4,pixel6", precision="fp16", input_shape=(3, 32, 32))
    assert repr(module).splitlines()[1:] == repr(advice).splitlines()[1:]
    assert [line.partition(":")[0] for line in repr(advice).splitlines()[1:]] == [answer["device"] for answer in printed["answers"]]
