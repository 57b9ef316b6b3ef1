import numpy as np
import pyopencl as cl
import pytest

from predictors.errors import StretchError
from scheduler.delegates.base import UnableError
from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.memory import MemoryPlan
from tests.scheduler.delegates.opencl import networks


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    return OpenCLDelegate().build(networks.classifier(tmp_path_factory.mktemp("m") / "m.onnx"))


def test_two_invocations_of_one_subgraph_keep_to_their_own_buffers(compiled):
    xs = [networks.numbers(2, 3, 30, 30, seed=seed) for seed in (1, 2)]
    ys = [np.zeros((2, 5), np.float32) for _ in xs]
    calls = [compiled.bind([x], [y]) for x, y in zip(xs, ys, strict=True)]
    for call in calls:
        call.enqueue()
    for call in calls:
        call.wait()
    for x, y in zip(xs, ys, strict=True):
        alone = np.zeros((2, 5), np.float32)
        compiled.run([x], [alone])
        assert np.array_equal(y, alone)
    assert not np.array_equal(*ys)


def test_memory_that_the_device_does_not_have_is_an_error(tmp_path):
    def huge(tensors, alignment):
        return MemoryPlan({t.name: 0 for t in tensors.tensors}, {t.name: 0 for t in tensors.tensors}, (1 << 60,))

    with pytest.raises(UnableError, match=r"the OpenCL device `.*` has no memory for the subgraph: "):
        OpenCLDelegate(planner=huge).build(networks.residual_block(tmp_path / "m.onnx"))


def test_driver_that_refuses_an_image_is_an_error_with_a_way_out(tmp_path, monkeypatch):
    def refuse(*arguments, **more):
        raise cl.MemoryError("clCreateImage failed: MEM_OBJECT_ALLOCATION_FAILURE")

    path = networks.residual_block(tmp_path / "m.onnx")
    create = cl.create_image
    monkeypatch.setattr(cl, "create_image", lambda *a, **more: refuse() if "buffer" in more else create(*a, **more))
    with pytest.raises(StretchError, match="does not take the subgraph's buffers and kernels: clCreateImage failed: MEM_OBJECT") as caught:
        networks.as_gpu(path, images=(1 << 8, 1 << 8, 1 << 16), winograd="off")
    assert "--map gpu=cpu" in caught.value.hint
