import pytest

torch = pytest.importorskip("torch")
from stretch.capture import capture  # noqa: E402 - torch may be missing
from stretch.planning.design.division import abilities  # noqa: E402
from tests.stretch.capture.token_patterns import HEADS, Fused, Mlp, network  # noqa: E402

pytestmark = pytest.mark.torch

SHAPE = (1, 3, 8, 8)


def test_stage_of_tokens_is_scaled_in_all_ways_and_divided_by_heads_and_hidden_channels():
    stages = abilities(capture(network(*[Fused, Mlp] * 3), SHAPE, "net").graph)
    stage = next(stage for stage in stages if stage.depth > stage.min_depth)
    assert {"depth", "heads", "hidden"} <= set(stage.scaled)
    assert {"hidden", "heads"} <= set(stage.exact)
    assert (stage.heads, stage.opaque, stage.why) == (HEADS, 0, "")


def test_stem_and_head_say_that_they_stay_whole():
    stages = {stage.name: stage for stage in abilities(capture(network(Mlp), SHAPE, "net").graph)}
    assert stages["head"].why == "the head stays whole"
    assert all(bool(stage.why) == (not stage.scaled) for stage in stages.values())
