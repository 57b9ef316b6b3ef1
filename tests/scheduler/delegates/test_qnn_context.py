import hashlib

import numpy as np
import onnx
import pytest

from predictors.errors import StretchError
from scheduler.delegates.qnn_context import compile_context, open_context
from tests import onnx_runtime
from tests.scheduler.delegates import qdq

X = np.random.default_rng(1).uniform(-3, 3, (1, 3, 6, 6)).astype(np.float32)


def code(file):
    (node,) = onnx.load(file).graph.node
    assert node.op_type == "EPContext"
    return hashlib.sha256(next(a.s for a in node.attribute if a.name == "ep_cache_context")).hexdigest()


@pytest.mark.slow
@pytest.mark.qnn
def test_code_for_a_chip_computes_what_the_subgraph_does_and_is_the_same_every_time(tmp_path):

    qdq.save_conv(tmp_path / "m.onnx")
    expected = onnx_runtime.output(tmp_path / "m.onnx", X)
    for name in ("a", "b"):
        got = compile_context(tmp_path / "m.onnx", "sm8550", tmp_path / f"{name}.onnx", X)
        assert np.abs(got - expected).max() <= qdq.Y_SCALE * 1.001
    assert code(tmp_path / "a.onnx") == code(tmp_path / "b.onnx")
    session = open_context(tmp_path / "a.onnx", "sm8550")
    assert np.array_equal(session.run(None, {"x": X})[0], got)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.onnx", "b.onnx", "m.onnx"]


@pytest.mark.qnn
def test_what_cannot_be_compiled_is_one_sentence_with_the_file(tmp_path):
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(StretchError, match=r"QNN cannot compile m.onnx for sm8350") as error:
        compile_context(tmp_path / "m.onnx", "sm8350", tmp_path / "out.onnx", X)
    assert "\n" not in error.value.message
    assert [p.name for p in tmp_path.iterdir()] == ["m.onnx"]
