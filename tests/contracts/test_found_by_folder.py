"""New delegates, verbs, memory planners, constraints and strategies are one file each, operator kinds two, joins with one three: dropped into a copy."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.contracts.repository import PACKAGES, ROOT
from tests.predictors.specified import kept
from tests.scheduler import bundles

DELEGATE = '''"""The `twice` delegate."""

from pathlib import Path

from scheduler.delegates.base import Compiled, CoreDelegate, delegates
from scheduler.delegates.{inner} import {name}


@delegates.register("twice")
class TwiceDelegate(CoreDelegate):
    """Another delegate under a name of its own."""

    summary = "dropped into the folder"

    def compile(self, model: Path) -> Compiled:
        return {name}().compile(model)
'''

VERB = '''"""`stretch greet`: a verb of a file."""

from stretch.cli.output import Output, verb


@verb
def greet(out: Output) -> None:
    """Say where it lies."""
    out.emit({"file": __file__}, lambda console: console.print("hello"))
'''

PLANNER = '''"""A memory planner of a file."""

from scheduler.memory.lifetimes import Lifetimes
from scheduler.memory.plan import MemoryPlan, planners, shared_objects


def plan_alone(lifetimes: Lifetimes, alignment: int = 1) -> MemoryPlan:
    """A plan without sharing."""
    return shared_objects(lifetimes, [[i] for i in range(len(lifetimes.tensors))])


planners.register("alone")(plan_alone)
'''

CONSTRAINT = '''"""A bound of a file: no branch may take longer than a deadline."""

from stretch.planning.constraints.base import Bound, register
from stretch.planning.options import Option, Positive


@register
class Deadline(Bound):
    """The slowest branch of a segment, ms."""

    option = Option("branch_deadline", Positive | None, None, "Milliseconds that a branch may take, at most.")
    words = "the slowest branch takes {:.3g} ms at best, at most {:g} is allowed"

    def part(self, ways):
        return ways.slowest_ms

    def of(self, ways, segment_ms):
        return 1.0
'''

STRATEGY = '''"""A strategy of a file: the upper half of the range of multiply-accumulates."""

from stretch.planning.search.exact import search_exact


def search(space, low, high, n_meet):
    return search_exact(space, (low + high) // 2, high, n_meet)
'''

#: The highest of the branches' outputs, element by element: the join, its operator without torch, and in torch, ONNX and TFLite.
HIGHEST = {
    "predictors/joins/highest.py": """from predictors.join import Join, Meeting, joins, meetings


def _problem(inputs, output, layout):
    return " compares tensors of different shapes" if any(shape != output for shape in inputs) else None


def _combine(parts, axis, out):
    import numpy as np

    first, second, *others = parts
    highest = np.maximum(first, second, out=out)
    for other in others:
        np.maximum(highest, other, out=highest)
    return highest


meetings.register("max")(
    Meeting("max", "elementwise", lambda branches: branches, False, _combine, _problem, "the highest branch counts")
)
joins.register("max")(Join("max", convolves=True, whole=True))
""",
    "predictors/operators/highest.py": """from predictors.channels import tied
from predictors.kinds import Kind, kinds
from predictors.rows import same_rows


def _shape(ins, attrs):
    if len(set(ins)) != 1:
        raise ValueError("its inputs differ")
    return ins[0]


kinds.register("max")(Kind(_shape, channels=tied, rows=same_rows, min_inputs=2, nodes=("Max",)))
""",
    "stretch/operators/highest.py": """from functools import reduce

import torch

from stretch.operators.lowerings import computed, onnx_node


def _tflite(b, source, op, ins):
    made, *others = ins
    for i, other in enumerate(others):
        made = b.apply("MAXIMUM", op.name if other is ins[-1] else f"{op.name}.part{i}", [made, other])
    return made


computed("max", lambda a, *tensors: reduce(torch.maximum, tensors), onnx_node("Max"), _tflite, int8=False, any_order=True)
""",
}


SQUARE = {
    "predictors/operators/squared.py": """from predictors.channels import same_channels
from predictors.kinds import POINTWISE, Kind, kinds
from predictors.rows import same_rows
from predictors.slices import same_slice

kinds.register("square")(Kind(channels=same_channels, rows=same_rows, slices=same_slice, elementwise=True, traits=frozenset({POINTWISE})))
""",
    "stretch/operators/squared.py": """import torch

from stretch.operators.capturing import calls, plain
from stretch.operators.lowerings import computed

calls(torch.square, aten=("square",))(plain("square"))
computed(
    "square",
    lambda a, x: x * x,
    lambda w, op, ins: w.node("Mul", op, [ins[0], ins[0]]),
    lambda b, source, op, ins: b.apply("MUL", op.name, [ins[0], ins[0]], quant=b.scale(op)),
)
""",
}

SQUARES = """import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.norm = nn.Conv2d(16, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)

    def forward(self, x):
        return torch.relu(self.norm(self.b(torch.square(self.a(x)))) + x)


def net():
    return nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), *(Block() for _ in range(4)), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 9))
