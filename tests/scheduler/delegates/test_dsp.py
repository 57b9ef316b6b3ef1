"""Subgraphs on a Hexagon DSP, run in QNN's simulator."""

from functools import partial

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from onnx import TensorProto, helper

from predictors.errors import StretchError
from scheduler.delegates.dsp import INSTALL, DspDelegate, check_int8, compile_context
from scheduler.delegates.reference import ReferenceDelegate
from stretch.export.quantize.qdq import quantise
from tests.effort import examples
from tests.scheduler.delegates import graphs, qdq

X = np.random.default_rng(1).uniform(-3, 3, (1, 3, 6, 6)).astype(np.float32)


@pytest.fixture
def dsp(tmp_path):
    return DspDelegate(tmp_path / "cache")


def exact():
    """The integer convolution in numpy, before its output is rounded."""
    x = np.pad(np.round(X[0] / qdq.X_SCALE).astype(np.int64).clip(-128, 127), ((0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
    sums = np.einsum("chwij,ocij->ohw", windows, qdq.weights().astype(np.int64))
    return (sums * qdq.X_SCALE * qdq.W_SCALE).clip(-128 * qdq.Y_SCALE, 127 * qdq.Y_SCALE)[None]


def run(delegate, path):
    return graphs.output_of(delegate, path, (1, 4, 6, 6), X)


@pytest.mark.slow
@pytest.mark.qnn
def test_convolution_agrees_with_integer_arithmetic_within_one_step_of_the_output_scale(dsp, tmp_path):
    qdq.save_conv(tmp_path / "m.onnx")
    assert np.abs(run(dsp, tmp_path / "m.onnx") - exact()).max() <= qdq.Y_SCALE


#: Kinds with one input that subgraphs have; other tests run networks with kinds of several inputs.
KINDS = ("avg_pool", "batch_norm", "clamp", "conv", "linear", "global_avg_pool", "hard_swish", "max_pool", "relu", "sigmoid", "tanh")


def has_zero_in_range(case):
    """Whether a clamp's range has zero, as in networks: the range of a quantised tensor always has it."""
    return case[0].by_name["y"].attrs.get("low", 0) <= 0


@pytest.mark.slow
@pytest.mark.qnn
@pytest.mark.parametrize("kind", KINDS)
def test_operator_in_int8_agrees_with_the_reference_or_is_refused(dsp, tmp_path, kind):
    computed = []

    # Failing cases are not shrunk, because each step needs a compilation.
    @settings(max_examples=examples(5), phases=[Phase.generate], derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(case=graphs.graphs(kind).filter(has_zero_in_range))
    def check(case):
        graph, weights, x = case
        file = tmp_path / "op.onnx"
        graphs.save_onnx_file(graph, weights, tmp_path)
        expected = graphs.run(ReferenceDelegate(), file, graph, x)
        onnx.save(quantise(onnx.load(file), [x] * 8), file)
        try:
            got = graphs.run(dsp, file, graph, x)
        except StretchError:
            return
        computed.append(case)
        assert np.linalg.norm(got - expected) <= 0.05 * max(np.linalg.norm(expected), 0.01)

    check()
    assert computed


@pytest.mark.qnn
@pytest.mark.parametrize(("kernel", "ceil", "include"), [(2, 1, 0), (3, 1, 0), (2, 0, 1)])
def test_average_pool_that_qnn_computes_wrongly_is_refused(dsp, tmp_path, kernel, ceil, include):
    attrs = {"kernel_shape": (kernel, kernel), "strides": (2, 2), "pads": (include,) * 4, "ceil_mode": ceil, "count_include_pad": include}
    x = np.random.default_rng(0).normal(size=(1, 4, 8, 8)).astype(np.float32)
    graphs.save_node(tmp_path / "op.onnx", "AveragePool", x.shape, **attrs)
    onnx.save(quantise(onnx.load(tmp_path / "op.onnx"), [x] * 8), tmp_path / "op.onnx")
    with pytest.raises(StretchError, match="computes its operator `node` wrongly"):
        dsp.compile(tmp_path / "op.onnx")


@pytest.mark.qnn
def test_float_subgraph_and_operator_that_the_dsp_lacks_are_refused_by_name(dsp, tmp_path):
    for save, message in ((qdq.save_float, r"`s2\.dsp` is float .*`conv`"), (partial(qdq.save_conv, op="Det"), r"`s2\.dsp`.*`det`")):
        save(tmp_path / "m.onnx", "s2.dsp")
        with pytest.raises(StretchError, match=message):
            dsp.compile(tmp_path / "m.onnx")


@pytest.mark.slow
@pytest.mark.qnn
def test_second_compilation_reads_the_cache_and_computes_the_same(dsp, tmp_path):
    qdq.save_conv(tmp_path / "m.onnx")
    first = run(dsp, tmp_path / "m.onnx")
    (kept,) = (tmp_path / "cache").iterdir()
    assert [node.op_type for node in onnx.load(kept).graph.node].count("EPContext") == 1
    written = kept.stat().st_mtime_ns
    assert np.array_equal(run(dsp, tmp_path / "m.onnx"), first)
    assert kept.stat().st_mtime_ns == written
    # an unwritable cache folder is no error
    assert np.array_equal(run(DspDelegate(tmp_path / "m.onnx" / "inside a file"), tmp_path / "m.onnx"), first)


def test_float_weight_with_an_int8_activation_is_refused(tmp_path):
    qdq.save_conv(tmp_path / "m.onnx")
    proto = onnx.load(tmp_path / "m.onnx")
    proto.graph.node[3].input[1] = "real"
    proto.graph.initializer.append(helper.make_tensor("real", TensorProto.FLOAT, [4, 3, 3, 3], [0.0] * 108))
    with pytest.raises(StretchError, match="is float"):
        check_int8(proto, "s1.dsp")


@pytest.mark.qnn
def test_file_that_cannot_be_compiled_is_an_error_of_one_sentence_with_the_file(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(StretchError, match=r"m\.onnx for sm8350") as error:
        compile_context(tmp_path / "m.onnx", "sm8350", tmp_path / "out.onnx", X)
    assert "\n" not in error.value.message
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]


LOAD = """
from predictors.errors import MissingBackendError
from scheduler.delegates import DspDelegate
from scheduler.delegates.dsp import load_library
print("unavailable:", DspDelegate.unavailable())
try:
    load_library()
    print("loaded")
except MissingBackendError as error:
    print(f"{error.exit_code}: {error.message} | {error.hint}")
"""


def test_missing_package_is_a_missing_backend_with_the_install_line():
    unavailable, error = qdq.python("import sys\nsys.modules['onnxruntime_qnn'] = None\n" + LOAD).stdout.splitlines()
    assert unavailable == f"unavailable: onnxruntime-qnn is not installed ({INSTALL})"
    assert error == f"5: the `dsp` delegate cannot run: onnxruntime-qnn is not installed | {INSTALL}"
