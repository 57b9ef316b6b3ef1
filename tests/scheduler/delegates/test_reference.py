import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from predictors.errors import StretchError
from scheduler.delegates.reference import ReferenceDelegate
from tests.effort import examples
from tests.scheduler.delegates.cases import OPS


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

    match case.op:
        case "Conv":
            y = functional.conv2d(padded(), c["w"], c.get("b"), a["strides"], 0, a["dilations"], a["group"])
        case "MaxPool":
            y = functional.max_pool2d(x, a["kernel_shape"], a["strides"], a["pads"][:2], 1, bool(a["ceil_mode"]))
        case "AveragePool":
            y = functional.avg_pool2d(x, a["kernel_shape"], a["strides"], a["pads"][:2], bool(a["ceil_mode"]), bool(a["count_include_pad"]))
        case "BatchNormalization":
            y = functional.batch_norm(x, c["mean"], c["var"], c["scale"], c["b"], eps=a["epsilon"])
        case "Clip":
            y = torch.clamp(x, c["low"], c["high"])
        case "Add":
            y = x + more[0]
        case "Mul":
            y = x * more[0]
        case "Sum":
            y = torch.stack([x, *more]).sum(0)
        case "Concat":
            y = torch.cat([x, *more], 1)
        case "Gemm":
            y = functional.linear(x, c["w"] if a["transB"] else c["w"].T, c.get("b"))
        case "MatMul":
            y = x @ c["w"]
        case "Pad":
            n = [int(v) for v in c["pads"]]
            y = functional.pad(x, (n[3], n[7], n[2], n[6]), value=float(c.get("value", 0.0)))
        case "Slice":
            y = x.narrow(int(c["axis"]), int(c["start"]), int(c["stop"]) - int(c["start"]))
        case "Reshape":
            y = x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(c["shape"].tolist())])
        case "ReduceMean":
            y = x.mean(c["axes"].tolist(), keepdim=bool(a["keepdims"]))
        case "Squeeze":
            y = x[:, :, 0, 0]
        case "Unsqueeze":
            y = x[:, :, None, None]
        case "Transpose":
            y = x.permute(*a["perm"])
        case "Flatten":
            y = x.reshape(int(np.prod(x.shape[: a["axis"]])), -1)
        case "GlobalAveragePool":
            y = functional.adaptive_avg_pool2d(x, 1)
        case "GlobalMaxPool":
            y = functional.adaptive_max_pool2d(x, 1)
        case "HardSigmoid":
            y = torch.clamp(a["alpha"] * x + a["beta"], 0, 1)
        case "HardSwish":
            y = functional.hardswish(x)
        case "Gelu":
            y = functional.gelu(x, approximate=a["approximate"])
        case "Elu":
            y = functional.elu(x, a["alpha"])
        case "LayerNormalization":
            y = functional.layer_norm(x, x.shape[-1:], c["scale"], c.get("b"), a["epsilon"])
        case "LogSoftmax":
            y = functional.log_softmax(x, a["axis"])
        case "Softmax":
            y = functional.softmax(x, a["axis"])
        case "Mish":
            y = functional.mish(x)
        case "PRelu":
            y = functional.prelu(x, c["slope"].flatten())
        case "Resize":
            y = functional.interpolate(x, scale_factor=tuple(c["scales"].tolist()[2:]), mode="nearest")
        case "LeakyRelu":
            y = functional.leaky_relu(x, a["alpha"])
        case "Identity":
            y = x
        case "Relu":
            y = functional.relu(x)
        case "Sigmoid":
            y = torch.sigmoid(x)
        case "Tanh":
            y = torch.tanh(x)
    return y.numpy()


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


def model(path, nodes, opset=20, outputs=("y",)):
    """A model of [1, 4] tensors."""
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 4]) for name in ("x", *outputs)]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), str(path))
    return path


def test_operator_of_another_domain_is_refused(tmp_path):
    path = model(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"], name="theirs", domain="com.example")])
    with pytest.raises(StretchError, match="node `theirs`"):
        ReferenceDelegate().compile(path)


def test_opset_whose_operators_are_written_differently_is_refused(tmp_path):
    path = model(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])], opset=11)
    with pytest.raises(StretchError, match="opset 11"):
        ReferenceDelegate().compile(path)


def test_buffer_of_another_shape_is_refused(tmp_path):
    compiled = ReferenceDelegate().compile(model(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"])]))
    with pytest.raises(StretchError, match="output `y` has shape"):
        compiled.bind([np.zeros((1, 4), np.float32)], [np.zeros((4,), np.float32)])
