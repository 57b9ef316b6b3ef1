import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from stretch.quantize.layers import layer_losses
from stretch.quantize.qdq import quantise

SAMPLES = [np.random.default_rng(i).normal(size=(1, 3, 8, 8)).astype(np.float32) for i in range(8)]


@pytest.fixture(scope="module")
def model(floats):
    """The whole float network: three processors' convolutions, two joins and a head."""
    return onnx.load(floats / "model.onnx")


@pytest.fixture(scope="module")
def int8(model):
    return quantise(model, SAMPLES)


def test_spoilt_weights_show_first_in_their_own_layer(model, int8):
    spoilt = onnx.ModelProto()
    spoilt.CopyFrom(int8)
    tensor = next(
        t for t in spoilt.graph.initializer if t.name.startswith("s1.dsp.w") and t.data_type == onnx.TensorProto.INT8 and len(t.dims) == 4
    )
    tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor)[:, ::-1].copy(), tensor.name))
    losses = layer_losses(model, spoilt, SAMPLES[:2])
    assert losses["t0"].cosine > 0.99
    assert losses["s1.cpu.y"].cosine > 0.99
    assert losses["s1.dsp.y"].cosine < 0.9
