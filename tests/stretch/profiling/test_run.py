import pytest

from predictors.devices import load_device
from predictors.errors import StretchError, UsageError
from predictors.predictor import LatencyPredictor
from stretch.profiling.places import find_places
from stretch.profiling.run import open_table, profile_machine
from stretch.profiling.styles import draw

pytestmark = pytest.mark.torch


@pytest.mark.slow
def test_a_machine_is_profiled_and_the_profile_predicts_networks_it_never_saw(tmp_path):
    places = find_places(["cpu"])[:1]
    table = open_table("here", tmp_path, places, resume=False)
    done = profile_machine("here", places, table, 120, most=30)
    assert done.profile == tmp_path / "here.toml"
    device = load_device(done.profile)
    assert device.calibrated
    [judged] = done.judged
    assert judged.fit.held_out.networks >= 30
    predictor = LatencyPredictor(device)
    small, large = (predictor.predict(draw("residual", seed), "cpu") for seed in sorted((900, 901), key=lambda n: draw("residual", n).macs))
    assert 0 < small.ms < large.ms
    assert small.low_ms <= small.ms <= small.high_ms
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here.fit.json", "here.measurements", "here.toml"]


def test_too_few_networks_are_refused_and_kept_for_resuming(tmp_path):
    places = find_places(["cpu"])[:1]
    table = open_table("here", tmp_path, places, resume=False)
    with pytest.raises(StretchError, match=r"networks on cpu\[1core\], a fit needs 12"):
        profile_machine("here", places, table, 60, most=1)
    assert [path.name for path in tmp_path.iterdir()] == ["here.measurements"]
    assert open_table("here", tmp_path, places, resume=True).latencies


def test_names_and_folders_are_checked_before_anything_is_measured(tmp_path):
    places = find_places(["cpu"])[:1]
    with pytest.raises(UsageError, match="cannot be the name of a profile"):
        open_table("a/b", tmp_path, places, resume=False)
    with pytest.raises(StretchError, match="there is no folder"):
        open_table("here", tmp_path / "missing", places, resume=False)
