import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.delegates.opencl.device import Traits
from scheduler.delegates.opencl.schedule import COSTS, Problem, Schedules, analytic_cycles, rank_tiles, tile_cycles

AVX2 = Traits("pocl-avx2", 8, True, 16, True, (1, 16, 1), 1)
AVX512 = Traits("pocl-avx512", 16, True, 32, True, (1, 16, 1), 1)
GPU = Traits("nvidia", 4, False, 40, False, (32, 4, 1), 1)

problems = st.builds(Problem, st.just("conv"), st.just(""), st.integers(1, 20000), st.integers(1, 256), st.integers(1, 5000))


@given(problems, st.sampled_from([AVX2, AVX512, GPU]))
def test_every_tile_fits_registers_pixels_and_blocks(problem, traits):
    for tile in rank_tiles(Schedules(traits), problem):
        assert tile["VW"] <= problem.pixels
        assert tile["VC"] <= problem.blocks
        assert tile["VW"] * tile["VC"] + tile["VC"] <= traits.registers


@pytest.mark.parametrize(("traits", "best"), [(AVX2, 12), (AVX512, 24)])
def test_sums_of_the_best_tile_of_a_large_convolution_fill_the_registers(traits, best):
    tile = rank_tiles(Schedules(traits), Problem("conv", "", 3136, 16, 512))[0]
    assert tile["VW"] * tile["VC"] >= best


def test_tuned_schedule_is_taken_where_it_is_legal():
    problem = Problem("conv", "s", 100, 4, 64)
    legal = rank_tiles(Schedules(AVX2), problem)
    assert Schedules(AVX2, {("conv", "s"): legal[-1]}).parameters(problem, legal) == legal[-1]
    assert Schedules(AVX2, {("conv", "s"): {"VW": 99, "VC": 1, "CHANNELS_FIRST": 0}}).parameters(problem, legal) == legal[0]
    assert Schedules(AVX2, {("conv", "other"): legal[-1]}).parameters(problem, legal) == legal[0]


def test_device_that_nothing_was_learned_on_is_ranked_analytically():
    problem = Problem("conv", "", 3136, 16, 512)
    assert GPU.id not in COSTS
    assert tile_cycles(GPU, problem, 4, 2) == analytic_cycles(GPU, problem, 4, 2)
    assert tile_cycles(AVX2, problem, 4, 2) != analytic_cycles(AVX2, problem, 4, 2)
