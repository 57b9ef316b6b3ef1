"""Files that others made, where there are any: the environment names a folder of them.

The wheels of rapidocr-onnxruntime (text detection, recognition, direction) and of mediapipe before 1.0 (hands, faces,
poses) hold such files; they are no dependencies, and nothing of them is kept here.
"""

import os
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

torch = pytest.importorskip("torch")
import stretch  # noqa: E402
from predictors.errors import UsageError  # noqa: E402
from scheduler.formats.tflite import open_tflite  # noqa: E402
from scheduler.runtime.session import Session  # noqa: E402
from stretch.network.models.load import load_model  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.slow]

#: The folder.
FOLDER = os.environ.get("NN_STRETCH_MODELS", "")

#: Sizes that are tried where a file leaves its own open; the first that the runtime takes is that of the test.
SIZES = [(1, 3, 48, 320), (1, 3, 64, 320), (1, 3, 224, 224)]

#: Largest difference, as a part of the largest output; networks of half precision add up many terms in another order.
CLOSE = 1e-3


def files(ending):
    return sorted(Path(FOLDER).rglob(f"*{ending}")) if FOLDER else []


def close(got, want):
    """Whether two outputs are equal up to rounding, that of sigmoids next to 0 included."""
    return np.abs(got - want).max() <= CLOSE * np.abs(want).max() + 1e-6


def taken(path, session):
    """A size that a file and its runtime take, and what the runtime gives for numbers of this size."""
    name = session.get_inputs()[0].name
    try:
        sizes = [load_model(str(path)).input_shape]
    except UsageError:
        sizes = SIZES
    for shape in sizes:
        x = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        try:
            return x, session.run(None, {name: x})[0]
        except Exception:
            continue
    return pytest.skip("the runtime takes none of the sizes that are tried")


@pytest.mark.skipif(not files(".onnx"), reason="NN_STRETCH_MODELS names no folder of .onnx files")
@pytest.mark.parametrize("path", files(".onnx"), ids=lambda path: path.stem)
def test_onnx_file_is_divided_exactly_and_its_bundle_gives_what_the_runtime_does(path, tmp_path):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    x, want = taken(path, onnxruntime.InferenceSession(str(path), options))
    with torch.no_grad():
        assert close(load_model(str(path), input_shape=x.shape).module(torch.from_numpy(x)).numpy(), want)
    config = stretch.PlanConfig(processors=("cpu", "gpu"), kinds=("rows", "channels", "graph"))
    result = stretch.branch(str(path), "mi9", input_shape=x.shape, config=config, out=tmp_path / "bundle")
    with Session(result.bundle) as session:
        assert close(np.asarray(session(x)), want)


@pytest.mark.skipif(not files(".tflite"), reason="NN_STRETCH_MODELS names no folder of .tflite files")
@pytest.mark.parametrize("path", files(".tflite"), ids=lambda path: path.stem)
def test_tflite_file_computes_what_the_runtime_does(path):
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    network = open_tflite(path)
    x = np.random.default_rng(0).normal(size=network.tensors[network.inputs[0]].shape).astype(np.float32)
    kernels = interpreter.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    runtime = interpreter.Interpreter(str(path), experimental_op_resolver_type=kernels)
    runtime.allocate_tensors()
    runtime.set_tensor(runtime.get_input_details()[0]["index"], x)
    runtime.invoke()
    with torch.no_grad():
        got = load_model(str(path)).module(torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2))))
    values = list(got.values()) if isinstance(got, dict) else [got]
    for output, value in zip(network.outputs, values, strict=True):
        want = runtime.get_tensor(output)
        assert close(value.numpy(), want if value.shape == want.shape else want.transpose(0, 3, 1, 2))
