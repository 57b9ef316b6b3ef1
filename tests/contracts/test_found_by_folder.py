"""Plug-ins in new files of a copy of the packages: one file for each kind, two for a join with its own operator.

An operator kind (two files) and a device (one) are in `test_worked_examples`."""

import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.contracts.repository import ROOT, copy_packages
from tests.predictors.specified import kept
from tests.scheduler import bundles
from tests.warm import WarmPrograms

pytestmark = [pytest.mark.slow, pytest.mark.torch]

DELEGATE = '''from pathlib import Path

from scheduler.delegates.base import Compiled, CoreDelegate, delegates
from scheduler.delegates.{inner} import {base}


@delegates.register("{name}")
class {name}Delegate(CoreDelegate):
    """Another delegate under a name of its own."""

    summary = "dropped into the folder"

    def compile(self, model: Path) -> Compiled:
        return {base}().compile(model)
'''

VERB = '''from stretch.cli.output import Output


def greet(out: Output) -> None:
    """Say where it lies."""
    out.emit({"file": __file__}, lambda console: console.print("hello"))
'''

PLANNER = """from scheduler.memory.plan import planners, shared_objects

planners.register("alone")(lambda lifetimes, alignment=1: shared_objects(lifetimes, [[i] for i in range(len(lifetimes.tensors))]))
"""

#: A constraint in one file: no branch may take longer than a deadline.
CONSTRAINT = '''"""The slowest branch of a segment, ms."""

from stretch.planning.constraints import Constraint, register
from stretch.planning.options import Option, Positive

register(
    Constraint(
        Option("branch_deadline", Positive | None, None, "Milliseconds that a branch may take, at most."),
        ratio=lambda options, segment_ms: (options.slowest_ms, 1.0),
        words="the slowest branch takes {:.3g} ms at best, at most {:g} is allowed",
    )
)
'''

#: An export form in one file: the names of a bundle's subgraphs.
EXPORTER = '''from typing import Annotated

import msgspec
import typer

from scheduler.bundle.load import load_bundle
from stretch.api.exporters.base import Exporter, exporters, written_page


class Names(msgspec.Struct):
    """What was written."""

    names: list[str]
    warnings: list[str]


def _write(source, out, *, backwards: Annotated[bool, typer.Option("--backwards", help="Of names: the last one first.")] = False, progress):
    names = [entry.name for entry in load_bundle(source).manifest.subgraphs]
    names = names[::-1] if backwards else names
    out.write_text(" ".join(names))
    return Names(names, [])


exporters.register("names")(Exporter("the names of its subgraphs", _write, lambda answer: written_page((), (), answer.names)))
'''

#: Each branch computes all channels and cuts some out of them: this gains nothing, but the file is short.
DIVISION = '''from itertools import permutations

from predictors.graph import Op, OpGraph
from stretch.planning.design.branch_design import Division, Piece, check_ranges
from stretch.planning.search.parts import part_costs, part_options


def cut_out(graph, name, start, stop):
    """What one branch computes."""
    cut = Op("cut_out", "slice", (graph.output,), {"start": start, "stop": stop})
    return OpGraph.build(name, [*graph.ops, cut], cut.name)


class CutOuts(Division):
    """What designs, torch modules, files and reports ask of the way; the file's name is its word in a design."""

    kind, joins, what, weights = "cut_outs", ("channels",), "channels cut out of all", "same"

    def check(self, segment, design, shares):
        check_ranges(f"segment `{segment.name}`", self, design.names, shares, segment.width, "channels", "its output")

    def pieces(self, graph, names, shares, join):
        return [Piece(cut_out(graph, name, *share)) for name, share in zip(names, shares, strict=True)]

    def candidates(self, parts):
        space = parts.space
        for segment, first, last, _ in parts.pieces():
            for order in permutations(space.processors, 2) if segment.branchable and segment.graph.macs else ():
                row = []
                for name, share in zip(order, ((0, 8), (8, segment.width)), strict=True):
                    graph = cut_out(segment.graph, segment.name, *share)
                    row += part_costs(space, name, {share: graph}, {share: share}).values()
                yield first, parts.run_options(part_options(space, segment, "channels", [row], self.word), first, last)


DIVISION = CutOuts()
'''

