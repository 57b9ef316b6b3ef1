import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from predictors.errors import StretchError
from scheduler.formats.int8_edges import edges
from stretch.export.quantize.qdq import fold_batch_norms, layer_losses, quantise, to_half
from stretch.export.quantize.replay import loss, runner
from tests import onnx_runtime
from tests.scheduler.bundles import onnx_model, two_branches

SHAPE = (1, 6, 8, 8)


def samples(count=12, seed=0, scale=1.0):
    random = np.random.default_rng(seed)
    return [(np.maximum(random.normal(size=SHAPE), 0) * scale).astype(np.float32) for _ in range(count)]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A 3×3 convolution and a ReLU, float."""
    return onnx.load(two_branches(tmp_path_factory.mktemp("floats") / "bundle", processors=("cpu", "dsp", "gpu")) / "s1.dsp.onnx")


@pytest.fixture(scope="module")
def int8(model):
    return quantise(model, samples())


def test_result_keeps_a_cosine_of_at_least_0_999_on_images_it_was_not_calibrated_with(model, int8):
    fresh = samples(8, seed=5)
    expected, got = runner(model), runner(int8)
    assert loss((expected(x), got(x)) for x in fresh).cosine >= 0.999


def test_edges_stay_float_and_their_scales_span_what_was_seen(model, int8):
    assert int8.graph.input[0].type.tensor_type.elem_type == int8.graph.output[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT
    run = runner(model)
    (read,), (written,) = (edge.values() for edge in edges(int8))
    for edge, seen in ((read, samples()), (written, [run(x) for x in samples()])):
        low, high = min(0, *(float(x.min()) for x in seen)), max(float(x.max()) for x in seen)
        assert edge.scale == pytest.approx((high - low) / 255, rel=0.02)
        assert edge.zero_point == pytest.approx(-low / edge.scale, abs=1)


def test_weights_are_int8_with_a_scale_for_each_output_channel(int8):
    constants = {t.name: numpy_helper.to_array(t) for t in int8.graph.initializer}
    reals = {node.output[0]: node for node in int8.graph.node if node.op_type == "DequantizeLinear"}
    (conv,) = [node for node in int8.graph.node if node.op_type == "Conv"]
    weight = reals[conv.input[1]]
    assert constants[weight.input[0]].dtype == np.int8
    assert constants[weight.input[1]].shape == (constants[weight.input[0]].shape[0],)
    assert (constants[weight.input[2]] == 0).all()


@pytest.mark.parametrize(
    ("spoil", "use", "sentence"),
    [
        (lambda graph: graph.node[0].input.__setitem__(0, "nowhere"), lambda model: quantise(model, samples()), "cannot be quantised"),
        (lambda graph: graph.output.append(onnx.ValueInfoProto(name="nowhere")), runner, "^ONNX Runtime cannot load `.+`: "),
    ],
)
def test_model_that_cannot_be_computed_or_loaded_is_one_sentence(model, spoil, use, sentence):
    broken = onnx.ModelProto()
    broken.CopyFrom(model)
    spoil(broken.graph)
    with pytest.raises(StretchError, match=sentence) as error:
        use(broken)
    assert "\n" not in error.value.message


class Net:
    """Nodes and weights of a small network, input x."""

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.nodes, self.weights = [], {}

    def weight(self, name, value):
        self.weights[name] = np.asarray(value, np.float32)
        return name

    def conv(self, read, write, out, channels, kernel=3, group=1, bias=True):
        reads = [read, self.weight(f"{write}.w", self.random.normal(size=(out, channels // group, kernel, kernel)))]
        reads += [self.weight(f"{write}.b", self.random.normal(size=out))] if bias else []
        self.nodes.append(helper.make_node("Conv", reads, [write], name=f"{write}/conv", group=group, pads=[kernel // 2] * 4))

    def norm(self, read, write, channels, epsilon=1e-3):
        values = {"scale": self.random.normal(size=channels), "shift": self.random.normal(size=channels)}
        values |= {"mean": self.random.normal(size=channels), "var": self.random.uniform(0.2, 3, channels)}
        names = [self.weight(f"{write}.{key}", value) for key, value in values.items()]
        self.nodes.append(helper.make_node("BatchNormalization", [read, *names], [write], name=f"{write}/bn", epsilon=epsilon))

    def model(self, shape, output, out_shape):
        return onnx_model(self.nodes, {"x": shape}, {output: out_shape}, self.weights)


def compute(model, x):
    return onnx_runtime.output(model.SerializeToString(), x)


def folded(net, shape, out_shape):
    """Kinds of the nodes that are left of a network with its norms folded, which computes the same."""
    model = net.model(list(shape), "y", out_shape)
    result = fold_batch_norms(model)
    onnx.checker.check_model(result)
    x = np.random.default_rng(9).normal(size=shape).astype(np.float32)
    expected = compute(model, x)
    np.testing.assert_allclose(compute(result, x), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    return [node.op_type for node in result.graph.node]


@given(st.integers(0, 1000), st.sampled_from([1, 2, 4]), st.booleans(), st.sampled_from([1, 3]))
def test_folded_convolution_computes_the_same(seed, group, bias, kernel):
    net = Net(seed)
    net.conv("x", "a", 8, 4, kernel, group, bias)
    net.norm("a", "y", 8)
    assert folded(net, (1, 4, 5, 5), [1, 8, 5, 5]) == ["Conv"]


def test_convolution_that_others_read_too_keeps_its_value():
    net = Net()
    net.conv("x", "a", 4, 4)
    net.norm("a", "b", 4)
    net.nodes.append(helper.make_node("Add", ["a", "b"], ["y"], name="add"))
    assert folded(net, (1, 4, 5, 5), [1, 4, 5, 5]) == ["Conv", "Conv", "Add"]


@pytest.mark.parametrize("bias", [True, False])
def test_norm_after_a_matrix_goes_into_it(bias):
    net = Net()
    reads = ["x", net.weight("w", net.random.normal(size=(5, 7)))] + ([net.weight("b", net.random.normal(size=5))] if bias else [])
    net.nodes.append(helper.make_node("Gemm", reads, ["a"], name="fc", transB=1))
    net.norm("a", "y", 5)
    assert folded(net, (2, 7), [2, 5]) == ["Gemm"]


X = np.random.default_rng(0).standard_normal((1, 3, 6, 6)).astype(np.float32)


def network(scale=1.0):
    """Convolution, batch norm with a tiny variance, ReLU6, resize, padding."""
    rng = np.random.default_rng(1)
    weights = {
        "w": rng.normal(0, 0.3 * scale, (4, 3, 3, 3)).astype(np.float32),
        "g": np.ones(4, np.float32),
        "b": np.zeros(4, np.float32),
        "m": rng.normal(size=4).astype(np.float32),
        "v": np.full(4, 1e-9, np.float32),
        "lo": np.float32(0),
        "hi": np.float32(6),
        "s": np.array([1, 1, 2, 2], np.float32),
        "p": np.array([0, 0, 1, 1, 0, 0, 1, 1], np.int64),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "g", "b", "m", "v"], ["n"], name="norm", epsilon=1e-3),
        helper.make_node("Clip", ["n", "lo", "hi"], ["r"], name="relu6"),
        helper.make_node("Resize", ["r", "", "s"], ["u"], name="up", mode="nearest"),
        helper.make_node("Pad", ["u", "p"], ["y"], name="pad"),
    ]
    return onnx_model(nodes, {"x": X.shape}, {"y": (1, 4, 14, 14)}, weights)


@pytest.mark.parametrize("kind", ["Relu", "Identity"])
def test_output_that_an_operator_reads_too_survives_what_the_runtime_merges(kind):
    net = Net()
    net.conv("x", "a", 6, 6)
    net.nodes.append(helper.make_node(kind, ["a"], ["b"], name="b"))
    net.conv("b", "c", 6, 6)
    model = onnx_model(net.nodes, {"x": SHAPE}, {"a": SHAPE, "c": SHAPE}, net.weights)
    int8 = quantise(model, samples())
    assert not {value.name for value in int8.graph.output} & {name for node in int8.graph.node for name in node.input}
    assert [written.shape for written in runner(int8)(samples(1)[0])] == [SHAPE, SHAPE]
    assert set(edges(int8)[1]) == {"a", "c"}


def test_loss_is_measured_of_each_layer_that_only_hands_on_its_input():
    net = Net()
    net.conv("x", "a", 6, 6)
    net.nodes.append(helper.make_node("Identity", ["a"], ["b"], name="b"))
    model = net.model(SHAPE, "b", SHAPE)
    layers = layer_losses(model, quantise(model, samples()), samples(2))
    assert set(layers) == {"a", "b"}
    assert not any(lost.exceeds(0.999) for lost in layers.values())


def test_half_precision_agrees_with_float_within_its_rounding_and_a_weight_beyond_its_range_is_named():
    expected, got = compute(network(), X), compute(to_half(network()), X)
    assert got.dtype == np.float32
    assert 0 < np.abs(got - expected).max() < 5e-3 * np.abs(expected).max()
    with pytest.raises(StretchError, match=r"`.*` has values beyond 65504"):
        to_half(network(scale=1e6))


A = np.random.default_rng(0).normal(size=(1, 8, 4, 4)).astype(np.float32)


def test_cosine_and_snr_are_those_of_all_pairs_as_one_vector():
    b = A + 0.1
    got = loss([(A[:, :3], b[:, :3]), (A[:, 3:], b[:, 3:])])
    x, y = A.ravel().astype(float), b.ravel().astype(float)
    assert got.cosine == pytest.approx(x @ y / np.linalg.norm(x) / np.linalg.norm(y))
    assert got.snr_db == pytest.approx(20 * np.log10(np.linalg.norm(x) / np.linalg.norm(x - y)))


@pytest.mark.parametrize("bad", [np.full_like(A, np.nan), np.full_like(A, np.inf), np.zeros_like(A)])
def test_results_without_a_number_or_without_content_exceed_any_bound(bad):
    assert loss([(A, bad)]).exceeds(0.1)
