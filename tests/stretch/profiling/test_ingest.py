import pytest

from predictors.errors import StretchError, UsageError
from predictors.measurements.networks import load_measurements
from stretch.profiling.ingest import Where, ingest
from stretch.profiling.styles import draw
from tests.predictors.measurements.test_benchncnn import OUTPUT
from tests.predictors.measurements.test_litert import PROFILE

WHERE = Where("myphone", "cpu[1large]", None, "")


def capture(name: str):
    """A graph that stands for a model's."""
    return draw("plain", len(name))


@pytest.fixture
def profile(tmp_path):
    path = tmp_path / "profile.csv"
    path.write_text(PROFILE)
    return path


@pytest.fixture
def bench(tmp_path):
    path = tmp_path / "bench.txt"
    path.write_text(OUTPUT)
    return path


def test_an_operator_profile_becomes_the_time_of_its_network(profile, tmp_path):
    ingest(profile, "resnet18", WHERE, tmp_path, capture)
    ingest(profile, "resnet34", WHERE, tmp_path, capture)
    found = load_measurements(tmp_path / "myphone.measurements")
    assert [(row.network, row.processor, row.core_set, row.precision, row.ms) for row in found.latencies] == [
        ("resnet18", "cpu", "1large", "fp32", 2.5),
        ("resnet34", "cpu", "1large", "fp32", 2.5),
    ]
    assert set(found.families.values()) == {"resnet"}


def test_networks_of_benchncnn_are_those_of_the_same_architecture(bench, tmp_path):
    rows = ingest(bench, None, WHERE, tmp_path, capture)
    assert [(row.network, row.precision) for row in rows] == [("squeezenet1_1", "fp16"), ("squeezenet1_1", "int8"), ("resnet18", "fp16")]


@pytest.mark.parametrize(
    ("where", "told"),
    [
        (Where("my/phone", "cpu[1large]", None, ""), "cannot be the name of a device"),
        (Where("myphone", "cpu", None, ""), "no processor with its core set"),
        (Where("myphone", "cpu[1large]", "fp64", ""), "`fp64` is no precision"),
    ],
)
def test_what_ran_it_is_checked(profile, tmp_path, where, told):
    with pytest.raises(UsageError, match=told):
        ingest(profile, "resnet18", where, tmp_path, capture)
    assert not list(tmp_path.glob("*.measurements"))


def test_the_same_network_is_not_added_twice(profile, tmp_path):
    ingest(profile, "resnet18", WHERE, tmp_path, capture)
    with pytest.raises(StretchError, match="has a time of resnet18"):
        ingest(profile, "resnet18", WHERE, tmp_path, capture)
    assert len(load_measurements(tmp_path / "myphone.measurements").latencies) == 1


def test_a_profile_without_the_name_of_its_network_is_refused(profile, bench, tmp_path):
    with pytest.raises(UsageError, match="does not say which network"):
        ingest(profile, None, WHERE, tmp_path, capture)
    with pytest.raises(UsageError, match="names its networks itself"):
        ingest(bench, "resnet18", WHERE, tmp_path, capture)
