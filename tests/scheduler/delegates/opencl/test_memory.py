import pytest

from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.memory import Arenas
from scheduler.memory.naive import plan_naive
from tests.scheduler.delegates.opencl import networks


def test_kernels_compute_the_same_with_a_buffer_for_each_tensor(tmp_path):
    assert networks.error(networks.classifier(tmp_path / "m.onnx"), planner=plan_naive) <= 1e-5


def test_plan_of_a_network_lets_no_two_live_tensors_meet(tmp_path):
    compiled = OpenCLDelegate().build(networks.classifier(tmp_path / "m.onnx"))
    assert compiled.allocation.problem(compiled.intermediates) is None


def test_arena_grows_and_is_shared_by_all_who_need_no_more():
    arenas = Arenas(open_device(()).context)
    (small,) = arenas.take((256,))
    assert arenas.take((128,)) == [small]
    (large,) = arenas.take((1024,))
    assert large.size == 1024
    assert arenas.take((256,)) == [large]
    assert arenas.bytes == 1024


@pytest.mark.slow
def test_subgraphs_of_one_queue_take_turns_in_the_same_memory(tmp_path):
    paths = [networks.classifier(tmp_path / "a.onnx"), networks.residual_block(tmp_path / "b.onnx")]
    compiled = [OpenCLDelegate().build(path) for path in paths]
    device = open_device(())
    first, second = (device.arenas.take(one.allocation.sizes)[0] for one in compiled)
    assert first is second
    for path in [*paths, *reversed(paths)]:
        assert networks.error(path) <= 1e-5
