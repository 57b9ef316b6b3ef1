"""Placement of a file's operators by runtimes, and changes of a file that improve it."""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import external_data_helper
from onnx.reference import ReferenceEvaluator

from predictors.errors import StretchError, UnknownNameError, UsageError
from scheduler.delegates import CpuDelegate, LiteRtDelegate, OpenCLDelegate
from scheduler.formats.tflite import open_tflite
from scheduler.tools.explain import foreign as foreign_files
from scheduler.tools.explain.model import ForeignModel, ForeignOp, Verdict, open_model, tflite_macs
from scheduler.tools.explain.runtimes import find_mentioned
from tests import onnx_runtime
from tests.scheduler.doubles import numbers
from tests.scheduler.foreign_files import linear_tflite
from tests.scheduler.tools.explain.files import CHAINS, FOREIGN, conv, model, node, write_chain


@pytest.mark.parametrize(
    ("code", "reads", "written", "macs"),
    [
        ("CONV_2D", [(1, 9, 9, 3), (8, 3, 3, 3), (8,)], (1, 9, 9, 8), 81 * 8 * 27),
        ("DEPTHWISE_CONV_2D", [(1, 9, 9, 6), (1, 5, 5, 6), (6,)], (1, 9, 9, 6), 81 * 6 * 25),
        ("TRANSPOSE_CONV", [(4,), (8, 2, 2, 3), (1, 5, 5, 3)], (1, 10, 10, 8), 25 * 3 * 8 * 4),
        ("BATCH_MATMUL", [(2, 4, 5), (2, 5, 6)], (2, 4, 6), 2 * 4 * 6 * 5),
        ("ADD", [(1, 9), (9,)], (1, 9), 0),
        ("UNIDIRECTIONAL_SEQUENCE_LSTM", [(1, 9)], (1, 9), None),
    ],
)
def test_work_of_tflite_operators_follows_from_their_shapes(tmp_path, code, reads, written, macs):
    network = open_tflite(linear_tflite(tmp_path / "m.tflite"))
    tensors = [replace(network.tensors[0], shape=shape, stored=None) for shape in (*reads, written)]
    operator = replace(network.operators[0], code=code, inputs=tuple(range(len(reads))), outputs=(len(reads),), settings={})
    assert tflite_macs(replace(network, tensors=tensors), operator) == macs


@pytest.mark.parametrize("place", ["../elsewhere.bin", "/etc/hostname"])
def test_weights_outside_of_the_folder_are_refused(tmp_path, place):
    foreign = model(conv("y"), out=(1, 4, 8, 8))
    external_data_helper.set_external_data(foreign.graph.initializer[0], place)
    foreign.graph.initializer[0].ClearField("raw_data")
    path = tmp_path / "m.onnx"
    path.write_bytes(foreign.SerializeToString())
    with pytest.raises(StretchError, match="outside of its folder"):
        open_model(path)


@pytest.mark.parametrize("content", [b"", b"TFL3 and more", b"\x08\x07\x12"])
@pytest.mark.parametrize(("ending", "kind"), [(".onnx", StretchError), (".tflite", StretchError), (".pt2", UsageError)])
def test_damaged_file_or_one_of_another_kind_is_refused_in_one_sentence(tmp_path, content, ending, kind):
    (tmp_path / f"m{ending}").write_bytes(content)
    with pytest.raises(kind) as error:
        open_model(tmp_path / f"m{ending}")
    assert "\n" not in error.value.message


