"""An impossible request ends in one sentence with the exit code of its kind, and changes no file."""

import shlex

import numpy as np
import pytest

from tests.predictors.specified import kept
from tests.scheduler.foreign_files import conv_onnx
from tests.stretch.cli.commands import call, tree

TINY = "tiny_resnet --device pixel6 --weights none --alpha 100 --out new"
FRONT = f"search tiny_resnet --device {kept('pixel6')} --processors cpu,gpu --alpha 100 --beta 5"

#: One network branches on its values; the other is random. No graph computes either.
NETS = """
import torch
from torch import nn


class Forked(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(3, 8, 3))

    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


class Failing(Forked):
    def __init__(self):
        raise ValueError("no weights")


class Ordered(Forked):
    def forward(self, x):
        return torch.relu(nn.Sequential.forward(self, x)).flatten(1).topk(4000).indices


class Odd(Forked):
    def forward(self, x):
        return nn.Sequential.forward(self, x) * torch.rand(1)
"""

#: Arguments, exit code, and a part of the sentence or its hint, by the beginning of the command.
REFUSALS = {
    "advise no_such_model": [
        ("--device pixel9*", 3, "pixel9*"),
        ("--device mi9,,mi11", 2, "mi9,,mi11"),
        ("--precision fp8", 2, "fp8"),
        ("--device mi9 --device mi11", 2, "--device is given twice"),
    ],
    f"branch {TINY}": [
        ("--set macs=1.1:0.9", 2, "MACs"),
        ("--set min_width=2", 2, "`min_width`"),
        ("--set n_meet=0", 2, "`n_meet`"),
        ("--set synthetic=9", 2, "images made from the network only supplement others"),
        ("--input 32", 2, "--input"),
        ("--macs 1:2", 2, "give it as --set macs=VALUE"),
        ("--no-controls", 2, "give it as --set controls=false"),
        ("--images nowhere --dry-run", 1, "there is no folder nowhere"),
        ("--images bundle --dry-run", 1, "bundle has no calibration images"),
        ("--precision int8", 2, "`precision=int8`"),
        ("--processors cpu", 2, "two processors"),
        ("--set preprocessing.mean=[1,2]", 2, "Expected `array` of length 3, got 2 - at `$.mean`"),
        ("--set preprocessing.size=31", 2, "resizes pictures to 31, the model reads 32×32"),
    ],
    "branch --device pixel6": [
        ("nets.py:Forked --input 3x32x32 --trust-code --out new", 1, "Forked"),
        ("nets.py:Odd --input 3x32x32 --trust-code --out new", 1, "computes something else"),
        ("nets.py:Forked --out new", 2, "--trust-code"),
        ("nets.py:Failing --trust-code --out new", 1, "needs no arguments and runs by itself"),
        ("nets.py:Ordered --input 3x32x32 --trust-code --lossless --out new", 1, "indices of equal numbers"),
        ("tiny_resnt --out new", 3, "did you mean `tiny_resnet`?"),
        ("tiny_resnet --weights none --alpha 100 --out images", 1, "holds something else"),
    ],
    "compare": [
        ("no_such_thing", 2, "is no bundle and no file of a result"),
        ("gone.json --device pixel6 --device mi9", 2, "--device is for models"),
        ("resnet18 --device no_such_device", 3, "unknown device"),
    ],
    "evaluate bundle --images images": [
        ("--set preprocessing.mean=[1,2]", 2, "Expected `array` of length 3, got 2 - at `$.mean`"),
        ("--set preprocessing.size=9 --set preprocessing.crop=1", 2, "both say how much"),
        ("--set preprocessing.crop=0", 2, "Expected `float` >= 0.01 - at `$.crop`"),
        ("--image-count 0", 2, "image-count"),
        ("--crop 1", 2, "give it as --set preprocessing.crop=VALUE"),
        ("--map gpu=null", 2, "nothing to evaluate"),
        ("--classes /nonexistent", 1, "cannot read"),
    ],
    "explain conv.onnx": [("--runtime openvin", 3, "did you mean `openvino`?"), ("", 2, "add --runtime")],
    "export bundle --out new --precision": [("gpu=", 2, "is not understood"), ("gpu=int8,gpu=fp32", 2, "is not understood")],
    "predict resnet50": [
        ("--device pixle6", 3, "did you mean `pixel6`?"),
        ("--device pixel6 --processor gpuu", 3, "did you mean `gpu`?"),
        ("--device pixel6 --processor gpu --precision int8", 2, "it runs fp32, fp16"),
        ("--device pixel6 --plot a.svg", 2, "choose one with --processor: cpu, "),
        ("--device '*' --kernels", 2, "name both without wildcards"),
    ],
    "profile": [
        ("--name here --processors gpu", 2, "a profile needs the processor `cpu`"),
        ("--name here --processors cpu,dsp", 3, "unknown processor to measure `dsp`"),
        ("--name here --model resnet18", 2, "--model does not go with a measurement"),
        ("--name here --from x.csv", 2, "--from needs to know what ran the networks"),
        ("--name here --from x.csv --processor cpu[1large]", 1, "cannot read the measurements x.csv"),
        ("--name here --there=x", 2, "--there does not go with a run without a board"),
        ("--name here --ssh-config=x", 2, "--ssh-config does not go with a run without a board"),
    ],
    "run bundle": [
        ("--map gpu=cqu1", 3, "did you mean `cpu`?"),
        ("--map dsp=cpu0", 2, "the bundle uses cpu, gpu"),
        ("--map gpu=cpu4095", 2, "core 4095"),
        ("--processors npu", 2, "does not use processor"),
        ("--trace /nonexistent/t.json", 2, "there is no folder /nonexistent for --trace /nonexistent/t.json"),
        ("--csv /nonexistent/t.csv", 2, "there is no folder /nonexistent for --csv /nonexistent/t.csv"),
        ("--input wide.npy", 2, "has shape"),
        ("--input double.npy", 2, "has type float64"),
        ("--input nan.npy", 2, "NaN"),
        ("--there=x", 2, "--there does not go with a run without a board"),
        ("--ssh-config=x", 2, "name it with --on user@host"),
        ("--on=-oProxyCommand=x", 2, "begins with a dash"),
        ("--on 'a b'", 2, "is no name of a host"),
        ("--on board --html page.html", 2, "--html does not go with --on"),
        ("--on board --there 'a\nb'", 2, "--there is no name of a folder"),
        ("--on board --priority speed", 2, "--priority speed is not known"),
        ("--on board --ssh-config missing", 1, "there is no ssh configuration missing"),
        ("--adb --map gpu=cpu1", 2, "--map does not go with --adb"),
        ("--serial R5CT", 2, "--serial does not go with a run without --adb"),
        ("--adb", 2, "--adb needs something to run on the phone"),
    ],
    FRONT: [
        ("--pareto latency,beauty", 3, "unknown objective `beauty`"),
        ("--pareto agreement", 2, "`pareto=agreement` does not name two different things to weigh"),
        ("--pareto latency,agreement", 2, "nothing predicts the agreement of designs"),
        ("--images no/such", 1, "there is no folder no/such with images"),
        ("--measured-blocks 9", 2, "give it as --set measured_blocks=VALUE"),
        ("--images . --set accuracy=a.json", 2, "`images` and `accuracy` both predict the accuracy of designs"),
        ("--images . --pareto latency,macs", 2, "images say nothing of latency,macs"),
        ("--set latency_budget=5", 2, "`latency_budget` does not limit the search of a front"),
        ("--set synthetic=9", 2, "images made from the network only supplement others"),
        ("--images . --lossless", 2, "images say nothing of designs that all compute what the original computes"),
        ("--objective energy --pareto latency,macs", 2, "a front has no objective such as energy"),
        ("--within 0.9", 2, "is not a factor from 1 up"),
        ("--within 1.2 --set strategy=grid", 2, "several designs that differ are not searched for with `strategy=grid`"),
        ("--set macs=0.1:0.11", 4, "no design of `tiny_resnet` meets the constraints"),
        ("--with tiny_resnut", 3, "did you mean `tiny_resnet`?"),
        ("--with tiny_mobilenet --pareto latency,macs", 2, "--pareto does not go with a pair of networks"),
        ("--with tiny_mobilenet --set pair_goal=speed", 2, "`speed` is no objective of a pair"),
        ("--with tiny_mobilenet --set latency_budget=5", 2, "`latency_budget` does not limit"),
    ],
    "simulate bundle": [
        ("--busy gqu=0.5@0:1", 3, "did you mean `gpu`?"),
        ("--busy gpu=nan@0:1", 2, "takes nan of it, which is no share"),
        ("--busy gpu=1.01@0:1", 2, "takes 1.01 of it, which is no share"),
        ("--busy gpu=0.5@9:1", 2, "ends at 1 ms, and begins at 9 ms"),
        ("--busy gpu=0.6@0:9,gpu=0.6@5:9", 2, "loads take 1.2 of gpu from 5 ms on"),
        ("--jitter nan", 2, "a jitter of nan is out of range"),
        ("--arrivals periodic:0", 2, "requests cannot come as `periodic:0` says"),
        ("--deadline nan", 2, "a deadline of nan ms is not positive and finite"),
        ("--trace /nowhere/t.json", 2, "there is no folder /nowhere"),
        ("--or bundle", 2, "two alternatives have the same name"),
        ("--or /nowhere", 1, "is not a bundle"),
        ("--beside bundle@periodic:nan", 2, "requests cannot come"),
        ("--beside bundle@periodic:5@-1", 2, "`-1` is no deadline"),
        ("--admit", 2, "give the first bundle --arrivals"),
        ("--admit --arrivals periodic:5 --beside bundle", 2, "no request rate"),
        ("--shared --or cpu", 2, "do not take turns"),
        ("--prefer energy", 2, "give one with --or"),
        ("--prefer speed --or cpu", 2, "no objective of a policy"),
        ("--heat profile", 2, "the profile of pixel6 has no heat model"),
        ("--frequency gpu=0@0:5", 2, "gpu cannot run at 0 of its speed"),
        ("--frequency gpu=0.5@0:inf", 2, "the speed of gpu has inf ms"),
        ("--frequency gpu=0.5@0:9,gpu=0.7@5:12", 2, "gpu would have two speeds from 5 ms on"),
        ("--device raspberrypi4", 3, "gpu"),
    ],
    "train": [
        ("resnet56_cifar11", 3, "`resnet56_cifar10`"),
        ("resnet56_cifar10 --set tran.epochs=1", 2, "did you mean `train`"),
        ("resnet56_cifar10 --set train.epochs=0", 2, "`train.epochs` is wrong"),
    ],
    "web": [("", 2, "nothing to show")],
}
CASES = [
    pytest.param(f"{verb} {args}", code, message, marks=[pytest.mark.torch] if verb.startswith(("branch", "search", "train")) else [], id=f"{verb.split()[0]} {args}")
    for verb, rows in REFUSALS.items()
    for args, code, message in rows
]  # fmt: skip


@pytest.fixture
def folder(bundle_dir, tmp_path, monkeypatch):
    """Working folder of the commands: a bundle, an ONNX file of one convolution, images of five classes, and invalid inputs."""
    monkeypatch.chdir(tmp_path)
    conv_onnx(tmp_path / "conv.onnx")
    (tmp_path / "nets.py").write_text(NETS)
    for name, array in {
        "wide": np.zeros((1, 3, 9, 9), np.float32),
        "double": np.zeros((1, 3, 8, 8)),
        "nan": np.full((1, 3, 8, 8), np.nan, np.float32),
        **{f"images/{name}/some": np.ones((2, 3, 8, 8), np.float32) for name in "abcde"},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / name, array)
    return tmp_path


@pytest.mark.parametrize(("command", "code", "message"), CASES)
def test_impossible_request_is_refused_and_changes_nothing(capsys, folder, command, code, message):
    before = tree(folder)
    result = call(capsys, *shlex.split(command))
    assert (result.code, message in f"{result.message}\n{result.hint}") == (code, True), result.err
    assert tree(folder) == before
