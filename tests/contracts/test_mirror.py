"""Every source file has a test file at the mirrored path."""

import ast
import re
from pathlib import Path

import pytest

from tests.contracts.repository import ROOT, sources

#: Files without a test file of their own, and why.
EXCEPTIONS = {
    "scheduler/delegates/opencl/templates/conv.py": "tests/scheduler/delegates/opencl/templates/test_templates.py, every kernel against ONNX Runtime",
    "scheduler/delegates/opencl/templates/depthwise.py": "tests/scheduler/delegates/opencl/templates/test_templates.py, every kernel against ONNX Runtime",
    "scheduler/delegates/opencl/templates/elementwise.py": "tests/scheduler/delegates/opencl/templates/test_templates.py, every kernel against ONNX Runtime",
    "scheduler/delegates/opencl/templates/move.py": "tests/scheduler/delegates/opencl/templates/test_templates.py, every kernel against ONNX Runtime",
    "scheduler/delegates/opencl/templates/parts.py": "tests/scheduler/delegates/opencl/templates/test_templates.py, every kernel against ONNX Runtime",
    "scheduler/delegates/opencl/templates/pool.py": "tests/scheduler/delegates/opencl/templates/test_templates.py, every kernel against ONNX Runtime",
    "scheduler/delegates/opencl/templates/rows.py": "tests/scheduler/delegates/opencl/templates/test_templates.py, every kernel against ONNX Runtime",
    "scheduler/delegates/opencl/templates/stem.py": "tests/scheduler/delegates/opencl/templates/test_templates.py, every kernel against ONNX Runtime",
    "scheduler/delegates/opencl/templates/window.py": "tests/scheduler/delegates/opencl/templates/test_templates.py, every kernel against ONNX Runtime",
    "scheduler/delegates/opencl/templates/winograd.py": "tests/scheduler/delegates/opencl/templates/test_templates.py, every kernel against ONNX Runtime",
    "scheduler/delegates/reference/interpreter.py": "tests/scheduler/delegates/test_conformance.py, with the other files of the delegate",
    "scheduler/delegates/reference/ops.py": "tests/scheduler/delegates/test_conformance.py, with the other files of the delegate",
    "scheduler/delegates/reference/windows.py": "tests/scheduler/delegates/test_conformance.py, with the other files of the delegate",
    "stretch/formats/tflite/source.py": "declarations without behaviour; tests/stretch/export/tflite/test_source.py fills them",
    "predictors/formats/ncnn_layers.py": "tests/predictors/formats/test_ncnn.py, layer by layer",
    "stretch/capture/aten.py": "tests/stretch/capture/test_exported.py, on whole networks",
    "stretch/capture/captured.py": "tests/stretch/capture/test_capture.py, on what was captured",
    "stretch/planning/own_options.py": "declarations; tests/stretch/planning/test_options.py takes every one",
    "stretch/planning/cost/times.py": "declarations; tests/stretch/planning/cost/test_makespan.py and test_beside.py fill them",
    "stretch/capture/aten_call.py": "tests/stretch/capture/test_exported.py, on whole networks",
    "predictors/formats/onnx_nodes.py": "tests/predictors/formats/test_onnx.py, through the reader",
    "stretch/capture/aten_opaque.py": "tests/stretch/capture/test_aten_rules.py, operator by operator",
    "stretch/capture/recorder.py": "tests/stretch/capture/test_runnable_rules.py, call by call",
    "stretch/capture/axes/applied.py": "tests/stretch/capture/axes/test_rules.py, on patterns of tokens and channels that lie last",
    "stretch/operators/attention.py": "tests/stretch/export/test_onnx.py against torch, and tests/stretch/operators/test_forms.py",
    "stretch/operators/pixels.py": "tests/stretch/export/test_onnx.py against torch, and tests/stretch/operators/test_forms.py",
    "stretch/operators/reductions.py": "tests/stretch/export/test_onnx.py against torch, and tests/stretch/operators/test_forms.py",
    "predictors/specifications.py": "tests/predictors/test_devices.py, which breaks profiles part by part",
    "stretch/operators/pieces.py": "tests/stretch/operators/test_bands.py and test_move.py, along both axes",
    "scheduler/runtime/events.py": "declarations without behaviour; tests/scheduler/runtime/test_machine.py plays them",
    "scheduler/runtime/shared.py": "tests/scheduler/runtime/test_scheduler.py, with real threads and delegates",
    "scheduler/simulate/figures.py": "declarations without behaviour; tests/scheduler/simulate/test_answer.py fills them",
    "scheduler/explain/answer.py": "declarations; tests/scheduler/explain/test_foreign.py fills them",
    "scheduler/progress.py": "declarations without behaviour; tests/scheduler/delegates/opencl/test_workgroups.py follows one",
    "scheduler/bundle/manifest.py": "declarations without behaviour; tests/scheduler/bundle/test_load.py breaks them",
    "stretch/models/pt2/program.py": "declarations without behaviour; tests/stretch/models/pt2/test_file.py breaks them",
    "stretch/train/source.py": "declarations without behaviour; tests/stretch/train/test_loop.py trains with two that fit them",
    "stretch/planning/design/check.py": "tests/stretch/planning/design/test_scale.py, which breaks joins one by one",
    "stretch/emit/rules_functions.py": "tests/stretch/emit/test_module.py, every operator against its module",
    "stretch/emit/rules_layers.py": "tests/stretch/emit/test_module.py, every operator against its module",
    "stretch/report/html/plan_parts.py": "tests/stretch/report/html/test_plan_page.py, on the page that they are parts of",
    "stretch/phone/answer.py": "declarations; tests/stretch/phone/test_measure.py and test_side_by_side.py fill them",
    "stretch/cli/__init__.py": "tests/stretch/cli/test_app.py: the package is the program",
}


def only_names(source: Path) -> bool:
    """Whether a package file defines nothing, but only passes names on."""
    body = ast.parse((ROOT / source).read_text()).body
    return source.name == "__init__.py" and not any(isinstance(part, ast.FunctionDef | ast.ClassDef) for part in body)


def mirrored(source: Path) -> Path:
    """`a/b/c.py` → `tests/a/b/test_c.py`; a package's `__init__.py` → `tests/a/test_b.py`."""
    if source.name == "__init__.py":
        return Path("tests", *source.parts[:-2], f"test_{source.parts[-2]}.py")
    return Path("tests", *source.parts[:-1], f"test_{source.name}")


@pytest.mark.parametrize("source", sources(), ids=str)
def test_source_file_has_a_test_file_at_the_mirrored_path(source):
    if str(source) in EXCEPTIONS:
        pytest.skip(EXCEPTIONS[str(source)])
    if only_names(source):
        pytest.skip("it only passes names on")
    assert (ROOT / mirrored(source)).is_file(), f"{source} needs {mirrored(source)}"


@pytest.mark.parametrize("reason", sorted(set(EXCEPTIONS.values())))
def test_reason_of_an_exception_names_a_test_file_that_exists(reason):
    named = re.search(r"tests/[\w/]+\.py", reason)
    assert named
    assert (ROOT / named[0]).is_file()


def test_no_exception_is_left_for_a_file_that_is_gone():
    assert EXCEPTIONS.keys() <= {str(source) for source in sources()}
