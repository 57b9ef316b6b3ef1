"""TFLite files: operators in float and in int8, and files of whole bundles compared with ONNX and fp32."""

import contextlib
import json
from dataclasses import replace

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from predictors.errors import InfeasibleError, MissingBackendError, StretchError
from predictors.graph import Op, OpGraph
from scheduler.bundle.load import load_bundle
from scheduler.bundle.tflite_file import load_tflite
from scheduler.checks.verify import random_input
from scheduler.delegates.litert import LiteRtDelegate
from scheduler.delegates.reference import ReferenceDelegate
from scheduler.formats.int8_edges import Quant
from scheduler.formats.tflite import OPERATORS, OPTIONS, TFLITE, TYPES
from scheduler.runtime.session import Session
from stretch.export import tflite as module
from stretch.export.onnx import save_onnx, to_onnx
from stretch.export.quantize.images import synthetic_images
from stretch.export.quantize.qdq import quantise
from stretch.export.quantize.replay import Loss, loss, replay, runner
from stretch.export.tflite import (
    FILE,
    MARGIN_DB,
    MIN_COSINE,
    MIN_COSINE_ROUNDED,
    SignatureLosses,
    check_lowerings,
    export_tflite,
    join_to_tflite,
    read_source,
)
from stretch.operators.formats.tflite import SubgraphSource, Writer
from stretch.operators.lowerings import lowerings
from tests.effort import examples
from tests.predictors.networks import Net, convolution
from tests.scheduler.bundles import onnx_model, stating, two_branches
from tests.scheduler.delegates import graphs
from tests.stretch.export.tflite.rounded import codes, rounded_source, run, snr_db

pytest.importorskip("ai_edge_litert")

CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
#: Minimum signal-to-noise ratio in dB with int8 input and output; these three kinds also round internally.
LEAST_DB = {"hard_swish": 20, "hard_sigmoid": 20, "softmax": 10}


@pytest.mark.parametrize("kind", graphs.TFLITE_KIND_NAMES)
@settings(max_examples=examples(15), suppress_health_check=CHECKS)
@given(data=st.data())
def test_int8_form_of_a_kind_is_close_to_its_float_form(tmp_path, kind, data):
    """Int8 loses a bounded part of the result unless the result is very small."""
    graph, weights, x = data.draw(graphs.graphs(kind))
    source, values = rounded_source(graph, weights, x, tmp_path)
    expected, got = values["y"], run(source, tmp_path, x)
    assert np.isfinite(got).all()
    # A small result may have most of its values between two steps of the scale, so its error is bounded in steps.
    # A mean is first rounded in the scale of its input, which is coarse if values cancel.
    scale = max(source.scales[name].scale for name in (("x", "y") if kind == "avg_pool" else ("y",)))
    steps = np.abs(got - expected).max() / scale
    assert steps <= 2.5 or snr_db(expected, got) > LEAST_DB.get(kind, 25), (steps, snr_db(expected, got))


@pytest.mark.representatives(8)
@pytest.mark.parametrize("kind", [name for name in graphs.TFLITE_KIND_NAMES if lowerings.get(name).int8])
@settings(max_examples=examples(2), suppress_health_check=CHECKS)
@given(data=st.data())
def test_only_the_last_operator_of_an_int8_form_writes_float(tmp_path, kind, data):
    graph, weights, x = data.draw(graphs.graphs(kind))
    written = codes(rounded_source(graph, weights, x, tmp_path)[0])
    if len(graph.by_name["y"].inputs) > 2 and kind == "add":
        return  # partial results of a sum have no scales
    if graph.by_name["y"].kind == "avg_pool" and any(code == "MUL" for code, _ in written):
        return  # a mean whose windows overhang unlike TFLite's windows is computed in float
    assert written[-1] == ("DEQUANTIZE", "float32")
    assert all(dtype == "int8" for _, dtype in written[:-1])


def test_leading_activation_is_kept_as_the_scale_of_an_identity(tmp_path):
    """The quantiser replaces an activation by an identity whose scale begins at zero."""
    graph = chain(Op("first", "identity", ("x",)), Op("y", "conv", ("first",), CONV))
    weights, x = drawn(graph)
    source, _ = rounded_source(graph, weights, x, tmp_path)
    largest = float(np.abs(x).max())
    source.scales |= {"x": Quant(2 * largest / 255, 0), "first": Quant(largest / 255, -128)}
    positive, _ = rounded_source(graph, weights, np.maximum(x, 0), tmp_path)
    expected = run(positive, tmp_path, np.maximum(x, 0))
    source.scales["y"] = positive.scales["y"]
    # an identity leaves no node in ONNX, so it is put back
    assert snr_db(expected, run(replace(source, graph=graph), tmp_path, x)) > 25


