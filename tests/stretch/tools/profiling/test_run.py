"""A machine or a board becomes a profile: where it is measured, how, and when it is noise."""

import contextlib
import sys
import threading

import pytest

from predictors.devices import load_device
from predictors.errors import StretchError, UnknownNameError, UsageError
from predictors.fitting.design import load_formula
from predictors.fusion import load_rules
from predictors.measurements.networks import Source, load_measurements
from predictors.predictor import LatencyPredictor
from scheduler.cores import available_cores
from scheduler.delegates import delegates
from scheduler.tools.boards.board import AgentConnection, Board, Where, boot
from scheduler.tools.boards.facts import read_facts
from stretch.cli.profile import profile_there
from stretch.tools.profiling.places import find_places
from stretch.tools.profiling.run import Collected, Collector, Handing, measure_crossing, open_table, profile_machine
from stretch.tools.profiling.styles import draw
from stretch.tools.profiling.writing import Table


@pytest.mark.slow
@pytest.mark.torch
def test_a_machine_is_profiled_and_the_profile_predicts_networks_it_never_saw(tmp_path):
    places = [place()]
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


@pytest.mark.torch
def test_too_few_networks_are_refused_and_kept_for_resuming(tmp_path):
    places = [place()]
    table = open_table("here", tmp_path, places, resume=False)
    with pytest.raises(StretchError, match=r"networks on cpu\[1core\], a fit needs 12"):
        profile_machine("here", places, table, 60, most=1)
    assert [path.name for path in tmp_path.iterdir()] == ["here.measurements"]
    assert open_table("here", tmp_path, places, resume=True).latencies


def test_names_and_folders_are_checked_before_anything_is_measured(tmp_path):
    places = [place()]
    with pytest.raises(UsageError, match="cannot be the name of a profile"):
        open_table("a/b", tmp_path, places, resume=False)
    with pytest.raises(StretchError, match="there is no folder"):
        open_table("here", tmp_path / "missing", places, resume=False)


class Silent:
    def note(self, message):
        pass

    @contextlib.contextmanager
    def progress(self, what, total=None):
        yield lambda doing="", at=None, total=None: None


@pytest.fixture
def board(tmp_path):
    """A board on a line that needs no ssh, with the Python of the tests."""
    with AgentConnection(["sh", "-c", boot([sys.executable])]) as line:
        yield Board(Where(host="here", folder=str(tmp_path / "board")), line, read_facts("here", line.facts), Silent())


@pytest.mark.torch
def test_measurements_of_here_go_along_to_be_gone_on_with(board, tmp_path):
    (tmp_path / "pi.measurements").mkdir()
    (tmp_path / "pi.measurements/source.toml").write_text("no table of ours")
    with pytest.raises(StretchError, match="on here: "):
        profile_there(board, "pi", tmp_path, ["--processors=cpu"], True, print)
    assert (tmp_path / "board/profiles/pi/pi.measurements/source.toml").read_text() == "no table of ours"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["board", "pi.measurements"]


SOURCE = Source("random networks", "", "", "CC0-1.0", "this machine")


def place():
    return find_places(["cpu"])[0]


@pytest.mark.torch
def test_networks_are_measured_whole_and_by_kernel_and_each_is_measured_once(tmp_path):
    table = Table.open(tmp_path / "m", SOURCE, resume=False)
    first = Collector(place(), "here", table).collect(60, most=6)
    again = Table.open(tmp_path / "m", SOURCE, resume=True)
    second = Collector(place(), "here", again).collect(60, most=6)
    measurements = load_measurements(tmp_path / "m")
    assert len(measurements.latencies) == first.measured + second.measured
    assert len({row.network for row in measurements.latencies}) == len(measurements.latencies)
    whole = {row.network: row.ms for row in measurements.latencies}
    sums = dict.fromkeys(whole, 0.0)
    for row in measurements.kernels:
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


def test_the_cpu_has_a_place_for_one_core_and_for_all():
    places = find_places(["cpu"])
    assert places[0].cores == available_cores()[:1]
    assert places[0].serial
    assert places[-1].cores == available_cores()
    assert {place.family for place in places} == {"cpu"}
    assert len({place.core_set for place in places}) == len(places)


@pytest.mark.parametrize(
    ("names", "error", "sentence"),
    [
        (["gpu"], UsageError, "needs the processor `cpu`"),
        (["cpu", "cpu"], UsageError, "`cpu` is named twice"),
        (["cpu[9cores]"], UnknownNameError, r"unknown core set `cpu\[9cores\]`"),
        (["cpu", "dsp"], UnknownNameError, "unknown processor to measure `dsp`"),
        (["cpu=onnx"], UnknownNameError, "unknown delegate to measure `onnx`"),
        (["cpu", "gpu=vulkan"], UsageError, "tells no times of kernels"),
    ],
)
def test_what_cannot_be_measured_is_refused(names, error, sentence):
    with pytest.raises(error, match=sentence):
        find_places(names)


def test_every_delegate_that_is_measured_has_fusion_rules_and_a_formula():
    for backend in {delegates.get(name).fuses for name in delegates} - {""}:
        assert load_rules(backend).id == backend
        assert load_formula(backend).kernels


@pytest.mark.torch
@pytest.mark.opencl
@pytest.mark.slow
def test_a_link_and_its_contention_are_measured_here():
    host, *_, other = find_places(["cpu", "gpu"])
    result = measure_crossing(host, other)
    assert result.link.fixed_ms >= 0
    assert result.link.to_gbs > 0
    assert result.link.back_gbs > 0
    assert min(*result.contention, *result.contention_memory) >= 1
    assert "opencl" in result.runtime


def test_work_that_is_handed_over_runs_on_a_thread_of_its_own_and_its_errors_arrive():
    seen = []
    handing = Handing((), ())
    beside = handing.handing(lambda: seen.append(threading.current_thread()))()
    assert beside > 0
    assert seen != [threading.current_thread()]

    def fail():
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        handing.handing(fail)()
    handing.close()
    assert not seen[0].is_alive()