@pytest.mark.parametrize(
    ("name", "place", "message", "cause"),
    [
        ("own_domain", 1, "not a registered function", "domain com.example"),
        ("doubles", 0, None, "type double"),
        ("open_batch", 0, "dynamic shape is not supported", "shape [?, 3, 8, 8]"),
        ("plain", 0, "unsupported kernel_shape", "kernel_shape = [3, 3]"),
        ("plain", 0, "pads must be zero", "pads = [1, 1, 1, 1]"),
        ("plain", 1, None, "operator Relu"),
        ("volumes", 0, "only rank 4 is supported", "shape [1, 3, 4, 8, 8]"),
        ("upsample", 0, "the file uses opset 9", "opset 9"),
        ("foldable", 5, None, "operator Reshape"),
    ],
)
def test_cause_is_found_in_the_message_or_else_the_operator(foreign, name, place, message, cause):
    result, change = foreign_files.find_cause(open_model(foreign[name]), place, message, ())
    assert result == cause
    assert change


def chain(count):
    ops = tuple(ForeignOp(f"n{i}", "Relu", "", (f"t{i}",), (f"t{i + 1}",), {}, ("float",), ((1,),), 10 * i) for i in range(count))
    return ForeignModel(path=None, kind="TFLite", ops=ops)


verdict_of = partial(Verdict, runtime="r 1", device="d", target="T")


@given(st.lists(st.sampled_from(["on", "off", "gone"]), min_size=1, max_size=12))
def test_partitions_copies_and_share_of_a_chain_agree_with_counting_by_hand(states):
    taken, removed = ({i: target for i, state in enumerate(states) if state == at} for at, target in (("on", "T"), ("gone", "folded")))
    verdict = verdict_of(taken=taken, removed=removed)
    result = foreign_files.judge(chain(len(states)), verdict)
    remaining = [state for state in states if state != "gone"]
    assert result.partitions == sum(a == "on" and b != "on" for a, b in pairwise([*remaining, "off"]))
    assert result.copies == sum({a, b} == {"on", "off"} for a, b in pairwise(states))
    assert result.off == states.count("off") == len(result.obstacles)
    total = 10 * sum(range(len(states)))
    unsupported_work = 10 * sum(i for i, state in enumerate(states) if state == "off")
    assert result.share == (None if not total else (total - unsupported_work) / total)
    if result.obstacles:
        assert result.obstacles[0].operator == f"n{states.index('off')}"


def test_work_with_open_sizes_is_unknown_and_constants_are_no_operators(tmp_path):
    stored = onnx.numpy_helper.from_array(np.ones((4, 1, 1), np.float32))
    nodes = [conv(), node("Constant", "", "k", "two", value=stored), node("Mul", "c k", "y", "scale")]
    for height, work in (("rows", None), (8, 4 * 8 * 8 * 27)):
        path = tmp_path / "m.onnx"
        onnx.save(model(*nodes, shape=(1, 3, height, 8), out=(1, 4, height, 8)), path)
        result = foreign_files.judge(open_model(path), verdict_of(taken={0: "T", 2: "T"}, removed={1: "folded"}))
        assert [(op.name, op.macs, op.partition) for op in result.operators] == [("conv", work, 0), ("scale", 0, 0)]
        assert result.share == (None if work is None else 1)


def test_reported_partitions_are_kept_and_a_refusal_without_an_operator_is_about_the_file():
    verdict = verdict_of(taken={0: "T", 1: "T"}, parts={0: 7, 1: 4})
    assert [op.partition for op in foreign_files.judge(chain(2), verdict).operators] == [0, 1]
    assert foreign_files.judge(chain(2), verdict_of(refused="too large")).obstacles[0].cause == "the file as a whole"


def test_unsupported_file_or_device_is_refused_and_a_failed_childs_last_line_is_reported(foreign):
    with pytest.raises(UnknownNameError, match="`gpu`"):
        foreign_files.explain_file(foreign["add"], "litert", "gpu")
    with pytest.raises(UsageError) as error:
        foreign_files.check_runtime("litert", open_model(foreign["plain"]))
    assert "onnxruntime" in error.value.hint
    with pytest.raises(StretchError, match="code 1: KeyError: 'no such work'"):
        foreign_files.in_child("no such work", str(foreign["plain"]), "onnxruntime")


