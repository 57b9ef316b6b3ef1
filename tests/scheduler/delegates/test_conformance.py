"""Results of every delegate, against `reference`, and `reference` against ONNX Runtime on the CPU."""

import os
import sys
from functools import cache

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st
from onnx import helper

from predictors.errors import StretchError
from scheduler.delegates import delegates, load_plugins
from scheduler.delegates.opencl.graph import read_graph
from scheduler.delegates.reference import ReferenceDelegate
from scheduler.runtime.session import Session
from tests.effort import examples
from tests.scheduler.bundles import onnx_model
from tests.scheduler.delegates import graphs

load_plugins()
ELSEWHERE = () if sys.platform == "darwin" else ("coreml", "coreml:GPU")
COMPUTING = [
    name
    for name in delegates
    if name not in ("reference", "cpu", *ELSEWHERE) and delegates.get(name).computes and "fp32" in delegates.get(name).precisions
]


@cache
def delegate_of(name):
    """One delegate per name for all cases, because some delegates start a process."""
    return delegates.get(name).create(())


@pytest.mark.torch
@pytest.mark.parametrize("name", ["ncnn", "vulkan", "openvino"])
def test_bands_and_paths_next_to_onnx_runtime_give_the_originals_outputs(tmp_path, name):
    if problem := delegates.get(name).unavailable():
        pytest.skip(problem)
    pytest.importorskip("torch")
    from tests.stretch import exact_bundles

    x = exact_bundles.images(1)[0]
    target = name if name == "vulkan" else f"{name}{sorted(os.sched_getaffinity(0))[-1]}"
    with Session(exact_bundles.made(tmp_path / "exact"), {"gpu": target}) as session:
        assert {place.delegate for place in session.placements.values()} == {"cpu", name}
        for got in (session(x), session.submit(x).result(60)):
            assert exact_bundles.near(got, exact_bundles.original(x))


#: A delegate may refuse most cases of an operator, but a test without any accepted case fails.
CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]


def near(got, expected, share=1e-4):
    """Whether expected numbers are finite and the difference is small relative to the largest one."""
    return np.isfinite(expected).all() and np.allclose(got, expected, rtol=1e-4, atol=share * max(1.0, float(np.abs(expected).max())))


#: Kinds for which a delegate has no kernel, so that it refuses every case.
LACKS = {"opencl": {"attention", "div", "global_l2_norm", "subsample"}, "ncnn": {"global_l2_norm"}, "vulkan": {"global_l2_norm"}}


def kinds_of(name):
    """Kinds that files in the delegate's form can contain."""
    return graphs.TFLITE_KIND_NAMES if delegates.get(name).form == "tflite" else graphs.KIND_NAMES


@pytest.mark.representatives(50)
@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "kind"), [(name, kind) for name in COMPUTING for kind in kinds_of(name) if kind not in LACKS.get(name, ())]
)
@settings(max_examples=examples(4), suppress_health_check=CHECKS)
@given(data=st.data())
def test_delegate_agrees_with_the_reference(tmp_path, name, kind, data):
    if problem := delegates.get(name).unavailable():
        pytest.skip(problem)
    graph, weights, x = data.draw(graphs.graphs(kind))
    form = delegates.get(name).form
    graphs.save_onnx_file(graph, weights, tmp_path) if form == "onnx" else graphs.save_both(graph, weights, tmp_path)
    expected = graphs.run(ReferenceDelegate(), tmp_path / "op.onnx", graph, x)
    try:
        got = graphs.run(delegate_of(name), tmp_path / f"op.{form}", graph, x)
    except StretchError:
        # A delegate must refuse operators that it would compute wrongly; a test without any accepted case fails.
        reject()
    assert near(got, expected)


@pytest.mark.torch
@pytest.mark.parametrize("kind", graphs.KIND_NAMES)
@settings(max_examples=examples(15), suppress_health_check=CHECKS)
@given(data=st.data())
def test_reference_agrees_with_onnx_runtime(tmp_path, kind, data):
    graph, weights, x = data.draw(graphs.graphs(kind))
    graphs.save_onnx_file(graph, weights, tmp_path)
    expected = graphs.run(delegate_of("cpu"), tmp_path / "op.onnx", graph, x)
    assert near(graphs.run(ReferenceDelegate(), tmp_path / "op.onnx", graph, x), expected, 1e-5)


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


SHAPE = (2, 4, 3, 5)
#: Operator, input shape, constants and attributes in forms that only other exporters write.
FOREIGN = [
    ("Clip", SHAPE, [None, np.float32(0.5)], {}),
    ("Flatten", SHAPE, [], {"axis": 0}),
    ("Flatten", SHAPE, [], {"axis": 3}),
    ("Gemm", (3, 5), [numbers(5, 7)], {}),
    ("HardSigmoid", SHAPE, [], {"alpha": 0.2, "beta": 0.5}),
    ("LogSoftmax", SHAPE, [], {"axis": -1}),
    ("MatMul", (2, 3, 5), [numbers(5, 7)], {}),
    ("Pad", SHAPE, [np.array([0, 0, 1, 0, 0, 0, 2, 3]), np.float32(-2)], {}),
    ("ReduceMean", SHAPE, [np.array([1])], {"keepdims": 0}),
    ("ReduceMean", SHAPE, [np.array([-2, -1])], {"keepdims": 1}),
    ("ReduceMean", SHAPE, [np.array([0, 1, 2, 3])], {"keepdims": 1}),
    ("Reshape", SHAPE, [np.array([2, -1])], {}),
    ("Reshape", SHAPE, [np.array([0, 0, 15])], {}),
    ("Reshape", SHAPE, [np.array([3, 2, 5, 4])], {}),
    ("Softmax", SHAPE, [], {"axis": 2}),
    ("Squeeze", (3, 4, 1, 1), [np.array([2, 3])], {}),
    ("Transpose", SHAPE, [], {"perm": [3, 1, 0, 2]}),
]


@pytest.mark.representatives(8)
@pytest.mark.parametrize(("op", "shape", "constants", "attrs"), FOREIGN)
def test_operator_forms_of_other_exporters_agree_with_onnx_runtime_or_are_refused(tmp_path, op, shape, constants, attrs):
    path, x, refused = tmp_path / "op.onnx", numbers(*shape), set()
    written = graphs.save_node(path, op, shape, *constants, **attrs)
    expected = graphs.output_of(delegate_of("cpu"), path, written, x)
    for name in ("reference", *COMPUTING):
        if delegates.get(name).form != "onnx" or delegates.get(name).unavailable():
            continue
        try:
            got = graphs.output_of(delegate_of(name), path, written, x)
        except StretchError:
            refused.add(name)
        else:
            assert near(got, expected), name
    assert "reference" not in refused


@pytest.mark.parametrize(
    ("read", "domain", "opset", "message"),
    [
        *((ReferenceDelegate().compile, *row) for row in (("com.example", 20, "`theirs`"), ("", 11, "opset 11"))),
        *((read_graph, *row) for row in (("com.example", 20, "does not run"), ("", 12, "opset 12"))),
    ],
)
def test_operator_of_another_domain_or_an_older_opset_is_refused(tmp_path, read, domain, opset, message):
    node = helper.make_node("Relu", ["x"], ["y"], name="theirs", domain=domain)
    onnx.save(onnx_model([node], {"x": (1, 4)}, {"y": (1, 4)}, opset=opset), str(tmp_path / "m.onnx"))
    with pytest.raises(StretchError, match=message):
        read(tmp_path / "m.onnx")
