import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scheduler.delegates import delegates, load_plugins
from scheduler.delegates.reference import ReferenceDelegate
from scheduler.delegates.reference.ops import OPS

load_plugins()
COMPUTING = [name for name in delegates if name != "reference" and delegates.get(name).computes and "fp32" in delegates.get(name).precisions]

#: Every operator that the exporter writes; `Constant` is read as a weight.
OPERATORS = sorted(OPS)


def test_every_operator_of_the_reference_has_a_case(cases):
    assert sorted(cases.OPS) == OPERATORS


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("name", COMPUTING)
@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_delegate_agrees_with_the_reference(cases, tmp_path, name, op, data):
    delegate = delegates.get(name)
    if problem := delegate.unavailable():
        pytest.skip(problem)
    case = data.draw(cases.OPS[op])
    shape = case.save(tmp_path / "op.onnx")
    expected = cases.run(ReferenceDelegate(), tmp_path / "op.onnx", case, shape)
    got = cases.run(delegate.create(()), tmp_path / "op.onnx", case, shape)
    assert np.isfinite(expected).all()
    assert np.allclose(got, expected, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(expected).max())))
