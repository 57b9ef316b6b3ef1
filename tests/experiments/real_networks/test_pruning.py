"""Pruned networks are known channel by channel, and calibrated by what calibrates branched ones; pruning itself is Torch-Pruning's."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - torch may be missing

from experiments.real_networks import pruning  # noqa: E402
from predictors.errors import MissingBackendError, StretchError  # noqa: E402
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


def test_pruned_network_as_it_was_pruned_is_its_module():
    original = small()
    pruned = narrowed(original, (1, 2, 4, 8))
    x = images(4)
    with torch.inference_mode():
        want = pruned.captured.module(x)
    got = output(pruning.calibrate_pruned(original, pruned, [images(16)], layers=False), x)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_channels_of_what_lies_between_are_those_that_it_reads():
    original = small()
    kept = narrowed(original, (0, 3, 4)).kept
    for name in ("body_0", "body_1", "body_2"):
        assert kept[name].tolist() == [0, 3, 4], name
    assert kept["input"].tolist() == [0, 1, 2]
    assert len(kept[original.graph.output]) == 5


def test_channels_that_do_not_fit_are_refused():
    original = small()
    with pytest.raises(StretchError, match="was pruned to 12 channels, 2 are known"):
        pruning.kept_channels(original.graph, original.graph, {"body_1": torch.tensor([0, 1])})


def test_mildest_share_is_the_first_that_is_fast_enough():
    asked = []

    def ms(ratio):
        asked.append(ratio)
        return 10 * (1 - ratio)

    assert pruning.mildest(ms, 7.0) == pytest.approx(0.3)
    assert pruning.mildest(ms, 9.95) == pruning.RATIOS[0]
    assert len(asked) < 16
    with pytest.raises(StretchError, match="not predicted to be as fast"):
        pruning.mildest(ms, 1.0)


def test_pruner_takes_what_it_is_asked_for_and_says_which_channels_stayed():
    original = small()
    if not _there():
        with pytest.raises(MissingBackendError, match="Torch-Pruning"):
            pruning.prune(original, 0.25, 1)
        return
    pruned = pruning.prune(original, 0.25, 1)
    assert len(pruned.kept["body_0"]) == 9
    # the weights that stayed are the original's, which says that the channels are told right
    own, whole = pruned.captured.weights["body_0"]["weight"], original.weights["body_0"]["weight"]
    assert torch.equal(own, whole[pruned.kept["body_0"]])
    assert torch.equal(pruned.captured.weights["body_1"]["running_mean"], original.weights["body_1"]["running_mean"][pruned.kept["body_1"]])
    assert isinstance(pruned.captured.module, nn.Module)


def _there():
    from importlib.util import find_spec

    return find_spec("torch_pruning") is not None
