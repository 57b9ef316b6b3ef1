"""Files on runtimes give what numpy and ONNX Runtime's plain session give."""

import numpy as np
import onnxruntime
import pytest

from scheduler.cores import available_cores
from scheduler.measure.bench.files import open_subject
from scheduler.measure.bench.runtimes import RUNTIMES, SCHEDULER, expected_of, prepare, unavailable
from tests.scheduler.measure.bench.nets import conv_onnx, linear_tflite

CORES = available_cores()


def needs(runtime):
    if unavailable(runtime) is not None:
        pytest.skip(f"{runtime} is not installed")


@pytest.mark.parametrize("inputs", [1, 3])
@pytest.mark.parametrize("runtime", [name for name, (kind, _, _) in RUNTIMES.items() if kind == "onnx"])
def test_onnx_file_gives_what_a_plain_session_gives(tmp_path, runtime, inputs):
    needs(runtime)
    path = conv_onnx(tmp_path / "m.onnx", inputs=inputs)
    subject = open_subject(str(path), {}, 0, tmp_path)
    expected = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, dict(subject.inputs))[0]
    ready = prepare(subject, runtime, CORES)
    assert ready.time() > 0
    np.testing.assert_allclose(ready.outputs()["y"], expected, rtol=1e-4, atol=1e-4)
    ready.close()


@pytest.mark.parametrize("rows", [1, 4])
def test_tflite_file_gives_what_numpy_gives_also_of_another_batch(tmp_path, rows):
    needs("litert")
    path, linear = linear_tflite(tmp_path / "m.tflite", opened=True)
    subject = open_subject(str(path), {"x": (rows, 5)}, 0, tmp_path)
    ready = prepare(subject, "litert", CORES[:1])
    assert ready.time() > 0
    (output,) = ready.outputs().values()
    np.testing.assert_allclose(output, linear(subject.inputs["x"]), rtol=1e-5, atol=1e-5)


@pytest.mark.torch
def test_bundle_gives_what_its_whole_model_gives(tmp_path, tiny_bundle):
    subject = open_subject(str(tiny_bundle), {}, 0, tmp_path)
    ready = prepare(subject, SCHEDULER, CORES)
    assert ready.time() > 0
    expected = expected_of(subject, CORES)
    got = ready.outputs()
    ready.close()
    assert got.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-3, atol=1e-4)