"""


@pytest.fixture
def copy(tmp_path):
    """A folder with the packages as they are, to be added to."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def python(copy: Path, code: str, *words: str, ends: int = 0) -> str:
    """What a program prints whose packages are those of the copy, and which ends with this code."""
    env = {**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "120"}
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=copy, env=env, capture_output=True, text=True)
    assert done.returncode == ends, done.stdout + done.stderr
    return done.stdout


def stretch(copy: Path, *words: object, ends: int = 0) -> str:
    """What the command line of the copy prints."""
    return python(copy, "from stretch.cli import app; app()", *map(str, words), ends=ends)


@pytest.mark.slow
def test_delegate_in_a_new_file_is_listed_and_runs_subgraphs(copy, tmp_path):
    bundle = bundles.two_branches(tmp_path / "bundle")
    (copy / "scheduler/delegates/twice.py").write_text(DELEGATE.format(inner="reference", name="ReferenceDelegate"))
    items = {item["name"]: item for item in json.loads(stretch(copy, "list", "delegates", "--json"))["items"]}
    assert items["twice"]["summary"] == "dropped into the folder"
    assert items["twice"]["module"] == "scheduler.delegates.twice"
    run = json.loads(stretch(copy, "run", bundle, "--map", "gpu=twice", "--repeat", "2", "--warmup", "0", "--json"))
    assert run["processors"]["gpu"]["delegate"] == "twice"
    assert python(copy, "from scheduler.delegates import TwiceDelegate as t; print(t.summary)") == "dropped into the folder\n"


@pytest.mark.slow
def test_verb_in_a_new_file_is_in_the_help_and_runs(copy):
    (copy / "stretch/cli/greet.py").write_text(VERB)
    assert "  greet     Say where it lies.\n" in stretch(copy, "--help")
    assert json.loads(stretch(copy, "greet", "--json"))["file"] == str(copy / "stretch/cli/greet.py")


@pytest.mark.slow
@pytest.mark.torch
def test_constraint_in_a_new_file_is_a_setting_is_obeyed_and_is_blamed(copy):
    words = ("branch", "tiny_resnet", "--device", kept("pixel6"), "--weights", "none", "--dry-run", "--json")
    words += ("--alpha", "1000", "--beta", "1000", "--set", "macs=0.7:1.4")
    (copy / "stretch/planning/constraints/deadline.py").write_text(CONSTRAINT)
    assert "branch_deadline" in stretch(copy, "branch", "--set", "help")

    def slowest(*more: str) -> float:
        segments = json.loads(stretch(copy, *words, *more))["segments"]
        branched = [segment["branches"] for segment in segments if len(segment["branches"]) > 1]
        assert branched
        return max(branch["predicted_ms"] + branch["contention_ms"] for branches in branched for branch in branches)

    data = json.loads(stretch(copy, *words, "--set", "branch_deadline=0.00001", ends=4))
    (rule,) = data["rules"]
    assert (rule["rule"], rule["value"]) == ("branch_deadline", 0.00001)
    assert data["error"].endswith("the tightest is --set branch_deadline=1e-05")
    assert data["hint"].startswith(f"the nearest value with a design is --set branch_deadline={rule['nearest']:.6g}, or split")
    assert slowest("--set", f"branch_deadline={rule['nearest']}") <= rule["nearest"] < slowest()


@pytest.mark.slow
@pytest.mark.torch
def test_strategy_in_a_new_file_is_named_in_the_help_and_searches(copy):
    (copy / "stretch/planning/strategies/largest.py").write_text(STRATEGY)
    assert "How designs are searched: evolve, exact, grid, largest or operator_split " in " ".join(
        stretch(copy, "branch", "--set", "help").split()
    )
    words = ("branch", "tiny_resnet", "--device", "pixel6", "--weights", "none", "--dry-run", "--json", "--alpha", "1000")
    words += ("--beta", "1000", "--set", "macs=0.7:1.4")
    large = json.loads(stretch(copy, *words, "--set", "strategy=largest"))
    assert 1.05 <= large["macs_ratio"] <= 1.4
    assert json.loads(stretch(copy, *words))["predicted"]["makespan_ms"] <= large["predicted"]["makespan_ms"]


DESIGN = """
[[segments]]
name = "s1"
join = "max"
branches = [{ processor = "cpu", depth = 1 }, { processor = "gpu" }]
"""


def in_order(bundle: Path, x: np.ndarray) -> np.ndarray:
    """What a bundle computes, by ONNX Runtime and numpy alone."""
    runtime = pytest.importorskip("onnxruntime")
    manifest = json.loads((bundle / "bundle.json").read_text())
    values = {manifest["inputs"][0]: x}
    left = manifest["subgraphs"] + manifest["joins"]
    while left:
        step = next(item for item in left if values.keys() >= {*item["inputs"]})
        left.remove(step)
        arguments = {name: values[name] for name in step["inputs"]}
        if "file" in step:
            run_result = runtime.InferenceSession(bundle / step["file"]).run(step["outputs"], arguments)
            values |= zip(step["outputs"], run_result, strict=True)
        else:
            meet = {"max": lambda parts: np.max(parts, axis=0), "concat": lambda parts: np.concatenate(parts, axis=1)}[step["kind"]]
            values[step["output"]] = meet(list(arguments.values()))
    return values[manifest["outputs"][0]]


