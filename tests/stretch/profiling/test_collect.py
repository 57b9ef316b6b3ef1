import pytest

from predictors.errors import StretchError
from predictors.measurements.networks import Source, load_measurements
from stretch.profiling.collect import Collected, Collector
from stretch.profiling.places import find_places
from stretch.profiling.table import Table

SOURCE = Source("random networks", "", "", "CC0-1.0", "this machine")


def place():
    return find_places(["cpu"])[0]


@pytest.mark.torch
def test_networks_are_measured_whole_and_by_kernel_and_each_is_measured_once(tmp_path):
    table = Table.open(tmp_path / "m", SOURCE, resume=False)
    first = Collector(place(), "here", table).collect(60, most=6)
    again = Table.open(tmp_path / "m", SOURCE, resume=True)
    second = Collector(place(), "here", again).collect(60, most=6)
    found = load_measurements(tmp_path / "m")
    assert len(found.latencies) == first.measured + second.measured
    assert len({row.network for row in found.latencies}) == len(found.latencies)
    whole = {row.network: row.ms for row in found.latencies}
    sums = dict.fromkeys(whole, 0.0)
    for row in found.kernels:
        sums[row.network] += row.ms
    # Kernels share what their network takes; where the profiler was disturbed there are none.
    assert all(total == 0 or total == pytest.approx(whole[name], rel=0.25) for name, total in sums.items())
    assert any(sums.values())


@pytest.mark.torch
def test_nothing_is_begun_once_the_time_is_spent(tmp_path):
    table = Table.open(tmp_path / "m", SOURCE, resume=False)
    done = Collector(place(), "here", table).collect(0.05)
    # a whole batch would be six
    assert (done.measured, table.latencies) == (0, [])


def test_a_machine_on_which_half_of_the_times_do_not_hold_is_refused():
    with pytest.raises(StretchError, match=r"too noisy: the times of 8 of 15 networks on cpu\[1core\]") as refusal:
        Collected(place(), measured=7, unsteady=8).check_noise()
    assert "--resume" in str(refusal.value.hint)
