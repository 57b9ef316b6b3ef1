import pytest

from predictors.errors import StretchError
from predictors.measurements.networks import load_measurements
from scheduler.bundle.load import load_bundle
from stretch.phone.measure import Spoken
from stretch.phone.measure import Place, Work
from stretch.phone.measure import open_table
from tests.scheduler.bundles import two_branches

pytestmark = pytest.mark.torch

CPU = Place("cpu", "cpu", "3med", 3)


@pytest.fixture
def bundle(tmp_path):
    return load_bundle(two_branches(tmp_path / "bundle"))


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "benchmark_model"
    path.write_text("one release")
    return path


def work(signature="stem"):
    return Work(signature, "stem", f"tiny:{signature}", "fp32", CPU)


def test_times_are_kept_with_the_release_that_took_them(bundle, program, tmp_path):
    open_table(tmp_path / "m", "Pixel-6", program, [work()]).add(bundle, work(), Spoken(1.5, 0.1, None), [])
    program.write_text("another release")
    open_table(tmp_path / "m", "Pixel-6", program, [work()]).add(bundle, work(), Spoken(1.2, None, None), [])
    rows = load_measurements(tmp_path / "m").latencies
    assert [(row.ms, row.std_ms) for row in rows] == [(1.5, 0.1), (1.2, None)]
    assert len({row.runtime for row in rows}) == 2


def test_another_network_of_the_same_name_is_not_mixed_in(bundle, program, tmp_path):
    table = open_table(tmp_path / "m", "Pixel-6", program, [])
    table.add(bundle, work(), Spoken(1.5, None, None), [])
    other = Work("head", "head", "tiny:stem", "fp32", CPU)
    with pytest.raises(StretchError, match="another network called `tiny:stem`"):
        table.add(bundle, other, Spoken(1.5, None, None), [])
    assert len(load_measurements(tmp_path / "m").latencies) == 1


def test_times_of_two_phones_lie_in_one_folder_only_if_they_were_made_alike(bundle, program, tmp_path):
    open_table(tmp_path / "m", "Pixel-6", program, []).add(bundle, work(), Spoken(1.5, None, None), [])
    (tmp_path / "m" / "source.toml").write_text(
        (tmp_path / "m" / "source.toml").read_text().replace("times as the tools of their runtimes tell them", "of another machine")
    )
    with pytest.raises(StretchError, match="another machine or other versions"):
        open_table(tmp_path / "m", "Pixel-6", program, [])
