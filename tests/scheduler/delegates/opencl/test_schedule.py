import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.delegates.opencl import device
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


def test_one_pixel_takes_several_blocks_at_once():
    assert rank_tiles(Schedules(AVX2), Problem("conv", "", 1, 125, 2048))[0]["VC"] >= 4


def test_tuned_schedule_is_taken_where_it_is_legal():
    problem = Problem("conv", "s", 100, 4, 64)
    legal = rank_tiles(Schedules(AVX2), problem)
    assert Schedules(AVX2, {("conv", "s"): legal[-1]}).parameters(problem, legal) == legal[-1]
    assert Schedules(AVX2, {("conv", "s"): {"VW": 99, "VC": 1, "CHANNELS_FIRST": 0}}).parameters(problem, legal) == legal[0]
    assert Schedules(AVX2, {("conv", "other"): legal[-1]}).parameters(problem, legal) == legal[0]


@given(problems, st.sampled_from([AVX2, AVX512, GPU]))
def test_no_tile_is_estimated_to_be_quicker_than_the_first(problem, traits):
    ranked = rank_tiles(Schedules(traits), problem)
    cycles = [tile_cycles(traits, problem, tile["VW"], tile["VC"]) for tile in ranked]
    assert cycles == sorted(cycles)
    assert {tile["CHANNELS_FIRST"] for tile in ranked[:2]} == {0, 1}


@pytest.mark.parametrize("kind", COSTS)
def test_learned_costs_are_of_a_known_kind_of_device_and_cover_its_tiles(kind):
    entry = next(entry for entry in device._entries() if entry["id"] == kind)
    traits = Traits(kind, entry["lanes"], True, entry["registers"], entry["cpu"], tuple(entry["local"]), 1)
    assert set(Schedules(traits).tiles) <= set(COSTS[kind].steps)


def test_device_that_nothing_was_learned_on_is_ranked_analytically():
    problem = Problem("conv", "", 3136, 16, 512)
    assert GPU.id not in COSTS
    assert tile_cycles(GPU, problem, 4, 2) == analytic_cycles(GPU, problem, 4, 2)
    assert tile_cycles(AVX2, problem, 4, 2) != analytic_cycles(AVX2, problem, 4, 2)


@pytest.mark.parametrize("traits", [AVX2, AVX512, GPU])
def test_tile_over_several_groups_reads_them_all(traits):
    alone, grouped = Problem("conv", "", 784, 18, 144), Problem("conv", "", 784, 18, 144, depths={2: 144, 3: 288})
    assert tile_cycles(traits, grouped, 4, 2) == tile_cycles(traits, alone, 4, 2)
    assert tile_cycles(traits, grouped, 4, 3) > 1.5 * tile_cycles(traits, alone, 4, 3)
