"""Results of every delegate, against `reference`, and `reference` against ONNX Runtime."""

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


@pytest.mark.representatives(67)
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
    graph, weights, x = data.draw(graphs.graphs(kind))
    graphs.save_both(graph, weights, tmp_path)
    expected = graphs.run(ReferenceDelegate(), tmp_path / "op.onnx", graph, x)
    got = graphs.run(delegates.get(name).create(()), tmp_path / "op.tflite", graph, x)
    assert np.isfinite(expected).all()
    assert np.allclose(got, expected, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(expected).max())))


def torch_result(case):
    """The same operator written in torch: an oracle that shares no code with ours."""
    import torch
    from torch.nn import functional

    x, *more = (torch.from_numpy(np.ascontiguousarray(a)) for a in case.inputs)
    c = {name: None if a is None else torch.from_numpy(np.array(a)) for name, a in case.constants.items()}
    a = case.attrs

    def padded(value=0.0):
        top, left, bottom, right = a["pads"]
        return functional.pad(x, (left, right, top, bottom), value=value)

    results = {
        "Conv": lambda: functional.conv2d(padded(), c["w"], c.get("b"), a["strides"], 0, a["dilations"], a["group"]),
        "MaxPool": lambda: functional.max_pool2d(x, a["kernel_shape"], a["strides"], a["pads"][:2], 1, bool(a["ceil_mode"])),
        "AveragePool": lambda: functional.avg_pool2d(
            x, a["kernel_shape"], a["strides"], a["pads"][:2], bool(a["ceil_mode"]), bool(a["count_include_pad"])
        ),
        "BatchNormalization": lambda: functional.batch_norm(x, c["mean"], c["var"], c["scale"], c["b"], eps=a["epsilon"]),
        "Clip": lambda: torch.clamp(x, c["low"], c["high"]),
        "Add": lambda: x + more[0],
        "Mul": lambda: x * more[0],
        "Sum": lambda: torch.stack([x, *more]).sum(0),
        "Concat": lambda: torch.cat([x, *more], 1),
        "Gemm": lambda: functional.linear(x, c["w"] if a["transB"] else c["w"].T, c.get("b")),
        "MatMul": lambda: x @ c["w"],
        "Pad": lambda: functional.pad(x, c["pads"].reshape(2, 4)[:, [3, 2]].T.flatten().tolist(), value=float(c.get("value", 0.0))),
        "Slice": lambda: x.narrow(int(c["axis"]), int(c["start"]), int(c["stop"]) - int(c["start"])),
        "Reshape": lambda: x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(c["shape"].tolist())]),
        "ReduceMean": lambda: x.mean(c["axes"].tolist(), keepdim=bool(a["keepdims"])),
        "Squeeze": lambda: x[:, :, 0, 0],
        "Unsqueeze": lambda: x[:, :, None, None],
        "Transpose": lambda: x.permute(*a["perm"]),
        "Flatten": lambda: x.reshape(int(np.prod(x.shape[: a["axis"]])), -1),
        "GlobalAveragePool": lambda: functional.adaptive_avg_pool2d(x, 1),
        "GlobalMaxPool": lambda: functional.adaptive_max_pool2d(x, 1),
        "HardSigmoid": lambda: torch.clamp(a["alpha"] * x + a["beta"], 0, 1),
        "HardSwish": lambda: functional.hardswish(x),
        "Gelu": lambda: functional.gelu(x, approximate=a["approximate"]),
        "Elu": lambda: functional.elu(x, a["alpha"]),
        "LayerNormalization": lambda: functional.layer_norm(x, x.shape[-1:], c["scale"], c.get("b"), a["epsilon"]),
        "LogSoftmax": lambda: functional.log_softmax(x, a["axis"]),
        "Softmax": lambda: functional.softmax(x, a["axis"]),
        "Mish": lambda: functional.mish(x),
        "PRelu": lambda: functional.prelu(x, c["slope"].flatten()),
        "Resize": lambda: functional.interpolate(x, scale_factor=tuple(c["scales"].tolist()[2:]), mode="nearest"),
        "LeakyRelu": lambda: functional.leaky_relu(x, a["alpha"]),
        "Identity": lambda: x,
        "Relu": lambda: functional.relu(x),
        "Sigmoid": lambda: torch.sigmoid(x),
        "Tanh": lambda: torch.tanh(x),
    }
    return results[case.op]().numpy()


@pytest.mark.torch
@pytest.mark.parametrize("op", sorted(OPS))
@settings(max_examples=examples(20), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(data=st.data())
def test_agrees_with_torch(cases, tmp_path, op, data):
    case = data.draw(cases.OPS[op])
    shape = case.save(tmp_path / "op.onnx")
    expected = torch_result(case)
    assert expected.shape == shape
    assert np.allclose(
        cases.run(ReferenceDelegate(), tmp_path / "op.onnx", case, shape),
        expected,
        rtol=1e-4,
        atol=1e-5 * max(1.0, float(np.abs(expected).max())),
    )


def model(path, nodes, opset=20):
    onnx.save(onnx_model(nodes, {"x": (1, 4)}, {"y": (1, 4)}, opset=opset), str(path))
    return path


def test_operator_of_another_domain_is_refused(tmp_path):
    path = model(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"], name="theirs", domain="com.example")])
    with pytest.raises(StretchError, match="node `theirs`"):
        ReferenceDelegate().compile(path)


def test_opset_whose_operators_are_written_differently_is_refused(tmp_path):
    path = model(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], opset=11)
    with pytest.raises(StretchError, match="opset 11"):
        ReferenceDelegate().compile(path)
