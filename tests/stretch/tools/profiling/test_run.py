"""A machine or a board becomes a profile."""

import contextlib
import sys

import pytest
import tomli_w

from predictors.devices import load_device
from predictors.errors import StretchError, UsageError
from predictors.fusion import fuse
from predictors.measurements.networks import Measurements, Source
from predictors.measurements.tables import KernelLatency
from predictors.predictor import LatencyPredictor
from scheduler.measure.steady import LinkTimes, Reads
from scheduler.tools.boards.board import AgentConnection, Board, Where, boot
from scheduler.tools.boards.facts import read_facts
from stretch.cli.profile import profile_there
from stretch.planning.cost import compare
from stretch.tools.profiling.places import Place, find_places
from stretch.tools.profiling.run import open_table, profile_machine
from stretch.tools.profiling.styles import STYLES, draw
from stretch.tools.profiling.writing import Crossing, make_profile

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


def test_measurements_of_here_go_along_to_be_gone_on_with(board, tmp_path):
    (tmp_path / "pi.measurements").mkdir()
    (tmp_path / "pi.measurements/source.toml").write_text("no table of ours")
    with pytest.raises(StretchError, match="on here: "):
        profile_there(board, "pi", tmp_path, ["--processors=cpu"], True, print)
    assert (tmp_path / "board/profiles/pi/pi.measurements/source.toml").read_text() == "no table of ours"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["board", "pi.measurements"]


PLACES = [Place("cpu", "1core", "cpu", (0,), 1.0), Place("cpu", "2cores", "cpu", (0, 1), 1.0), Place("gpu", "all", "opencl", (1,), 1.0)]
# 1 MB in at 8 and 1 MB out at 4 GB/s: 0.125 and 0.25 ms, and 0.05 an exchange
READS = Reads(1_000_000, 1_000_000, (0.9 * 0.425,) * 9, (3.5 * 0.425,) * 9, 20.0, 0.03)
CROSSING = Crossing(LinkTimes(0.05, 8.0, 4.0), (1.02, 1.05), (1.2, 1.3), "a runtime", READS)
RATE = 5e7


def measured(place: Place) -> list[KernelLatency]:
    """Kernels that all reach 10⁸ operations a millisecond, or move 10⁷ bytes in one."""
    rows = []
    for style in STYLES:
        for kernel in fuse(draw(style, 0), place.backend):
            cost = kernel.cost
            ms = max(1e-3, kernel.macs / RATE, 4 * (cost.reads + cost.writes) / 1e7)
            rows.append(KernelLatency("x", style, place.family, place.core_set, "fp32", "a runtime", kernel.name, "", *cost, ms))
    return rows


def written(folder, kernels):
    path = folder / "x.toml"
    path.write_text(
        tomli_w.dumps(
            make_profile(
                "x", "a machine", PLACES, Measurements(Source("a test", "", "", "CC0-1.0", ""), {}, {}, [], kernels), {"gpu": CROSSING}
            )
        )
    )
    return load_device(path)


def test_a_profile_is_one_and_says_what_was_measured(tmp_path):
    device = written(tmp_path, [row for place in PLACES for row in measured(place)])
    assert set(device.variants) == {"cpu", "cpu[2cores]", "gpu"}
    gpu, link = device.processors["gpu"], device.links["gpu"]
    assert (gpu.contention.value, device.processors["cpu"].contention.value) == (1.05, 1.02)
    assert gpu.contention_memory is not None
    assert gpu.contention_memory.value == 1.3
    assert link.map_ms.value + link.unmap_ms.value + link.sync_ms.value == pytest.approx(0.05)
    assert (link.convert_gbs.value, link.convert_back_gbs.value if link.convert_back_gbs else None, link.runtime) == (8, 4, "a runtime")
    unknown = compare.link("gpu", device)
    assert (unknown.low, unknown.high) == pytest.approx((0.9, 3.5))
    assert (device.feeder("gpu"), device.feeder("cpu")) == (0.03, 0.0)
    peak = device.processor("cpu").cores.peak_gops["fp32"].value
    assert 0.9 * peak == pytest.approx(2 * RATE / 1e6, rel=0.01)


def test_without_fits_the_roofline_is_of_the_order_of_what_was_measured(tmp_path):
    kernels = [row for place in PLACES for row in measured(place)]
    predictor = LatencyPredictor(written(tmp_path, kernels))
    for style in STYLES:
        whole = sum(row.ms for row in kernels if (row.network, row.processor, row.core_set) == (style, "cpu", "1core"))
        assert whole / 4 < predictor.predict(draw(style, 0), "cpu").ms < whole * 4
