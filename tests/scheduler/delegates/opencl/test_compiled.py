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


def test_times_of_all_launches_are_known(compiled):
    times = compiled.profile(2)
    assert [each.launch for each in times] == list(compiled.launches)
    assert all(each.ms > 0 for each in times)
    assert any(each.launch.macs > 0 and each.launch.shape for each in times)


def test_intermediates_lie_inside_the_arena(compiled):
    offsets = compiled.allocation.offsets
    assert {t.name for t in compiled.intermediates.tensors} == set(offsets)
    assert all(offsets[t.name] + t.bytes <= compiled.arena_bytes for t in compiled.intermediates.tensors)
    assert compiled.arena_bytes <= sum(t.bytes for t in compiled.intermediates.tensors)


@pytest.mark.parametrize(("shape", "dtype", "says"), [((1, 3, 30, 30), np.float32, "shape"), ((2, 3, 30, 30), np.float64, "type float64")])
def test_buffer_of_another_shape_or_type_is_refused(compiled, shape, dtype, says):
    with pytest.raises(StretchError, match=says):
        compiled.bind([np.zeros(shape, dtype)], [np.zeros((2, 5), np.float32)])


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
