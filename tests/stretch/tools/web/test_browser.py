"""A profile of a browser whose page is simulated by times from a formula."""

import msgspec
import onnxruntime
import pytest

from predictors.devices import load_device
from predictors.errors import StretchError
from stretch.tools.web import browser
from stretch.tools.web.browser import HALF, BrowserMeasurer

pytestmark = pytest.mark.torch

DEVICE = {"agent": "a browser", "cores": 8, "isolated": True, "webgpu": True, "fp16": True, "webnn": False, "lacks": []}
#: Multiply-accumulates per ms, and additional ms per inference, for each processor.
SPEEDS = {"cpu[4threads]": (4e6, 0.5), "cpu[1thread]": (1e6, 0.5), "gpu[all] fp16": (2e7, 3.0), "gpu[all]": (1e7, 3.0)}


def send(measurer, **report):
    return measurer.answer(msgspec.json.encode({"device": DEVICE, "threads": 4, "times": {}} | report))


def play_page(measurer, monkeypatch):
    """Run the measurement to its end; return all requests to the page."""
    monkeypatch.setattr(browser, "LEAST_NETWORKS", 16)
    monkeypatch.setattr(browser, "MOST_MACS", 40_000_000)
    monkeypatch.setattr(browser, "MOST_WEIGHTS", 400_000)
    answers = [send(measurer)]
    while not (answer := answers[-1])["done"]:
        graphs = measurer._requested

        def ms(place, network, graphs=graphs):
            rate, fixed = SPEEDS[place]
            return [fixed + graphs[network].macs / rate + 1e-3 * run for run in range(5)]

        names = [network["name"] for network in answer["networks"]]
        times = {place["place"]: {name: ms(place["place"], name) for name in names} for place in answer["places"]}
        together = {name: {place: [2 * t for t in times[place][name]] for place in times} for name in names} if answer["together"] else None
        answers.append(send(measurer, times=times, together=together))
    return answers


@pytest.mark.slow
def test_profile_has_every_processor_in_every_precision_and_can_be_loaded(tmp_path, monkeypatch):
    measurer = BrowserMeasurer("mine", tmp_path, 0.0)
    play_page(measurer, monkeypatch)
    fits = {(item.processor, item.core_set, item.precision) for item in measurer.fits}
    assert fits == {("cpu", "4threads", "fp32"), ("cpu", "1thread", "fp32"), ("gpu", "all", "fp32"), ("gpu", "all", "fp16")}
    device = load_device(tmp_path / "mine.toml")
    assert device.processors["cpu"].default_core_set == "4threads"
    peaks = device.processors["gpu"].core_sets["all"].peak_gops
    assert peaks["fp16"].value > peaks["fp32"].value
    assert device.processors["gpu"].contention["cpu"].value == pytest.approx(2)
    assert device.links["gpu"].spread.value[1] == pytest.approx(2)


def test_networks_are_onnx_files_that_run_in_both_precisions(tmp_path):
    measurer = BrowserMeasurer("mine", tmp_path, 60.0)
    network = send(measurer)["networks"][0]
    for name in (network["name"], network["name"] + HALF):
        session = onnxruntime.InferenceSession(measurer.network(name))
        assert [(end.shape, end.type) for end in session.get_inputs()] == [(list(network["input"]), "tensor(float)")]
        assert session.get_outputs()[0].shape == list(network["output"])


def test_times_that_were_not_requested_or_of_another_browser_are_refused(tmp_path):
    measurer = BrowserMeasurer("mine", tmp_path, 60.0)
    name = send(measurer)["networks"][0]["name"]
    for times in ({"npu": {name: [1.0]}}, {"gpu[all]": {"another": [1.0]}}):
        with pytest.raises(StretchError, match="not asked for"):
            send(measurer, times=times)
    with pytest.raises(StretchError, match="another browser"):
        send(measurer, threads=2)
    with pytest.raises(msgspec.ValidationError):
        send(measurer, times={"gpu[all]": {name: [-1.0]}})
    assert not any(tmp_path.iterdir())
