import pytest

from predictors.devices import PROFILE_FOLDER, load_device
from predictors.errors import UnknownNameError
from predictors.graph import Op, OpGraph
from predictors.rewrites import rewritten

GRAPH = OpGraph.build("net", [Op("x", "input", attrs={"shape": (1, 8, 4, 4)}), Op("a", "silu", ("x",))], "a")


def test_rewrites_follow_each_other():
    after, done = rewritten(GRAPH, ["silu=hard_swish", "gelu=relu", "hard_swish=relu6"])
    assert after.by_name["a"].kind == "relu6"
    assert done == ("silu=hard_swish", "hard_swish=relu6")


def test_unknown_rewrite_is_told_with_its_nearest():
    with pytest.raises(UnknownNameError) as caught:
        rewritten(GRAPH, ["silu=hardswish"])
    assert "silu=hard_swish" in str(caught.value.hint)


def profile(tmp_path, names):
    text = (PROFILE_FOLDER / "mi9.toml").read_text()
    path = tmp_path / "mine.toml"
    path.write_text(text.replace("[processors.gpu]\n", f"[processors.gpu]\nrewrites = {names}\n", 1))
    return path


def test_profile_says_what_its_processors_have_instead(tmp_path):
    device = load_device(profile(tmp_path, '["silu=relu6"]'))
    assert device.processor("gpu").profile.rewrites == ("silu=relu6",)
    assert device.processor("cpu").profile.rewrites == ()
