"""Terms of a kernel's time: one kernel and many give the same numbers."""

from predictors.fusion import KernelCost
from predictors.models.terms import Grain, terms


def test_channels_are_computed_in_whole_slices():
    cost, grain = KernelCost("conv1x1", 5, 9, 1, 1, 10, 50, 90, 45), Grain(8, 4, 4)
    assert terms.get("outputs").units(cost, grain) == 10 * 16
    assert terms.get("macs").units(cost, grain) == 10 * 16 * 8


def test_slices_run_over_the_groups_where_each_has_one_channel():
    cost, grain = KernelCost("depthwise", 1, 1, 20, 9, 10, 200, 200, 180), Grain(8, 4, 4)
    assert terms.get("outputs").units(cost, grain) == 10 * 24
    assert terms.get("macs").units(cost, grain) == 10 * 24 * 9


def test_windows_are_copied_and_single_positions_are_not():
    window, point = (KernelCost("conv", 16, 8, 1, taps, 10, 160, 80, 128 * taps) for taps in (9, 1))
    grain = Grain(8, 4, 1)
    assert terms.get("patch_bytes").units(window, grain) == 10 * 9 * 16
    assert terms.get("patch_rows").units(window, grain) == 10 * 3
    assert terms.get("patch_bytes").units(point, grain) == terms.get("patch_rows").units(point, grain) == 0
    assert terms.get("patch_bytes").units(point._replace(stride=4), grain) == 10 * 16


def test_sums_are_taken_sixteen_products_at_a_time():
    cost = KernelCost("conv1x1", 20, 16, 1, 1, 8, 160, 128, 320)
    assert terms.get("deep_macs").units(cost, Grain(8, 4, 1)) == 8 * 16 * 32


def test_tensor_processors_compute_whole_blocks_of_positions():
    image, tokens = (KernelCost("conv1x1", 32, 32, 1, 1, pixels, 1, 1, 1024) for pixels in (14 * 14, 197))
    small, wide = Grain(32, 32, 1), Grain(32, 32, 2)
    assert terms.get("block_macs").units(image, small) == 16 * 16 * 32 * 32
    assert terms.get("block_macs").units(image, wide) == 224 * 32 * 32
    assert terms.get("block_macs").units(tokens, small) == 256 * 32 * 32
    assert terms.get("packed_macs").units(image._replace(in_channels=4, out_channels=4, groups=8), small) == 16 * 16 * 32 * 32
