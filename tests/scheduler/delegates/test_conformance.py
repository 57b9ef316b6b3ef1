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
from scheduler.delegates.reference import ReferenceDelegate
from scheduler.runtime.session import Session
from tests.effort import examples
from tests.scheduler.bundles import onnx_model
from tests.scheduler.delegates import graphs
from tests.scheduler.delegates.cases import OPS

load_plugins()
ELSEWHERE = () if sys.platform == "darwin" else ("coreml", "coreml:GPU")
COMPUTING = [
    name
    for name in delegates
    if name not in ("reference", "cpu", *ELSEWHERE) and delegates.get(name).computes and "fp32" in delegates.get(name).precisions
]
#: Those that read single ONNX operators; the others read kinds of operators as `stretch export` writes them.
OF_ONNX = [name for name in COMPUTING if delegates.get(name).form == "onnx"]
OF_TFLITE = [name for name in COMPUTING if delegates.get(name).form == "tflite"]
#: Every operator that the exporter writes; `Constant` is read as a weight.
OPERATORS = sorted(OPS)


@cache
def made(name):
    """One delegate of a name for all cases: some start a process."""
    return delegates.get(name).create(())


@pytest.mark.torch
@pytest.mark.parametrize("name", ["ncnn", "vulkan", "openvino"])
def test_bands_and_paths_beside_onnx_runtime_are_the_original(tmp_path, name):
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


#: A delegate may refuse most cases of an operator; where it refuses all, the test fails.
CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]


def near(got, expected, share=1e-4):
    """Whether numbers are finite and differ by little of the largest one."""
    return np.isfinite(expected).all() and np.allclose(got, expected, rtol=1e-4, atol=share * max(1.0, float(np.abs(expected).max())))


@pytest.mark.representatives(31)
@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("name", OF_ONNX)
@settings(max_examples=examples(4), suppress_health_check=CHECKS)
@given(data=st.data())
def test_delegate_agrees_with_the_reference(cases, tmp_path, name, op, data):
    if problem := delegates.get(name).unavailable():
        pytest.skip(problem)
    case = data.draw(cases.OPS[op])
    shape = case.save(tmp_path / "op.onnx")
    expected = cases.run(ReferenceDelegate(), tmp_path / "op.onnx", case, shape)
    try:
        got = cases.run(made(name), tmp_path / "op.onnx", case, shape)
    except StretchError:
        # A delegate must refuse operators that it would compute wrongly; a test whose every case is refused fails.
        reject()
    assert near(got, expected)


@pytest.mark.representatives(19)
@pytest.mark.parametrize("kind", graphs.TFLITE_KIND_NAMES)
@pytest.mark.parametrize("name", OF_TFLITE)
@settings(max_examples=examples(4), suppress_health_check=CHECKS)
@given(data=st.data())
def test_delegate_agrees_with_the_reference_on_a_kind(tmp_path, name, kind, data):
    if problem := delegates.get(name).unavailable():
        pytest.skip(problem)
    graph, weights, x = data.draw(graphs.graphs(kind))
    graphs.save_both(graph, weights, tmp_path)
    expected = graphs.run(ReferenceDelegate(), tmp_path / "op.onnx", graph, x)
    got = graphs.run(delegates.get(name).create(()), tmp_path / "op.tflite", graph, x)
    assert near(got, expected)


@pytest.mark.parametrize("op", OPERATORS)
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_reference_agrees_with_onnx_runtime(cases, tmp_path, op, data):
    case = data.draw(cases.OPS[op])
    shape = case.save(tmp_path / "op.onnx")
    expected = cases.run(made("cpu"), tmp_path / "op.onnx", case, shape)
    got = cases.run(ReferenceDelegate(), tmp_path / "op.onnx", case, shape)
    assert near(got, expected, 1e-5)


@pytest.mark.parametrize(("domain", "opset", "noun"), [("com.example", 20, "`theirs`"), ("", 11, "opset 11")])
def test_operator_of_another_domain_or_opset_whose_operators_are_written_differently_is_refused(tmp_path, domain, opset, noun):
    node = helper.make_node("Relu", ["x"], ["y"], name="theirs", domain=domain)
    onnx.save(onnx_model([node], {"x": (1, 4)}, {"y": (1, 4)}, opset=opset), str(tmp_path / "m.onnx"))
    with pytest.raises(StretchError, match=noun):
        ReferenceDelegate().compile(tmp_path / "m.onnx")