def test_convolution_with_a_tiny_output_scale_is_computed_in_float(tmp_path):
    """In integers the result would be millions of times larger than the products, which crashes LiteRT."""
    graph = chain(Op("y", "conv", ("x",), CONV))
    weights, x = drawn(graph)
    source, values = rounded_source(graph, weights, x, tmp_path)
    source.scales["y"] = Quant(2.0**-20, 0)
    assert codes(source) == [("CONV_2D", "float32")]
    assert np.allclose(run(source, tmp_path, x), values["y"], atol=1e-4)


def chain(*ops, shape=(1, 6, 5, 5)):
    return OpGraph.build("chain", [Op("x", "input", attrs={"shape": shape}), *ops], ops[-1].name)


def drawn(graph):
    """Weights and input of a chain."""
    random = np.random.default_rng(1).standard_normal((1, 6, 5, 5))
    return graphs.weights_of(graph, np.random.default_rng(0)), random.astype(np.float32)


def source_of(graph):
    return SubgraphSource(graph, drawn(graph)[0])


CONV = {"kernel": (1, 1), "stride": (1, 1), "padding": (0,) * 4, "dilation": (1, 1), "groups": 1, "out_channels": 3, "bias": True}


@pytest.mark.parametrize(
    ("more", "written"),
    [([Op("y", "relu6", ("c",))], ["CONV_2D"]), ([Op("r", "relu", ("c",)), Op("y", "add", ("c", "r"))], ["CONV_2D", "RELU", "ADD"])],
)
def test_activation_is_fused_into_a_convolution_without_other_readers(more, written):
    assert [code for code, _ in codes(source_of(chain(Op("c", "conv", ("x",), CONV), *more)))] == written


def test_subgraph_that_only_passes_on_its_input_copies_it(tmp_path):
    graph = chain(Op("y", "identity", ("x",)))
    weights, x = drawn(graph)
    assert np.array_equal(run(SubgraphSource(graph, weights), tmp_path, x), x)


def opaque_node(kind, reads, writes, attrs, counts, **options):
    """A node that states an operator of torch; `counts` are taps, pixels, groups and channels (input and output)."""
    taps, pixels, groups, channels = counts
    stated = {"in_channels": channels, "out_channels": channels, "groups": groups, "taps": taps, "pixels": pixels, "weights": 0}
    return stating("opaque", helper.make_node(kind, [reads], [writes], **options), attrs | stated)


def test_cast_to_integers_is_an_operator_and_cast_of_precision_is_not(tmp_path):
    read = {"dtype": "float32", "shape": [1, 6], "learned": False}
    casts = [({"read": 0}, "int32"), ({"call": 0, "result": 0}, "float32")]
    converted = [{"operator": "_to_copy.default", "arguments": [a], "options": {"dtype": {"dtype": d}}, "result": 0} for a, d in casts]
    calls = json.dumps({"reads": [read], "constants": [], "calls": converted})
    attrs = {"shape": (1, 6), "kernel": "elementwise", "variant": "cast", "calls": calls}
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT32),
        opaque_node("Cast", "i", "t", attrs, (1, 1, 6, 1), to=TensorProto.FLOAT),
        helper.make_node("Cast", ["t"], ["h"], to=TensorProto.FLOAT16),
        stating("relu", helper.make_node("Relu", ["h"], ["r"])),
        helper.make_node("Cast", ["r"], ["y"], to=TensorProto.FLOAT),
    ]
    onnx.save(onnx_model(nodes, {"x": (1, 6)}, {"y": (1, 6)}), tmp_path / "m.onnx")
    assert [op.kind for op in read_source(tmp_path / "m.onnx").graph.ops] == ["input", "opaque", "relu"]


def test_opaque_pooling_operator_has_no_lowering(tmp_path):
    attrs = {"shape": (1, 2, 1, 1), "kernel": "pool", "variant": "max", "calls": "{}"}
    node = opaque_node("MaxPool", "x", "y", attrs, (4, 4, 1, 2), kernel_shape=[2, 2])
    onnx.save(onnx_model([node], {"x": (1, 2, 2, 2)}, {"y": (1, 2, 1, 1)}), tmp_path / "m.onnx")
    with pytest.raises(StretchError, match="has no TFLite lowering"):
        check_lowerings({"s": read_source(tmp_path / "m.onnx")})


