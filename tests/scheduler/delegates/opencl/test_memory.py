"""Where tensors lie, and the tiles that read them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from scheduler.delegates.opencl import OpenCLDelegate
from scheduler.delegates.opencl.device import Traits
from scheduler.delegates.opencl.schedule import COSTS, KernelProblem, Schedules, analytic_cycles, rank_tiles, tile_cycles
from scheduler.delegates.opencl.tensors import Blocking
from scheduler.memory.plan import plan_naive
from tests.scheduler.delegates.opencl import networks

shapes = st.tuples(*[st.integers(1, 9)] * 4)
blockings = st.builds(Blocking, st.sampled_from([4, 8, 16]), st.booleans())


def element(view, n, c, h, w):
    """Index of an element in memory, as the kernels compute it."""
    return (
        view.offset + n * view.strides[0] + c // view.lanes * view.strides[1] + h * view.strides[2] + w * view.strides[3] + c % view.lanes
    )


@given(shapes, blockings)
def test_every_element_has_a_place_of_its_own_inside_the_buffer(shape, blocking):
    view = blocking.blocked("t", shape)
    places = {element(view, *index) for index in np.ndindex(*shape)}
    assert len(places) == int(np.prod(shape))
    assert max(places) * blocking.item_bytes < view.bytes


def test_kernels_compute_the_same_with_a_buffer_for_each_tensor(tmp_path):
    assert networks.error(networks.classifier(tmp_path / "m.onnx"), planner=plan_naive) <= 1e-5


def test_plan_of_a_network_lets_no_two_live_tensors_meet(tmp_path):
    compiled = OpenCLDelegate().build(networks.classifier(tmp_path / "m.onnx"))
    assert compiled.allocation.problem(compiled.intermediates) is None


AVX2 = Traits("pocl-avx2", 8, True, 16, True, (1, 16, 1), 1)
AVX512 = Traits("pocl-avx512", 16, True, 32, True, (1, 16, 1), 1)
GPU = Traits("nvidia", 4, False, 40, False, (32, 4, 1), 1)

problems = st.builds(KernelProblem, st.just("conv"), st.just(""), st.integers(1, 20000), st.integers(1, 256), st.integers(1, 5000))


@given(problems, st.sampled_from([AVX2, AVX512, GPU]))
def test_every_tile_fits_registers_pixels_and_blocks(problem, traits):
    for tile in rank_tiles(Schedules(traits), problem):
        assert tile["VW"] <= problem.pixels
        assert tile["VC"] <= problem.blocks
        assert tile["VW"] * tile["VC"] + tile["VC"] <= traits.registers


def test_tuned_schedule_is_taken_where_it_is_legal():
    problem = KernelProblem("conv", "s", 100, 4, 64)
    legal = rank_tiles(Schedules(AVX2), problem)
    assert Schedules(AVX2, {("conv", "s"): legal[-1]}).parameters(problem, legal) == legal[-1]
    assert Schedules(AVX2, {("conv", "s"): {"VW": 99, "VC": 1, "CHANNELS_FIRST": 0}}).parameters(problem, legal) == legal[0]
    assert Schedules(AVX2, {("conv", "other"): legal[-1]}).parameters(problem, legal) == legal[0]


def test_device_that_nothing_was_learned_on_is_ranked_analytically():
    problem = KernelProblem("conv", "", 3136, 16, 512)
    assert GPU.id not in COSTS
    assert tile_cycles(GPU, problem, 4, 2) == analytic_cycles(GPU, problem, 4, 2)
    assert tile_cycles(AVX2, problem, 4, 2) != analytic_cycles(AVX2, problem, 4, 2)
