import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper

from predictors.errors import StretchError
from predictors.graph import OpGraph
from scheduler.formats.int8_edges import edges
from stretch.export.onnx import to_onnx
from stretch.export.quantize.qdq import fold_batch_norms, layer_losses, quantise, to_half
from stretch.export.quantize.replay import feed_dict, loss, runner
from tests import onnx_runtime
from tests.predictors.networks import Net, convolution
from tests.scheduler.bundles import two_branches
from tests.scheduler.delegates import graphs

SHAPE = (1, 6, 8, 8)


def samples(count=12, seed=0, scale=1.0):
    random = np.random.default_rng(seed)
    return [(np.maximum(random.normal(size=SHAPE), 0) * scale).astype(np.float32) for _ in range(count)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A 3×3 convolution and a ReLU in fp32."""
    return onnx.load(two_branches(tmp_path_factory.mktemp("floats") / "bundle", processors=("cpu", "dsp", "gpu")) / "s1.dsp.onnx")


@pytest.fixture(scope="module")
def int8(model):
    return quantise(model, samples())


def test_int8_model_keeps_a_cosine_of_at_least_0_999_on_new_images(model, int8):
    new_images = samples(8, seed=5)
    expected, got = runner(model), runner(int8)
    assert loss((expected(x), got(x)) for x in new_images).cosine >= 0.999


def test_edges_stay_float_and_their_scales_span_the_calibration_values(model, int8):
    assert int8.graph.input[0].type.tensor_type.elem_type == int8.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    run = runner(model)
    (read,), (written,) = (edge.values() for edge in edges(int8))
    for edge, values in ((read, samples()), (written, [run(x) for x in samples()])):
        low, high = min(0, *(float(x.min()) for x in values)), max(float(x.max()) for x in values)
        assert edge.scale == pytest.approx((high - low) / 255, rel=0.02)
        assert edge.zero_point == pytest.approx(-low / edge.scale, abs=1)


def test_weights_are_int8_with_one_scale_per_output_channel(int8):
    constants = {t.name: numpy_helper.to_array(t) for t in int8.graph.initializer}
    reals = {node.output[0]: node for node in int8.graph.node if node.op_type == "DequantizeLinear"}
    (conv,) = [node for node in int8.graph.node if node.op_type == "Conv"]
    weight = reals[conv.input[1]]
    assert constants[weight.input[0]].dtype == np.int8
    assert constants[weight.input[1]].shape == (constants[weight.input[0]].shape[0],)
    assert (constants[weight.input[2]] == 0).all()


@pytest.mark.parametrize(
    ("damage", "use", "sentence"),
    [
        (lambda graph: graph.node[0].input.__setitem__(0, "nowhere"), lambda model: quantise(model, samples()), "cannot be quantised"),
        (lambda graph: graph.output.append(onnx.ValueInfoProto(name="nowhere")), runner, "^ONNX Runtime cannot load `.+`: "),
    ],
)
def test_model_that_cannot_be_computed_or_loaded_is_refused_in_one_sentence(model, damage, use, sentence):
    broken = onnx.ModelProto()
    broken.CopyFrom(model)
    damage(broken.graph)
    with pytest.raises(StretchError, match=sentence) as error:
        use(broken)
    assert "\n" not in error.value.message


def exported(net, output=None, seed=1):
    """The ONNX model of a network with random weights."""
    graph = OpGraph.build("net", net.ops, output or net.last)
    return to_onnx(graph, graphs.weights_of(graph, np.random.default_rng(seed)))


def compute(model, x):
    return onnx_runtime.output(model.SerializeToString(), x)


def folded(net, seed=1):
    """Node kinds of a network after folding its batch norms, which must not change its outputs."""
    model = exported(net, seed=seed)
    result = fold_batch_norms(model)
    onnx.checker.check_model(result)
    x = np.random.default_rng(9).normal(size=net.ops[0].attrs["shape"]).astype(np.float32)
    expected = compute(model, x)
    np.testing.assert_allclose(compute(result, x), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    return [node.op_type for node in result.graph.node]


def normed_convolution(channels, kernel=3, groups=1, bias=True):
    """A convolution of four input channels with a batch norm."""
    net = Net(1, 4, 5, 5)
    net.add("conv", **convolution("", "", channels, kernel, groups=groups, bias=bias).attrs)
    net.add("batch_norm", affine=True, eps=1e-3)
    return net


@given(st.integers(0, 1000), st.sampled_from([1, 2, 4]), st.booleans(), st.sampled_from([1, 3]))
def test_folded_convolution_computes_the_same(seed, groups, bias, kernel):
    assert folded(normed_convolution(8, kernel, groups, bias), seed) == ["Conv"]


def test_convolution_with_a_second_reader_keeps_its_value():
    net = normed_convolution(4)
    net.add("add", "conv_1", "batch_norm_2")
    assert folded(net) == ["Conv", "Conv", "Add"]


@pytest.mark.parametrize("bias", [True, False])
def test_batch_norm_after_a_linear_layer_is_folded(bias):
    net = Net(2, 7, 2, 2)
    net.add("global_avg_pool", keepdims=False)
    net.add("linear", out_features=5, bias=bias)
    net.add("batch_norm", affine=True, eps=1e-3)
    assert folded(net)[2:] == ["Gemm"]


X = np.random.default_rng(0).standard_normal((1, 3, 6, 6)).astype(np.float32)


def network(scale=1.0):
    """The ONNX model of a convolution, a batch norm with a tiny variance, ReLU6, upsampling and padding."""
    net = Net(*X.shape)
    net.conv(4, 3, act="relu6")
    net.add("upsample", scale=(2, 2))
    net.add("pad", padding=(1, 1, 1, 1))
    graph = net.graph("net")
    weights = graphs.weights_of(graph, np.random.default_rng(1))
    weights["conv_1"]["weight"] *= np.float32(0.3 * scale)
    weights["batch_norm_2"]["running_var"][:] = 1e-9
    return to_onnx(graph, weights)


def passing_on(kind):
    """A convolution of six channels and an operator that may only pass on its input."""
    net = Net(*SHAPE)
    net.add("conv", **convolution("", "", 6, 3, bias=True).attrs)
    net.add(kind)
    return net


@pytest.mark.parametrize("kind", ["Relu", "Identity"])
def test_output_with_a_reader_survives_the_fusion_of_the_runtime(kind):
    net = passing_on("relu")
    net.add("conv", **convolution("", "", 6, 3, bias=True).attrs)
    model = exported(net, ["conv_1", "conv_3"])
    model.graph.node[1].op_type = kind
    int8 = quantise(model, samples())
    assert not {value.name for value in int8.graph.output} & {name for node in int8.graph.node for name in node.input}
    assert [written.shape for written in runner(int8)(samples(1)[0])] == [SHAPE, SHAPE]
    assert set(edges(int8)[1]) == {"conv_1", "conv_3"}


def test_scale_of_a_near_zero_average_is_large_enough_for_the_runtime():
    net = Net(*SHAPE)
    net.add("conv", **convolution("", "", 6, 3, bias=True).attrs)
    net.add("global_avg_pool", keepdims=True)
    model = exported(net)
    int8 = quantise(model, samples(), {net.last: (np.float32(1e-9), np.uint8(128))})
    session = onnxruntime.InferenceSession(int8.SerializeToString(), providers=["CPUExecutionProvider"])
    assert session.run(None, feed_dict(int8, samples(1)[0]))[0].shape == (1, 6, 1, 1)


def test_loss_is_measured_also_for_layers_that_only_pass_on_their_input():
    model = exported(passing_on("identity"))
    layers = layer_losses(model, quantise(model, samples()), samples(2))
    assert set(layers) == {"conv_1", "identity_2"}
    assert not any(lost.exceeds(0.999) for lost in layers.values())


def test_half_precision_agrees_with_float_within_rounding_and_a_weight_out_of_range_is_named():
    expected, got = compute(network(), X), compute(to_half(network()), X)
    assert got.dtype == np.float32
    assert 0 < np.abs(got - expected).max() < 5e-3 * np.abs(expected).max()
    with pytest.raises(StretchError, match=r"`.*` has values beyond 65504"):
        to_half(network(scale=1e6))


A = np.random.default_rng(0).normal(size=(1, 8, 4, 4)).astype(np.float32)


def test_cosine_and_snr_treat_all_pairs_as_one_vector():
    b = A + 0.1
    got = loss([(A[:, :3], b[:, :3]), (A[:, 3:], b[:, 3:])])
    x, y = A.ravel().astype(float), b.ravel().astype(float)
    assert got.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    assert got.snr_db == pytest.approx(20 * np.log10(np.linalg.norm(x) / np.linalg.norm(x - y)))


@pytest.mark.parametrize("result", [np.full_like(A, np.nan), np.full_like(A, np.inf), np.zeros_like(A)])
def test_non_finite_and_all_zero_results_exceed_any_bound(result):
    assert loss([(A, result)]).exceeds(0.1)