def test_half_precision_weights_take_half_the_bytes_and_are_widened_when_read(tmp_path):
    graph = chain(Op("y", "conv", ("x",), CONV | {"out_channels": 64}))
    weights, x = drawn(graph)
    graphs.save_both(graph, weights, tmp_path, half=True)
    expected = graphs.run(ReferenceDelegate(), tmp_path / "op.onnx", graph, x)
    got = graphs.run(LiteRtDelegate(), tmp_path / "op.tflite", graph, x)
    assert 1e-5 < np.abs(got - expected).max() / np.abs(expected).max() < 2e-3
    source = source_of(graph)
    assert len(graphs.tflite_bytes(graph, source, half=True)) < len(graphs.tflite_bytes(graph, source)) - 64 * 6


@pytest.mark.parametrize(("kind", "code", "channels"), [("concat", ["CONCATENATION"], 6), ("sum", ["ADD", "ADD"], 2)])
def test_join_of_three_branches(kind, code, channels):
    writer, shape = Writer("m"), (1, 4, 4, channels)
    join_to_tflite(writer, "j", kind, dict.fromkeys("abc", (1, 4, 4, 2)), ("y", shape))
    model = TFLITE.decode(writer.finish())
    names = {spec.number: name for name, spec in OPERATORS.items()}
    (graph,) = model["subgraphs"]
    assert [names[model["operator_codes"][op["opcode_index"]]["builtin_code"]] for op in graph["operators"]] == code
    assert [end["name"] for end in model["signature_defs"][0]["inputs"]] == ["a", "b", "c"]
    assert graph["tensors"][graph["outputs"][0]]["shape"].tolist() == list(shape)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    net = Net(1, 3, 6, 6)
    first = net.conv(4, 3)
    net.add("silu")
    net.add("add", net.add("conv", **convolution("", "", 4, 3).attrs), first)
    net.head(3)
    graph, random = net.graph("net"), np.random.default_rng(0)
    model = to_onnx(graph, graphs.weights_of(graph, random))
    save_onnx(model, folder / "float.onnx")
    int8 = quantise(model, [random.normal(size=(1, 3, 6, 6)).astype(np.float32) for _ in range(8)])
    save_onnx(int8, folder / "int8.onnx")
    return folder


def test_batch_norms_are_folded_into_float_weights(files):
    source = read_source(files / "float.onnx")
    assert [op.kind for op in source.graph.ops] == ["input", "conv", "relu", "silu", "conv", "add", "global_avg_pool", "linear"]
    assert (source.weights["batch_norm_2"].keys(), source.scales) == ({"weight", "bias"}, {})


def test_scales_and_weights_are_read_from_the_file_with_integers_from_minus_128(files):
    source = read_source(files / "int8.onnx")
    model = onnx.load(files / "int8.onnx")
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    in_file = {(float(constants[n.input[1]]), int(constants[n.input[2]]) - 128) for n in model.graph.node if n.op_type == "QuantizeLinear"}
    assert {(quant.scale, quant.zero_point) for quant in source.scales.values()} == in_file
    # the input and every operator's result are rounded, under the names of the operators
    names = {op.name for op in source.graph.ops}
    assert names <= source.scales.keys()
    assert source.scales.keys() - names == {"silu_4.sigmoid", "global_avg_pool_7.pooled"}  # inside operators of two nodes
    # float weights are the integers times their scales
    assert source.integers.keys() == {op.name for op in source.graph.ops if op.kind in ("conv", "linear")}
    for name, rounded in source.integers.items():
        assert rounded.values.dtype == np.int8
        scales = np.broadcast_to(rounded.scales, (len(rounded.values),)).reshape(-1, *[1] * (rounded.values.ndim - 1))
        assert np.allclose(source.weights[name]["weight"], rounded.values * scales, rtol=1e-6)


def test_integers_of_16_bits_are_refused(files, tmp_path):
    model = onnx.load(files / "int8.onnx")
    node = next(n for n in model.graph.node if n.op_type == "QuantizeLinear")
    zero = next(t for t in model.graph.initializer if t.name == node.input[2])
    zero.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(zero).astype(np.uint16), zero.name))
    onnx.save(model, tmp_path / "m.onnx")
    with pytest.raises(StretchError, match="rounds to uint16"):
        read_source(tmp_path / "m.onnx")


IMAGES = synthetic_images((1, 3, 8, 8), 16)


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    return load_bundle(two_branches(tmp_path_factory.mktemp("floats") / "bundle", processors=("cpu", "dsp")))


