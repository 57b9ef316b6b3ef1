import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from predictors.errors import StretchError
from scheduler.formats.int8_edges import edges
from stretch.quantize.compare import loss
from stretch.quantize.qdq import quantise
from stretch.quantize.replay import runner

SHAPE = (1, 6, 8, 8)


def samples(count=12, seed=0, scale=1.0):
    random = np.random.default_rng(seed)
    return [(np.maximum(random.normal(size=SHAPE), 0) * scale).astype(np.float32) for _ in range(count)]


@pytest.fixture(scope="module")
def model(floats):
    """A 3×3 convolution and a ReLU, float."""
    return onnx.load(floats / "s1.dsp.onnx")


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
    (read,), (written,) = (own.values() for own in edges(int8))
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


def test_scale_follows_the_samples(model):
    small, large = (next(iter(edges(quantise(model, samples(scale=scale)))[0].values())).scale for scale in (1.0, 10.0))
    assert large == pytest.approx(10 * small, rel=1e-3)


def test_model_that_cannot_be_computed_is_one_sentence(model):
    broken = onnx.ModelProto()
    broken.CopyFrom(model)
    broken.graph.node[0].input[0] = "nowhere"
    with pytest.raises(StretchError, match="cannot be quantised") as error:
        quantise(broken, samples())
    assert "\n" not in error.value.message