#: The elementwise maximum of the branches' outputs: the join, and its operator in torch, ONNX and TFLite.
HIGHEST = {
    "predictors/operators/highest.py": """from predictors.channels import tied_channels
from predictors.join_rules import Join, Meeting, joins, meetings
from predictors.kinds import Kind, kinds
from predictors.rows import same_rows


def _shape(ins, attrs):
    if len(set(ins)) != 1:
        raise ValueError("its inputs differ")
    return ins[0]


def _problem(inputs, output, layout):
    return " compares tensors of different shapes" if any(shape != output for shape in inputs) else None


def _combine(parts, axis, out):
    import numpy as np

    first, second, *others = parts
    highest = np.maximum(first, second, out=out)
    for other in others:
        np.maximum(highest, other, out=highest)
    return highest


kinds.register("max")(Kind(_shape, channels=tied_channels, rows=same_rows, min_inputs=2, nodes=("Max",)))
meetings.register("max")(
    Meeting("max", "elementwise", lambda branches: branches, False, _combine, _problem, "the highest branch counts")
)
joins.register("max")(Join("max", convolves=True, whole=True))
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


#: New files of each kind; a verb and an export form also among the tools, and a second delegate that imports no other.
FILES = {
    "scheduler/delegates/Twice.py": DELEGATE.format(name="Twice", inner="reference", base="ReferenceDelegate"),
    "scheduler/delegates/Apart.py": DELEGATE.format(name="Apart", inner="base", base="Delegate"),
    "scheduler/memory/alone.py": PLANNER,
    "stretch/api/exporters/names.py": EXPORTER,
    "stretch/cli/greet.py": VERB,
    "stretch/planning/constraints/deadline.py": CONSTRAINT,
    "stretch/planning/divisions/cut_outs.py": DIVISION,
    "stretch/tools/hail/verb.py": VERB.replace("greet", "hail"),
    "stretch/tools/told/exporters.py": EXPORTER.replace('names")', 'told")').replace("backwards", "turned"),
    **HIGHEST,
}


@pytest.fixture(scope="module")
def warm(tmp_path_factory):
    """Programs that run a copy of the packages with the new files."""
    copy = copy_packages(tmp_path_factory.mktemp("copy"))
    shutil.copy(ROOT / "pyproject.toml", copy)
    for name, text in FILES.items():
        (copy / name).parent.mkdir(exist_ok=True)
        (copy / name).write_text(text)
    programs = WarmPrograms(tmp_path_factory.mktemp("warm"), copy)
    yield programs
    programs.close()


@pytest.fixture
def python(warm, tmp_path):
    """Function that runs code in the copy and returns its output."""

    def run(*arguments: object, program="snippet", ends=0) -> str:
        done = warm.run(program, *arguments, cwd=tmp_path, COLUMNS="120")
        assert done.returncode == ends, done.stdout + done.stderr
        return done.stdout

    return run


@pytest.fixture
def stretch(python):
    """Function that runs the copy's command line and returns its output."""
    return partial(python, program="stretch")


def test_delegate_in_a_new_file_is_listed_and_runs_subgraphs(stretch, python, tmp_path):
    bundle = bundles.two_branches(tmp_path / "bundle")
    items = {item["name"]: item for item in json.loads(stretch("list", "delegates", "--json"))["items"]}
    assert (items["Twice"]["summary"], items["Twice"]["module"]) == ("dropped into the folder", "scheduler.delegates.Twice")
    run = json.loads(stretch("run", bundle, "--map", "gpu=Twice", "--repeat", "2", "--warmup", "0", "--json"))
    assert run["processors"]["gpu"]["delegate"] == "Twice"
    assert python("from scheduler.delegates import TwiceDelegate as t; print(t.summary)") == "dropped into the folder\n"


def test_verb_in_a_new_file_is_in_the_help_and_runs(stretch):
    text = stretch("--help")
    for verb, file in {"greet": "stretch/cli/greet.py", "hail": "stretch/tools/hail/verb.py"}.items():
        assert f"  {verb}   "[:9] + "Say where it lies.\n" in text
        assert json.loads(stretch(verb, "--json"))["file"].endswith(file)


def test_form_of_export_in_a_new_file_is_in_the_help_takes_its_own_option_and_writes(stretch, python, tmp_path):
    bundle = bundles.two_branches(tmp_path / "bundle")
    text = " ".join(stretch("export", "--help").split())
    for form, flag in {"names": "--backwards", "told": "--turned"}.items():
        assert f"{form}: the names of its subgraphs" in text
        out = tmp_path / f"{form}.txt"
        names = json.loads(stretch("export", bundle, "--as", form, flag, "--json", "--out", out))["names"]
        assert names == [entry["name"] for entry in json.loads((bundle / "bundle.json").read_text())["subgraphs"]][::-1]
        assert out.read_text() == " ".join(names)
        code = f"from stretch.api import export; print(*export({str(bundle)!r}, 'plain.txt', {form!r}).names)"
        assert python(code).split() == names[::-1]
        assert f"{flag} does not go with --as onnx" in stretch("export", bundle, flag, "--json", ends=2)


def test_constraint_in_a_new_file_is_a_setting_that_designs_keep_and_errors_name(stretch):
    arguments = ("branch", "tiny_resnet", "--device", kept("pixel6"), "--weights", "none", "--dry-run", "--json")
    arguments += ("--alpha", "1000", "--beta", "1000", "--set", "macs=0.7:1.4")
    assert "branch_deadline" in stretch("branch", "--set", "help")

    def slowest(*more: str) -> float:
        segments = json.loads(stretch(*arguments, *more))["segments"]
        branched = [segment["branches"] for segment in segments if len(segment["branches"]) > 1]
        assert branched
        return max(branch["predicted_ms"] + branch["contention_ms"] for branches in branched for branch in branches)

    data = json.loads(stretch(*arguments, "--set", "branch_deadline=0.00001", ends=4))
    (rule,) = data["rules"]
    assert (rule["rule"], rule["value"]) == ("branch_deadline", 0.00001)
    assert data["error"].endswith("the tightest is `branch_deadline=1e-05`")
    assert data["hint"].startswith(f"the nearest value with a design is `branch_deadline={rule['nearest']:.6g}`")
    assert slowest("--set", f"branch_deadline={rule['nearest']}") <= rule["nearest"] < slowest()


def test_division_in_a_new_file_is_planned_read_built_exported_and_run_with_the_right_numbers(stretch, python, tmp_path):
    arguments = ("branch", "tiny_resnet", "--device", kept("pixel6"), "--weights", "none", "--json", "--kinds", "cut_outs", "--out")
    planned = json.loads(stretch(*arguments, tmp_path / "b"))
    (divided,) = (segment for segment in planned["segments"] if len(segment["branches"]) > 1)
    assert (divided["kind"], planned["exact"]) == ("cut_outs", True)
    assert divided["predicted_ms"] <= planned["predicted"]["makespan_ms"]
    assert divided["repeated"] == pytest.approx(1.0)
    assert [branch["cut_outs"] for branch in divided["branches"]] == [[0, 8], [8, divided["width"]]]
    assert all(branch["rows"] is None for branch in divided["branches"])
    code = """
import msgspec, numpy as np, torch
from pathlib import Path
from scheduler.bundle.load import load_bundle
from scheduler.runtime.session import Session
from stretch.network.capture import capture
from stretch.network.models import load_model
from stretch.planning.design.branch_design import BranchDesign, design_to_toml, load_draft
from stretch.planning.design.scale import resolve_design
from stretch.transform import build

module = load_model("tiny_resnet", weights="none").module.eval()
bundle, captured = load_bundle("b", check_hashes=True), capture(module, (1, 3, 32, 32), "tiny_resnet")
design = msgspec.convert(bundle.manifest.design, BranchDesign)
Path("d.toml").write_text(design_to_toml(design))
assert "cut_outs = [" in Path("d.toml").read_text()
assert resolve_design(load_draft(Path("d.toml")), captured.graph, design.device, {"cpu": 8, "gpu": 4}, "cpu") == design
x = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
with torch.inference_mode(), Session(bundle) as session:
    wanted = module(x)
    for got in (build(captured, design)(x), torch.from_numpy(np.array(session(x.numpy())))):
        assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
"""
    python(code)


DESIGN = """
[[segments]]
name = "s1"
join = "max"
branches = [{ processor = "cpu", depth = 1 }, { processor = "gpu" }]
"""


def run_with_numpy(bundle: Path, x: np.ndarray) -> np.ndarray:
    """Output of a bundle, computed with ONNX Runtime and numpy only."""
    runtime = pytest.importorskip("onnxruntime")
    manifest = json.loads((bundle / "bundle.json").read_text())
    values = {manifest["inputs"][0]: x}
    remaining = manifest["subgraphs"] + manifest["joins"]
    while remaining:
        step = next(item for item in remaining if values.keys() >= {*item["inputs"]})
        remaining.remove(step)
        arguments = {name: values[name] for name in step["inputs"]}
        if "file" in step:
            run_result = runtime.InferenceSession(bundle / step["file"]).run(step["outputs"], arguments)
            values |= zip(step["outputs"], run_result, strict=True)
        else:
            join = {"max": lambda parts: np.max(parts, axis=0), "concat": lambda parts: np.concatenate(parts, axis=1)}[step["kind"]]
            values[step["output"]] = join(list(arguments.values()))
    return values[manifest["outputs"][0]]


def test_join_in_two_new_files_is_planned_built_exported_and_run_with_the_right_numbers(stretch, python, tmp_path):
    (tmp_path / "d.toml").write_text(DESIGN)
    bundle = tmp_path / "b"
    assert "How branches meet: auto, concat, max, project or sum;" in " ".join(stretch("branch", "--set", "help").split())
    arguments = ("branch", "tiny_resnet", "--device", "pixel6", "--weights", "none", "--json")
    loose = ("--dry-run", "--alpha", "1000", "--beta", "1000", "--set", "macs=0.7:1.6", "--set", "join=max")
    planned = json.loads(stretch(*arguments, *loose))
    assert {segment["join"] for segment in planned["segments"] if len(segment["branches"]) > 1} == {"max"}
    data = json.loads(stretch(*arguments, "--design", tmp_path / "d.toml", "--out", bundle))
    assert [segment["join"] for segment in data["segments"] if len(segment["branches"]) > 1] == ["max"]
    assert [join["kind"] for join in json.loads((bundle / "bundle.json").read_text())["joins"]] == ["max"]
    x = np.random.default_rng(0).normal(size=(1, 3, 32, 32)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    code = "from scheduler.bundle.load import load_bundle\nfrom scheduler.runtime.session import Session\nimport numpy as np\n"
    python(f"{code}with Session(load_bundle('b', check_hashes=True)) as session: np.save('y.npy', session(np.load('x.npy')))\n")
    wanted = run_with_numpy(bundle, x)
    assert np.abs(np.load(tmp_path / "y.npy") - wanted).max() <= 1e-5 * np.abs(wanted).max()
    assert "the highest branch counts" in stretch("explain", bundle, "--details")


def test_memory_planner_in_a_new_file_plans_memory(python):
    code = "plan_memory(Lifetimes([Lifetime('a', 3, (0, 1)), Lifetime('b', 4, (2, 3))]), 'alone')"
    assert python(f"from scheduler.memory import Lifetime, Lifetimes, plan_memory\nprint({code}.total_bytes)") == "7\n"


def test_new_files_keep_the_import_contracts_except_a_delegate_that_imports_another(warm):
    done = warm.run("lint-imports", "--no-cache", cwd=warm.packages, PYTHONPATH=str(warm.packages))
    assert " 1 broken" in done.stdout
    assert "scheduler.delegates.Twice -> scheduler.delegates.reference" in done.stdout
    assert "scheduler.delegates.Apart ->" not in done.stdout
