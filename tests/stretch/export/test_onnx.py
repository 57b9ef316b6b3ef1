from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from predictors.graph import Op, OpGraph
from predictors.operators import kind_of, kinds
from scheduler.formats.onnx import open_onnx
from stretch.capture import capture
from stretch.export import onnx as export_onnx
from stretch.export.onnx import NODE_TAGS, save_onnx, to_numpy, to_onnx
from stretch.operators.lowerings import make_module
from stretch.planning.design.scale import scaled_graph
from stretch.transform import build
from stretch.transform.model import op_weights
from tests import onnx_runtime
from tests.stretch.designs import identity_design, random_designs


def run(model, x):
    source = Path(model) if isinstance(model, str) else model.SerializeToString()
    session = onnx_runtime.session(source, log_severity_level=3)
    return session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]


def windows(draw, kind):
    kernel = draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))
    symmetric = (draw(st.integers(0, kernel[0] // 2)), draw(st.integers(0, kernel[1] // 2)))
    bottom = draw(st.integers(0, kernel[0] // 2))  # of a band the side where the image does not end has no padding
    attrs = {
        "kernel": kernel,
        "stride": draw(st.tuples(st.integers(1, 3), st.integers(1, 3))),
        "padding": (*symmetric, bottom, symmetric[1]),
    }
    if kind == "conv":
        groups = draw(st.sampled_from([1, 2, 4]))
        attrs["padding"] = draw(st.tuples(*[st.integers(0, 2)] * 4))
        return attrs | {
            "dilation": draw(st.sampled_from([(1, 1), (2, 1)])),
            "groups": groups,
            "out_channels": groups * draw(st.integers(1, 3)),
            "bias": draw(st.booleans()),
        }
    # Where a window is smaller than its step, the onnx package infers one more output than it defines.
    attrs["ceil_mode"] = draw(st.booleans()) and all(k >= s for k, s in zip(attrs["kernel"], attrs["stride"], strict=True))
    return attrs | ({"dilation": (1, 1)} if kind == "max_pool" else {"count_include_pad": draw(st.booleans())})


@st.composite
def attentions(draw):
    heads = draw(st.sampled_from([1, 2, 4]))
    added = {
        name: (draw(st.sampled_from([1, heads])), draw(st.sampled_from([1, 9])), 7, 7) for name in ("bias", "mask") if draw(st.booleans())
    }
    return {"heads": heads, "keys": 7, "scale": 0.5, **added}


@st.composite
def operators(draw):
    kind = draw(st.sampled_from(sorted(kind for kind in kinds if kind != "input" and not kind_of(kind).stated)))
    if kind in ("conv", "max_pool", "avg_pool"):
        attrs = windows(draw, kind)
    else:
        attrs = {
            "linear": {"out_features": 5, "bias": draw(st.booleans())},
            "batch_norm": {"eps": 1e-3, "momentum": 0.1, "affine": draw(st.booleans())},
            "gelu": {"approximate": draw(st.sampled_from(["none", "tanh"]))},
            "elu": {"alpha": 0.7},
            "leaky_relu": {"slope": 0.2},
            "clamp": {"low": -1.5, "high": 2.0},
            "global_avg_pool": {"keepdims": draw(st.booleans())},
            "global_max_pool": {"keepdims": draw(st.booleans())},
            "pad": {"padding": (1, 0, 2, 3)},
            "slice": {"start": 1, "stop": 3},
            "slice_rows": {"start": 2, "stop": 7},
            "channel_shuffle": {"groups": draw(st.sampled_from([1, 2, 4]))},
            "upsample": {"scale": draw(st.tuples(st.integers(1, 3), st.integers(1, 3)))},
            "layer_norm": {"eps": 1e-6, "affine": draw(st.booleans())},
            "add_scalar": {"value": 3.0},
            "mul_scalar": {"value": -0.5},
            "dropout": {"p": 0.1},
            "stochastic_depth": {"p": 0.1, "mode": "row"},
            "group_norm": {"groups": draw(st.sampled_from([1, 2, 4])), "eps": 1e-5, "affine": draw(st.booleans())},
            "global_l2_norm": {"keepdims": draw(st.booleans())},
            "rearrange": {
                "split": (9, 7),
                "order": draw(st.sampled_from([(0, 1), (1, 0)])),
                "pixels": draw(st.sampled_from([(7, 9), (21, 3)])),
            },
            "roll": {"shift": draw(st.tuples(st.integers(0, 8), st.integers(0, 6)))},
            "subsample": {
                "start": draw(st.tuples(*[st.integers(0, 2)] * 2)),
                "stop": (9, 6),
                "step": draw(st.tuples(*[st.integers(1, 3)] * 2)),
            },
            "channels_first": {"rows": 1},
            "attention": draw(attentions()),
        }.get(kind, {})
    count = draw(st.integers(2, 3)) if kind in ("add", "concat", "concat_rows") else kind_of(kind).min_inputs
    return Op("op", kind, ("input",) * count, attrs)


def drawn_module(op, seed):
    """The shape of what an operator reads, and its torch module with random weights."""
    vector = op.kind in ("linear", "unflatten") or (op.kind in ("layer_norm", "batch_norm", "softmax", "scale", "prelu") and seed % 2)
    shape = (1, 9, 4) if op.kind == "channels_first" else (1, 4) if vector else (1, 4, 9, 7)
    torch.manual_seed(seed)
    module = make_module(op, [shape] * len(op.inputs)).eval()
    for tensor in module.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(torch.rand_like(tensor) + 0.1)
    return shape, module


@given(op=operators(), seed=st.integers(0, 1000))
def test_every_operator_computes_what_its_torch_module_computes(op, seed):
    others = (
        [Op(name, "mul_scalar", ("input",), {"value": by}) for name, by in (("half", 0.5), ("other", -0.7))]
        if op.kind == "attention"
        else []
    )
    op = replace(op, inputs=("input", "half", "other")) if others else op
    shape, module = drawn_module(op, seed)
    graph = OpGraph.build("net", [Op("input", "input", attrs={"shape": shape}), *others, op], "op")
    x = torch.randn(shape) * 4
    with torch.inference_mode():
        want = module(*([x, 0.5 * x, -0.7 * x] if others else [x] * len(op.inputs))).numpy()
    model = to_onnx(graph, to_numpy({"op": {k: v for k, v in module.state_dict().items() if k != "num_batches_tracked"}}))
    onnx.checker.check_model(model, full_check=True)
    np.testing.assert_allclose(run(model, x), want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tiny_resnet", "tiny_mobilenet"])
@given(data=st.data())
def test_branched_network_computes_in_onnx_what_it_computes_in_torch(captured, name, data):
    result = captured(name)
    model = build(result, data.draw(random_designs(result.graph)))
    exported = to_onnx(model.graph, to_numpy(op_weights(model)))
    x = torch.randn(result.graph.input.shape)
    with torch.inference_mode():
        want = model(x).numpy()
    assert np.abs(run(exported, x) - want).max() <= 1e-4 * np.abs(want).max()


def test_every_node_keeps_its_attributes_after_load(captured, tmp_path):
    result = captured("tiny_mobilenet")
    graph = scaled_graph(result.graph, identity_design(result.graph))
    model = build(result, identity_design(result.graph))
    save_onnx(to_onnx(graph, to_numpy(op_weights(model)), {"stretch.model": "tiny"}), tmp_path / "m.onnx")
    loaded = onnx.load(tmp_path / "m.onnx")
    assert len(loaded.graph.node) > 20
    for node in loaded.graph.node:
        mapping = {p.key: p.value for p in node.metadata_props}
        assert set(mapping) - {"stretch.kind", "stretch.attributes"} == set(NODE_TAGS)
        assert mapping["stretch.subgraph"].split(".")[1] == mapping["stretch.processor"] == "cpu"
    assert {p.key: p.value for p in loaded.metadata_props}["stretch.model"] == "tiny"


def test_identities_leave_no_node_unless_they_are_the_output():
    module = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Dropout(0.5), nn.ReLU(), nn.Identity())
    captured = capture(module.eval(), (1, 3, 4, 4))
    model = to_onnx(captured.graph, to_numpy(captured.weights))
    assert [n.op_type for n in model.graph.node] == ["Conv", "Relu", "Identity"]


def test_large_weights_go_to_a_file_beside_the_model(captured, tmp_path, monkeypatch):
    result = captured("tiny_resnet")
    monkeypatch.setattr(export_onnx, "EXTERNAL_ABOVE", 1000)
    written = save_onnx(to_onnx(result.graph, to_numpy(result.weights)), tmp_path / "m.onnx")
    assert [p.name for p in written] == ["m.onnx", "m.onnx.data"]
    x = torch.randn(result.graph.input.shape)
    with torch.inference_mode():
        want = result.module(x).numpy()
    np.testing.assert_allclose(run(str(written[0]), x), want, rtol=1e-3, atol=1e-4 * np.abs(want).max())


def test_graph_of_several_tensors_becomes_a_file_of_several(tmp_path):
    shape = {"shape": (1, 4, 3, 3)}
    ops = [
        Op("a", "input", attrs=shape),
        Op("b", "input", attrs=shape),
        Op("s", "add", ("a", "b")),
        Op("d", "dropout", ("s",)),
        Op("r", "relu", ("d",)),
    ]
    graph = OpGraph.build("g", ops, ["r", "s", "d"])
    save_onnx(to_onnx(graph, {}), tmp_path / "m.onnx")
    session = onnx_runtime.session(tmp_path / "m.onnx", log_severity_level=3)
    a, b = np.random.default_rng(0).standard_normal((2, 1, 4, 3, 3)).astype(np.float32)
    rectified, added, passed = session.run(None, {"a": a, "b": b})
    assert np.array_equal(added, a + b)
    assert np.array_equal(passed, a + b)
    assert np.array_equal(rectified, np.maximum(a + b, 0))
    back = open_onnx(tmp_path / "m.onnx").graph
    assert [op.name for op in back.inputs] == ["a", "b"]
    assert back.outputs == graph.outputs