@pytest.fixture(scope="module")
def lowered(floats, tmp_path_factory):
    """The bundle with int8 on the dsp and fp16 on the cpu, and a TFLite file."""
    out = tmp_path_factory.mktemp("made") / "bundle"
    export_tflite(floats, out, IMAGES, "synthetic", precision={"dsp": "int8", "cpu": "fp16"})
    return load_bundle(out, check_hashes=True)


def test_precisions_of_the_bundle_and_the_tflite_file_are_equal(lowered):
    file = load_tflite(lowered.file(FILE))
    assert {s.name: s.precision for s in file.plan.subgraphs} == {s.name: s.precision for s in lowered.manifest.subgraphs}
    assert [code for _, code in file.operators("s1.dsp")] == ["QUANTIZE", "CONV_2D", "DEQUANTIZE"]
    assert [code for _, code in file.operators("s1.cpu")] == ["DEQUANTIZE", "CONV_2D"]


def not_requantised(content, name, factor):
    """The file, but int8 branch `name` passes its integers without re-quantisation to a reader with another scale."""
    model = TFLITE.decode(content)
    graph = next(item for item in model["subgraphs"] if item["name"] == name)
    *_, last = graph["operators"]  # converts the integers to float
    source = graph["tensors"][last["inputs"][0]]
    scale = {**source["quantization"], "scale": source["quantization"]["scale"] * np.float32(factor)}
    shape = source["shape"].astype(np.int32)
    model["buffers"].append({"data": np.frombuffer(shape.tobytes(), np.uint8)})
    sizes = {"name": "sizes", "shape": [len(shape)], "type": TYPES["int32"], "buffer": len(model["buffers"]) - 1}
    graph["tensors"] += [sizes, {**source, "quantization": scale}]
    kind = OPERATORS["RESHAPE"]
    model["operator_codes"].append({"deprecated_builtin_code": kind.number, "version": 1, "builtin_code": kind.number})
    passed_on = {
        "opcode_index": len(model["operator_codes"]) - 1,
        "inputs": [last["inputs"][0], len(graph["tensors"]) - 2],
        "outputs": [len(graph["tensors"]) - 1],
        "builtin_options_type": OPTIONS[kind.options],
        "builtin_options": {"new_shape": shape},
    }
    last["inputs"] = [len(graph["tensors"]) - 1]
    graph["operators"] = [*graph["operators"][:-1], passed_on, last]
    return bytes(TFLITE.encode(model))


def test_int8_branch_joins_the_others_in_float(lowered, floats):
    """Parallel branches have different scales and precisions, so each must be converted from its own integers."""
    x = random_input(lowered)
    expected = replay(floats.manifest, {s.name: runner(str(floats.file(s.file))) for s in floats.manifest.subgraphs}, x)
    joins = {join.output for join in lowered.manifest.joins}
    with Session(lowered, {"cpu": "litert", "dsp": "litert"}) as session:
        got = session.tensors(x)
        assert joins == {"t1", "t2"}
        assert max(float(np.linalg.norm(got[name] - expected[name]) / np.linalg.norm(expected[name])) for name in joins) < 0.02


@pytest.mark.representatives(1)
@pytest.mark.parametrize("step", ["s1.dsp", "s2.dsp"])
def test_branch_without_requantisation_before_its_join_is_refused(floats, tmp_path, monkeypatch, step):
    """The cosine of this branch is 1, because its direction is right but its size is wrong."""
    write = module.write_tflite
    monkeypatch.setattr(module, "write_tflite", lambda bundle, **options: not_requantised(write(bundle, **options), step, 1.3))
    with pytest.raises(InfeasibleError, match=f"signature `{step}` of the TFLite file has a cosine of 1.0") as error:
        export_tflite(floats, tmp_path / "out", IMAGES, "synthetic", precision={"dsp": "int8"})
    assert error.value.exit_code == 4
    assert not (tmp_path / "out").exists()


def test_all_kinds_without_a_lowering_are_named_with_a_subgraph_and_nothing_is_written(floats, tmp_path, monkeypatch):
    for kind in ("flatten", "linear"):
        monkeypatch.setitem(lowerings._items, kind, replace(lowerings.get(kind), tflite=None))
    with pytest.raises(StretchError, match=r"`head\.f` \(flatten\) of subgraph `head`, `\S+` \(linear\) of subgraph `head` have no TFLite"):
        export_tflite(floats, tmp_path / "out", IMAGES, "synthetic")
    assert not list(tmp_path.iterdir())


