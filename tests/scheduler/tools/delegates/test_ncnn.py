import os
import threading

import numpy as np
import onnx
import pytest
from onnx import helper

from predictors.errors import StretchError
from scheduler.delegates import get_delegate
from scheduler.delegates.base import UnableError
from scheduler.placement.mapping import place_processors
from scheduler.runtime.session import Session
from scheduler.tools.delegates.ncnn import NcnnDelegate, VulkanDelegate
from tests.scheduler.bundles import onnx_model
from tests.scheduler.doubles import Hooked, numbers

if problem := NcnnDelegate.unavailable():
    pytest.skip(problem, allow_module_level=True)

CORE = sorted(os.sched_getaffinity(0))[-1]
VULKAN = pytest.param("vulkan", marks=pytest.mark.skipif(bool(reason := VulkanDelegate.unavailable()), reason=reason or ""))
BOTH = pytest.mark.parametrize("name", ["ncnn", VULKAN])


CONV = {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [1, 1], "dilations": [1, 1], "group": 1}


def save(path, nodes, inputs, outputs, weights=()):
    onnx.save(onnx_model(nodes, inputs, outputs, weights), str(path))
    return path


def run(name, path, x, shape, cores=()):
    """Output of a model on a delegate."""
    output = np.full(shape, np.nan, np.float32)
    get_delegate(name).create(cores).compile(path).run([x], [output])
    return output


@pytest.mark.torch
@pytest.mark.skipif(bool(reason), reason=reason or "")
def test_branches_on_vulkan_and_onnx_runtime_run_at_the_same_time(tmp_path):
    pytest.importorskip("torch")
    from tests.stretch.exact_bundles import images, made

    # each branch waits for the start of the other branch, so that sequential branches would never end
    barrier = threading.Barrier(2)

    def wait_for_both(model, run, outputs):
        if model.stem in ("s1.cpu", "s1.gpu"):
            barrier.wait(120)
        run()

    core = sorted(os.sched_getaffinity(0))[0]
    delegates = {"vulkan": Hooked(wait_for_both, "vulkan"), "cpu": Hooked(wait_for_both)}
    with Session(made(tmp_path / "exact"), {"gpu": "vulkan", "cpu": f"cpu{core}"}, delegates=delegates) as session:
        session(images(1)[0])
        assert session.trace.overlap_ms("cpu", "gpu") > 0


@pytest.mark.torch
@pytest.mark.slow
@BOTH
@pytest.mark.parametrize("model", ["mobilenet_v3_small", "shufflenet_v2_x0_5"])
def test_whole_networks_agree_with_torch(tmp_path, name, model):
    torch = pytest.importorskip("torch")
    from stretch.export.onnx import to_onnx
    from stretch.stages.network import read_network

    network = read_network(model, weights="none")
    path = tmp_path / "whole.onnx"
    weights = {op: {key: value.detach().numpy() for key, value in named.items()} for op, named in network.captured.weights.items()}
    onnx.save(to_onnx(network.graph, weights), str(path))
    x = torch.randn(network.graph.input.shape, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = network.loaded.module(x).numpy()
    got = run(name, path, x.numpy(), expected.shape, (CORE,))
    assert np.abs(got - expected).max() < 1e-3 * np.abs(expected).max()


@BOTH
def test_outputs_may_be_inputs_have_readers_and_have_names_with_spaces(tmp_path, name):
    shape = (1, 3, 5, 6)
    nodes = [helper.make_node("Relu", ["x"], ["a b"]), helper.make_node("Add", ["a b", "x"], ["y"])]
    path = save(tmp_path / "op.onnx", nodes, {"x": shape}, {"a b": shape, "y": shape, "x": shape})
    x = numbers(0, shape)
    outputs = [np.full(shape, np.nan, np.float32) for _ in range(3)]
    invocation = get_delegate(name).create(()).compile(path).bind([x], outputs)
    for _ in range(2):
        invocation.run()
        assert np.allclose(outputs, [np.maximum(x, 0), np.maximum(x, 0) + x, x])
        x += 1


@BOTH
def test_half_precision_file_agrees_within_its_rounding(tmp_path, name):
    x, weight = numbers(1, (1, 8, 9, 9)), numbers(2, (16, 8, 3, 3))
    nodes = [helper.make_node("Cast", ["x"], ["h"], to=onnx.TensorProto.FLOAT16), helper.make_node("Conv", ["h", "w"], ["c"], **CONV)]
    nodes.append(helper.make_node("Cast", ["c"], ["y"], to=onnx.TensorProto.FLOAT))
    path = save(tmp_path / "op.onnx", nodes, {"x": x.shape}, {"y": (1, 16, 9, 9)}, {"w": weight.astype(np.float16)})
    got, expected = (run(current, path, x, (1, 16, 9, 9)) for current in (name, "cpu"))
    assert np.abs(got - expected).max() < 0.02 * np.abs(expected).max()


@pytest.mark.parametrize(
    ("nodes", "shape", "message"),
    [
        ([helper.make_node("Relu", ["x"], ["y"])], (2, 3, 4, 4), "batch 1"),
        ([helper.make_node("Trilu", ["x"], ["y"])], (1, 3, 4, 4), "Trilu"),
    ],
)
def test_unsupported_operators_and_batches_are_refused(tmp_path, nodes, shape, message):
    path = save(tmp_path / "op.onnx", nodes, {"x": shape}, {"y": shape})
    with pytest.raises(StretchError, match=message) as caught:
        NcnnDelegate.create(()).compile(path)
    assert message == "Trilu" or isinstance(caught.value, UnableError)


def test_several_cores_give_the_results_of_one(tmp_path):
    weight, node = numbers(2, (32, 16, 3, 3)), helper.make_node("Conv", ["x", "w"], ["y"], **CONV)
    path = save(tmp_path / "op.onnx", [node], {"x": (1, 16, 20, 20)}, {"y": (1, 32, 20, 20)}, {"w": weight})
    x, before = np.ones((1, 16, 20, 20), np.float32), os.sched_getaffinity(0)
    outputs = [run("ncnn", path, x, (1, 32, 20, 20), cores) for cores in ((CORE,), tuple(sorted(before)))]
    assert np.allclose(*outputs, rtol=1e-4, atol=1e-4)
    assert os.sched_getaffinity(0) == before


@pytest.mark.skipif(bool(reason), reason=reason or "")
def test_gpu_is_left_to_other_delegates_if_vulkan_has_only_the_cpu():
    if VulkanDelegate.preferred():
        pytest.skip("this machine has a GPU")
    place = place_processors(["cpu", "gpu"], cores=[0, 1])["gpu"]
    assert place.delegate != "vulkan" or place.stand_in
