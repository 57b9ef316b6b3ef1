"""Pruned networks are known channel by channel, and calibrated by what calibrates branched ones; pruning itself is Torch-Pruning's."""

import pytest

torch = pytest.importorskip("torch")


from experiments.real_networks import pruning  # noqa: E402
from stretch.capture import capture  # noqa: E402
from tests.experiments.real_networks.networks import SHAPE, Small, narrowed  # noqa: E402

pytestmark = pytest.mark.torch


def small():
    torch.manual_seed(0)
    module = Small(12).train()
    with torch.no_grad():
        for _ in range(10):
            module(torch.randn(16, *SHAPE[1:]))
    return capture(module.eval(), SHAPE, "small")


def images(count, seed=0):
    return torch.randn(count, *SHAPE[1:], generator=torch.Generator().manual_seed(seed))


def output(segments, x):
    with torch.inference_mode():
        for segment in segments:
            x = segment(x)
    return x


def test_network_that_lost_nothing_stays_the_original():
    original = small()
    pruned = narrowed(original, range(12))
    x = images(80)
    for layers in (False, True):
        segments = pruning.calibrate_pruned(original, pruned, [x], layers=layers)
        with torch.inference_mode():
            want = original.module(x)
        torch.testing.assert_close(output(segments, x), want, rtol=1e-3, atol=1e-3 * float(want.abs().max()))
        row = pruning.agreement(original, segments, [x], "now")
        assert row["now_value"] == 1
        assert row["now_error"] < 1e-3


def test_calibration_brings_a_pruned_network_closer_on_images_it_has_not_seen():
    original = small()
    pruned = narrowed(original, (0, 2, 3, 5, 6, 7, 9, 11))
    fitted, fresh = [images(96, 1)], [images(64, 2)]
    before = pruning.agreement(original, pruning.calibrate_pruned(original, pruned, fitted, layers=False), fresh, "now")
    after = pruning.agreement(original, pruning.calibrate_pruned(original, pruned, fitted), fresh, "now")
    assert after["now_error"] < 0.9 * before["now_error"]
    assert after["now_low"] <= after["now_value"] <= after["now_high"]