#: First operator that a runtime does not support, and the cause, by file; unlisted files are fully supported.
FIRST = {
    "onnxruntime": {"own_domain": ("swirl", "domain com.example"), "doubles": ("conv", "type double")},
    "opencl": {
        "own_domain": ("swirl", "domain com.example"),
        # a check of the whole file refuses float64; the file can be written in float32
        "doubles": ("conv", "the file as a whole"),
        "open_batch": ("conv", "shape [?, 3, 8, 8]"),
        "upsample": ("conv", "opset 9"),
        "best_places": ("best", "operator ArgMax"),
        "determinant": ("det", "operator Det"),
        "two_results": ("top", "operator TopK"),
        "volumes": ("conv", "shape [1, 3, 4, 8, 8]"),
        "foldable": ("shape", "operator Shape"),
    },
    "litert": {
        "whole_numbers": ("ADD_0", "type int64"),
        "divided": ("FLOOR_DIV_1", "operator FLOOR_DIV"),
        "power": ("POW_0", "operator POW"),
        "own": ("Swirl_1", "operator Swirl"),
        "reversed": ("SIGN_2", "operator SIGN"),
        "two_parts": ("SIGN_2", "operator SIGN"),
        "floors": ("FLOOR_DIV_0", "operator FLOOR_DIV"),
    },
}


def refused_by_onnxruntime(path):
    """ONNX Runtime's error message for a file; None if it loads the file."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    try:
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:
        return str(error)
    return None


def refused_by_opencl(path):
    """The opencl delegate's error message for a file; None if it compiles the file."""
    try:
        OpenCLDelegate().compile(path)
    except StretchError as error:
        return error.message
    return None