def check_numbers(copy: Path, bundle: Path) -> None:
    """Run a bundle as the product does, and compare."""
    x = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32)
    np.save(copy / "x.npy", x)
    code = (
        "import numpy as np\n"
        "from scheduler.bundle.load import load_bundle\n"
        "from scheduler.runtime.session import Session\n"
        "with Session(load_bundle('b', check_hashes=True)) as session:\n    np.save('y.npy', session(np.load('x.npy')))\n"
    )
    python(copy, code)
    wanted = in_order(bundle, x)
    assert np.abs(np.load(copy / "y.npy") - wanted).max() <= 1e-5 * np.abs(wanted).max()


@pytest.mark.torch
@pytest.mark.slow
def test_operator_kind_in_two_new_files_is_captured_planned_exported_and_run(copy):
    for name, text in SQUARE.items():
        (copy / name).write_text(text)
    (copy / "net.py").write_text(SQUARES)
    code = (
        "from net import net\n"
        "from stretch.capture import capture\n"
        "from stretch.capture.runnable import capture_runnable\n"
        "for graph in (capture(net(), (1, 3, 32, 32)).graph, capture_runnable(net(), (1, 3, 32, 32), 'net').graph):\n"
        "    print(sum(op.kind == 'square' for op in graph.ops))\n"
    )
    assert python(copy, code).split() == ["4", "4"]
    words = ("branch", "net.py:net", "--trust-code", "--input", "3x32x32", "--device", "pixel6", "--weights", "none", "--json")
    words += ("--alpha", "1000", "--beta", "1000", "--set", "macs=0.7:1.6", "--out", copy / "b")
    planned = json.loads(stretch(copy, *words))
    assert [len(segment["branches"]) for segment in planned["segments"]] == [1, 2, 1]
    check_numbers(copy, copy / "b")
    stretch(copy, "export", copy / "b", "--format", "tflite", "--out", copy / "lite")
    code = "from pathlib import Path; from scheduler.formats.onnx import open_onnx\n"
    code += "print(*(op.op.kind for file in Path('b').rglob('*.onnx') for op in open_onnx(file).operators))"
    assert "square" in python(copy, code).split()


@pytest.mark.torch
@pytest.mark.slow
def test_join_in_three_new_files_is_built_exported_and_run_with_the_right_numbers(copy, tmp_path):
    for name, text in HIGHEST.items():
        (copy / name).write_text(text)
    (copy / "d.toml").write_text(DESIGN)
    bundle = copy / "b"
    words = ("branch", "tiny_resnet", "--device", "pixel6", "--weights", "none", "--json")
    data = json.loads(stretch(copy, *words, "--design", copy / "d.toml", "--out", bundle))
    assert [segment["join"] for segment in data["segments"] if len(segment["branches"]) > 1] == ["max"]
    assert [join["kind"] for join in json.loads((bundle / "bundle.json").read_text())["joins"]] == ["max"]
    check_numbers(copy, bundle)
    assert "the highest branch counts" in stretch(copy, "explain", bundle)


@pytest.mark.slow
@pytest.mark.torch
def test_join_in_three_new_files_is_a_word_of_the_planner(copy):
    for name, text in HIGHEST.items():
        (copy / name).write_text(text)
    assert "How branches meet: auto, concat, max, project or sum." in " ".join(stretch(copy, "branch", "--set", "help").split())
    words = ("branch", "tiny_resnet", "--device", "pixel6", "--weights", "none", "--dry-run", "--json", "--alpha", "1000")
    words += ("--beta", "1000", "--set", "macs=0.7:1.6", "--set", "join=max")
    planned = json.loads(stretch(copy, *words))
    assert {segment["join"] for segment in planned["segments"] if len(segment["branches"]) > 1} == {"max"}


@pytest.mark.slow
def test_memory_planner_in_a_new_file_plans_memory(copy):
    (copy / "scheduler/memory/alone.py").write_text(PLANNER)
    code = (
        "from scheduler.memory import Lifetime, Lifetimes, plan_memory\n"
        "print(plan_memory(Lifetimes([Lifetime('a', 3, (0, 1)), Lifetime('b', 4, (2, 3))]), 'alone').total_bytes)"
    )
    assert python(copy, code) == "7\n"


@pytest.mark.slow
@pytest.mark.parametrize(("inner", "name", "kept"), [("base", "Delegate", True), ("cpu", "CpuDelegate", False)])
def test_delegate_in_a_new_file_is_held_apart_from_the_others(copy, inner, name, kept):
    (copy / "scheduler/delegates/twice.py").write_text(DELEGATE.format(inner=inner, name=name))
    linter = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    env = {**os.environ, "PYTHONPATH": str(copy)}
    done = subprocess.run([sys.executable, "-c", linter, "--no-cache"], cwd=copy, env=env, capture_output=True, text=True)
    assert (done.returncode == 0) is kept, done.stdout + done.stderr
    assert ("scheduler.delegates.twice -> scheduler.delegates.cpu" in done.stdout) is not kept
