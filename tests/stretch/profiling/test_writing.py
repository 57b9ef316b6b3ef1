import pytest
import tomli_w

from predictors.devices import load_device
from predictors.fusion import fuse
from predictors.measurements.tables import KernelLatency
from predictors.predictor import LatencyPredictor
from scheduler.measure.links import LinkTimes
from stretch.profiling.places import Place
from stretch.profiling.styles import STYLES, draw
from stretch.profiling.writing import Crossing, make_profile, valid_id

PLACES = [Place("cpu", "1core", "cpu", (0,), 1.0), Place("cpu", "2cores", "cpu", (0, 1), 1.0), Place("gpu", "all", "opencl", (1,), 1.0)]
CROSSING = Crossing(LinkTimes(0.05, 8.0, 4.0), (1.02, 1.05), (1.2, 1.3), "a runtime")
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
    path.write_text(tomli_w.dumps(make_profile("x", "a machine", PLACES, kernels, {"gpu": CROSSING})))
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
    peak = device.processor("cpu").cores.peak_gops["fp32"].value
    assert 0.9 * peak == pytest.approx(2 * RATE / 1e6, rel=0.01)


def test_without_fits_the_roofline_is_of_the_order_of_what_was_measured(tmp_path):
    kernels = [row for place in PLACES for row in measured(place)]
    predictor = LatencyPredictor(written(tmp_path, kernels))
    for style in STYLES:
        whole = sum(row.ms for row in kernels if (row.network, row.processor, row.core_set) == (style, "cpu", "1core"))
        assert whole / 4 < predictor.predict(draw(style, 0), "cpu").ms < whole * 4


@pytest.mark.parametrize(("name", "valid"), [("my-phone.2", True), ("a/b", False), ("é", False)])
def test_names_of_profiles_are_those_of_files(name, valid):
    assert valid_id(name) is valid
