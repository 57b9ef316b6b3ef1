import os
import sys
from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from predictors.errors import StretchError
from scheduler.delegates import delegates, load_plugins
from scheduler.delegates.reference import ReferenceDelegate
from scheduler.runtime.session import Session
from tests.effort import examples
from tests.scheduler.delegates import graphs
from tests.scheduler.delegates.cases import OPS

load_plugins()
ELSEWHERE = () if sys.platform == "darwin" else ("coreml", "coreml:GPU")
COMPUTING = [
    name
    for name in delegates
    if name not in ("reference", *ELSEWHERE) and delegates.get(name).computes and "fp32" in delegates.get(name).precisions
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


def agree(cases, folder, name, case):
    """Compare one case with the reference; cases that the delegate refuses are drawn anew."""
    shape = case.save(folder / "op.onnx")
    expected = cases.run(ReferenceDelegate(), folder / "op.onnx", case, shape)
    try:
        got = cases.run(made(name), folder / "op.onnx", case, shape)
    except StretchError:
        # What a delegate computes wrongly it must refuse; a test whose every case is refused fails.
        reject()
    assert np.isfinite(expected).all()
    assert np.allclose(got, expected, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(expected).max())))


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


CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.mark.representatives(67)
@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("name", OF_ONNX)
@settings(max_examples=examples(4), suppress_health_check=CHECKS)
@given(data=st.data())
def test_delegate_agrees_with_the_reference(cases, tmp_path, name, op, data):
    if problem := delegates.get(name).unavailable():
        pytest.skip(problem)
    agree(cases, tmp_path, name, data.draw(cases.OPS[op]))


def agree_on_kind(folder, name, case):
    """Compare one graph with the reference, each in the form that `stretch export` writes for it."""
    graph, weights, x = case
    graphs.save_both(graph, weights, folder)
    expected = graphs.run(ReferenceDelegate(), folder / "op.onnx", graph, x)
    got = graphs.run(delegates.get(name).create(()), folder / "op.tflite", graph, x)
    assert np.isfinite(expected).all()
    assert np.allclose(got, expected, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(expected).max())))


@pytest.mark.representatives(19)
@pytest.mark.parametrize("kind", graphs.TFLITE_KIND_NAMES)
@pytest.mark.parametrize("name", OF_TFLITE)
@settings(max_examples=examples(4), suppress_health_check=CHECKS)
@given(data=st.data())
def test_delegate_agrees_with_the_reference_on_a_kind(tmp_path, name, kind, data):
    if problem := delegates.get(name).unavailable():
        pytest.skip(problem)
    agree_on_kind(tmp_path, name, data.draw(graphs.graphs(kind)))