def taken_alone(code, folder):
    """Whether the interpreter delegates a single operator to XNNPACK."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_path=str(write_chain(folder, code, [code])))
    interpreter.allocate_tensors()
    return any(step["op_name"] == "DELEGATE" for step in interpreter._get_ops_details())


@pytest.mark.representatives(6)
@pytest.mark.parametrize(
    ("runtime", "name"),
    [
        *(("onnxruntime", name) for name in FOREIGN),
        *(pytest.param("opencl", name, marks=pytest.mark.opencl) for name in FOREIGN),
        *(("litert", name) for name in CHAINS),
    ],
)
def test_first_unsupported_operator_agrees_with_the_runtimes_own_refusal(foreign, tmp_path, runtime, name):
    if problem := {"opencl": OpenCLDelegate, "litert": LiteRtDelegate}.get(runtime, CpuDelegate).unavailable():
        pytest.skip(problem)
    result = foreign_files.explain_file(foreign[name], runtime, "cpu" if runtime == "onnxruntime" else None)
    first = result.obstacles[0] if result.obstacles else None
    assert (first and (first.operator, first.cause)) == FIRST[runtime].get(name)
    if runtime == "opencl":
        assert (refused_by_opencl(foreign[name]) is None) == (first is None)
    elif runtime == "litert" and name == "own":
        assert "Swirl" in first.words
    elif runtime == "litert":
        taken = [taken_alone(code, tmp_path) for code in CHAINS[name]["codes"]] if "kind" not in CHAINS[name] else [False]
        assert [op.taken for op in result.operators] == taken
        assert result.partitions == sum(a and not b for a, b in pairwise([*taken, False]))
    elif first is None:
        assert refused_by_onnxruntime(foreign[name]) is None
        assert {op.target for op in result.operators if op.taken} == {"CPUExecutionProvider"}
    else:
        message = refused_by_onnxruntime(foreign[name])
        assert (first.op in message, first.words.split()[-1] in message, result.partitions) == (True, True, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("runtime", "name"),
    [
        *(pytest.param("opencl", name, marks=pytest.mark.opencl) for name in ("open_batch", "upsample", "foldable")),
        ("onnxruntime", "doubles"),
    ],
)
def test_fixed_file_is_supported_and_equivalent(foreign, tmp_path, runtime, name):
    if runtime == "opencl" and (problem := OpenCLDelegate.unavailable()):
        pytest.skip(problem)
    device = "cpu" if runtime == "onnxruntime" else None
    before, out = foreign[name].read_bytes(), tmp_path / "fixed.onnx"
    result = foreign_files.fix_file(foreign_files.explain_file(foreign[name], runtime, device), runtime, device, out)
    assert (result.fix.file, result.fix.max_error < 1e-5) == (out, True)
    after = foreign_files.explain_file(out, runtime, device)
    assert result.fix.operators == (result.off, after.off)
    assert after.off < result.off
    assert runtime == "opencl" or (after.off, result.fix.steps) == (0, ("write doubles in single precision",))
    onnx.checker.check_model(onnx.load(str(out)))
    assert foreign[name].read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["fixed.onnx"]


def test_operator_of_a_message_is_found_by_its_name_or_else_its_type(foreign):
    opened = open_model(foreign["own_domain"])
    assert find_mentioned(opened, "Could not find an implementation for Relu(14) node with name 'relu'") == 2
    assert find_mentioned(opened, "Fatal error: com.example:Swirl(-1) is not a registered function/op") == 1
    assert find_mentioned(opened, "it is too large") is None


@pytest.mark.parametrize("name", [name for name in FOREIGN if name not in ("own_domain", "upsample")])
def test_every_fix_agrees_with_the_original_in_the_onnx_reference(name):
    original = FOREIGN[name]()
    x = np.random.default_rng(1).standard_normal([d.dim_value or 1 for d in original.graph.input[0].type.tensor_type.shape.dim])

    def computed(model):
        kind = onnx.helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
        return ReferenceEvaluator(model).run(None, {"x": x.astype(kind)})[0]

    before = original.SerializeToString(deterministic=True)
    changes = [changed for _, changed in foreign_files.try_fixes(original)]
    assert original.SerializeToString(deterministic=True) == before
    for changed in changes:
        onnx.checker.check_model(changed)
        np.testing.assert_allclose(computed(changed), computed(original), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "message"), [("m.txt", "does not end in .onnx"), ("mine.onnx", "exists already"), ("none/m.onnx", "there is no folder")]
)
def test_fixed_file_is_not_written_over_a_file_or_to_an_invalid_path(foreign, tmp_path, name, message):
    (tmp_path / "mine.onnx").write_text("mine")
    result = foreign_files.judge(open_model(foreign["foldable"]), verdict_of())
    with pytest.raises(UsageError, match=message):
        foreign_files.fix_file(result, "onnxruntime", "cpu", tmp_path / name)
    assert (tmp_path / "mine.onnx").read_text() == "mine"


def test_upsample_becomes_resize_in_a_newer_opset_with_equal_results():
    original = FOREIGN["upsample"]()
    changed = foreign_files.raise_opset(original)
    wanted, got = (onnx_runtime.output(m.SerializeToString(), numbers()) for m in (original, changed))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6)
    assert [node.op_type for node in changed.graph.node if node.op_type in ("Upsample", "Resize")] == ["Resize"]
    assert changed.opset_import[0].version == foreign_files.NEW_OPSET


def test_changed_weights_and_shapes_differ_and_other_tensor_names_are_refused(tmp_path, foreign):
    def differing():
        onnx.save(other, str(tmp_path / "other.onnx"))
        return foreign_files.largest_difference(foreign["plain"], tmp_path / "other.onnx")

    other = FOREIGN["plain"]()
    array = onnx.numpy_helper.to_array(other.graph.initializer[0]) * 1.5
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(array, "w"))
    assert differing() == pytest.approx(0.5, rel=1e-3)
    other.graph.node[2].CopyFrom(node("Relu", "r", "y", "again"))
    other.graph.output[0].CopyFrom(FOREIGN["own_domain"]().graph.output[0])
    assert differing() == math.inf
    other.graph.node[2].output[0] = other.graph.output[0].name = "z"
    with pytest.raises(StretchError, match="takes or gives other tensors"):
        differing()