def test_missing_runtime_is_reported_before_anything_is_written(floats, tmp_path, monkeypatch):
    monkeypatch.setattr(LiteRtDelegate, "unavailable", classmethod(lambda cls: "ai_edge_litert is not installed"))
    with pytest.raises(MissingBackendError, match="ai_edge_litert is not installed"):
        export_tflite(floats, tmp_path / "out", IMAGES, "synthetic")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "join", "precision", "least"),
    [("tiny_resnet", "project", None, 0.999999), ("tiny_regnet", "concat", {"dsp": "int8", "cpu": "fp16"}, 0.999)],
)
def test_signatures_run_concurrently_and_equal_torch(captured, tmp_path, name, join, precision, least):
    import torch

    from stretch.export.bundle import BundleFacts, export_bundle
    from stretch.transform import build
    from tests.stretch.designs import cpu_and

    result = captured(name)
    model = build(result, cpu_and("dsp", result.graph, join))
    export_bundle(tmp_path / "b", result, model, None, BundleFacts("mi9", False, "random", controls=False))
    shape = result.graph.input.shape
    export_tflite(load_bundle(tmp_path / "b"), tmp_path / "t", synthetic_images(shape, 16), "synthetic", precision=precision)
    bundle = load_bundle(tmp_path / "t", check_hashes=True)
    x = synthetic_images(shape, 1, seed=7)[0]
    with Session(bundle, {"cpu": "litert", "dsp": "litert"}) as session, torch.inference_mode():
        tensors = session.tensors(x)
        assert {span.queue for span in session.trace.spans if span.kind == "subgraph"} == {"litert:cpu", "litert:dsp"}
        for sub in bundle.manifest.subgraphs:
            expected = model.branch(sub.segment, sub.processor)(torch.from_numpy(tensors[sub.input])).numpy()
            assert loss([(expected, tensors[sub.output])]).cosine >= least, sub.name
        assert loss([(model(torch.from_numpy(x)).numpy(), tensors[bundle.manifest.output])]).cosine >= 0.99


@pytest.mark.torch
def test_subgraph_that_is_only_an_identity_is_compared_with_the_tensor_it_passes_on(tmp_path):
    import torch
    from torch import nn

    import stretch

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.shortcut = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 8, 1)), nn.Identity()

        def forward(self, x):
            return self.layers(x) + self.shortcut(x)

    module = nn.Sequential(nn.Conv2d(3, 8, 1), Block(), nn.Conv2d(8, 4, 1)).eval()
    stretch.branch(module, "pixel6", input_shape=(3, 16, 16), kinds=("graph",), out=tmp_path / "b")
    export_tflite(load_bundle(tmp_path / "b"), tmp_path / "t", synthetic_images((1, 3, 16, 16), 8), "synthetic")
    x = synthetic_images((1, 3, 16, 16), 1, seed=7)[0]
    with Session(tmp_path / "t", {"cpu": "litert", "gpu": "litert"}) as session, torch.inference_mode():
        tensors = session.tensors(x)
        np.testing.assert_allclose(tensors["s1_on_gpu_1_shortcut"], module[0](torch.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(session.run(x), module(torch.from_numpy(x)).numpy(), rtol=1e-4, atol=1e-5)


EXACT, APART, LOSSY, NEARER = Loss(1.0, 200.0), Loss(0.98, 13.8), Loss(0.979, 13.6), Loss(0.99, 13.6 + MARGIN_DB + 0.1)
#: A wrong scale does not change the cosine.
WRONG = loss([(np.ones(4, np.float32), np.full(4, 1.2, np.float32))])


@pytest.mark.parametrize(
    ("least", "now", "fp32", "onnx_fp32", "refused"),
    [
        *((least, WRONG, WRONG, EXACT, True) for least in (MIN_COSINE, MIN_COSINE_ROUNDED)),
        # if both round strongly, an equal distance to fp32 is enough
        (MIN_COSINE_ROUNDED, APART, LOSSY, Loss(0.98, 13.4), False),
        (MIN_COSINE_ROUNDED, APART, LOSSY, NEARER, True),
        # this exception does not apply to float
        (MIN_COSINE, APART, LOSSY, LOSSY, True),
    ],
)
def test_signature_below_its_bound_is_refused_by_name(least, now, fp32, onnx_fp32, refused):
    assert WRONG.cosine == pytest.approx(1)
    losses = ({"a": EXACT, "b": value} for value in (now, fp32, onnx_fp32))
    with pytest.raises(InfeasibleError, match="signature `b`") if refused else contextlib.nullcontext():
        SignatureLosses(*losses, {"a": MIN_COSINE, "b": least}, "runtime").refuse()
