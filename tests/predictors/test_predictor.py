import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from predictors.devices import NotNegative, SlowdownFactors, list_devices, load_device
from predictors.energy import EnergyModel
from predictors.errors import StretchError, UnknownNameError
from predictors.host import HOST, host_among
from predictors.models.roofline import MEASURED, KernelTime
from predictors.predictor import KernelsTime, LatencyPredictor, LinkModel
from predictors.rewrites import apply_rewrites
from tests.predictors.networks import efficientnet_b5, efficientnet_lite4, resnet50, small_regnet, small_resnet
from tests.predictors.specified import specified, stating

MI9 = LatencyPredictor(specified("mi9"))


@pytest.mark.representatives(6)
@pytest.mark.parametrize("device", list_devices())
def test_estimate_is_the_sum_of_its_kernels_inside_its_interval(device):
    predictor = LatencyPredictor(load_device(device))
    for name in predictor.device.variants:
        estimate = predictor.predict(small_resnet(), name)
        assert estimate.computing_ms == pytest.approx(sum(k.time.ms for k in estimate.kernels))
        assert estimate.low_ms < estimate.ms < estimate.high_ms
        assert (estimate.processor, estimate.source) == (name, "predicted")
        fit = predictor.device.processor(name).fits.get(estimate.precision)
        assert estimate.calibrated == (estimate.origin in MEASURED)
        assert (estimate.origin == "fit") == (fit is not None and fit.sibling is None)
        assert sum(k.kernel.macs for k in estimate.kernels) == small_resnet().macs


@pytest.mark.parametrize(
    ("make", "processor", "measured_ms"),
    [
        # Sample output of the NN-Stretch release: CPU and DSP int8, GPU fp16, 224×224.
        *((resnet50, *row) for row in (("cpu", 28.8), ("gpu", 37.4), ("dsp", 30.4))),
        *((efficientnet_lite4, *row) for row in (("cpu", 16.3), ("gpu", 18.5), ("dsp", 16.3))),
    ],
)
def test_uncalibrated_mi9_is_of_the_order_of_published_figures(make, processor, measured_ms):
    estimate = MI9.predict(make(), processor)
    assert estimate.low_ms < measured_ms < estimate.high_ms
    # the profile's efficiencies were chosen by these figures, assuming that a network takes the sum of its kernels' times
    assert estimate.computing_ms == pytest.approx(measured_ms, rel=0.15)


def with_family(device, family, **changes):
    """A device with changed fields of one processor."""
    return structs.replace(device, processors={**device.processors, family: structs.replace(device.processors[family], **changes)})


def lacking(processor, *kinds):
    return LatencyPredictor(with_family(specified("mi9"), processor, unsupported=kinds))


def test_operator_that_a_processor_lacks_costs_its_cpu_time_and_the_transfers():
    graph = efficientnet_lite4()
    lacks_relu6 = lacking("gpu", "relu6")
    estimate = lacks_relu6.predict(graph, "gpu", "fp16")
    elsewhere = [kernel for kernel in estimate.kernels if kernel.kernel.elsewhere]
    assert len(elsewhere) == sum(op.kind == "relu6" for op in graph.ops)
    for item in elsewhere[:3]:
        cost = item.kernel.cost
        moved = MI9.links.ms("gpu", "cpu", cost.reads, "fp16") + MI9.links.ms("cpu", "gpu", cost.writes, "fp16")
        assert item.time.ms == pytest.approx(moved + MI9.kernel_ms(item.kernel._replace(elsewhere=False), "cpu"))
    assert estimate.ms > MI9.predict(graph, "gpu", "fp16").ms + len(elsewhere) * 0.1
    assert lacks_relu6.predict(graph, "cpu").ms == MI9.predict(graph, "cpu").ms
    # impossible lists are refused
    for processor, kind, message in (("gpu", "relu7", "relu7"), ("cpu", "relu", "others")):
        with pytest.raises(StretchError, match=message):
            lacking(processor, kind).predict(small_resnet(), processor)


@given(group=st.sampled_from([4, 8, 16]), processor=st.sampled_from(["cpu", "gpu", "dsp"]))
def test_network_costs_its_form_after_the_rewrites_of_the_profiles_runtime(group, processor):
    graph = small_regnet(group)
    parts, _ = apply_rewrites(graph, ["grouped_conv=parts"])
    estimate = LatencyPredictor(stating(MI9.device, rewrites=("grouped_conv=parts",))).predict(graph, processor)
    assert estimate.ms == pytest.approx(MI9.predict(parts, processor).ms)
    assert estimate.ms > MI9.predict(graph, processor).ms
    # kernels of parts have the names of the network's operators
    assert {name for item in estimate.kernels for name in (item.kernel.name, *item.kernel.ops)} <= set(graph.by_name)
    assert sum(item.kernel.macs for item in estimate.kernels) == graph.macs


def test_inexact_rewrite_of_a_profile_does_not_change_predictions():
    graph, changing = efficientnet_b5(), LatencyPredictor(stating(MI9.device, rewrites=("silu=relu6", "squeeze_excite=none")))
    assert changing.predict(graph, "cpu").ms == MI9.predict(graph, "cpu").ms


LINKS = MI9.links


def test_transfer_to_a_gpu_is_a_map_and_a_conversion_and_back_also_an_unmap_and_a_synchronisation():
    link = MI9.device.links["gpu"]
    assert LINKS.ms("cpu", "gpu", 10**6, "fp16") == pytest.approx(link.map_ms.value + 2e6 / (link.convert_gbs.value * 1e9) * 1e3)
    assert LINKS.ms("gpu", "cpu", 0, "fp16") == pytest.approx(link.unmap_ms.value + link.sync_ms.value)
    # a tensor that stays on its processor costs nothing, for any core set
    assert LINKS.ms("cpu", "cpu[1large]", 10**6, "fp32") == LINKS.ms("gpu", "gpu", 10**6, "fp16") == 0


@given(st.floats(0, 100))
def test_transfer_takes_at_least_the_measured_constant_of_an_inference(constant):
    links = LinkModel(MI9.device, lambda processor, precision: constant)
    exchange = [(LINKS.ms(*ends, 0, "fp16"), links.ms(*ends, 0, "fp16")) for ends in (("cpu", "gpu"), ("gpu", "cpu"))]
    stated = sum(ms for ms, _ in exchange)
    assert sum(ms for _, ms in exchange) == pytest.approx(max(stated, constant))
    assert all(floored == pytest.approx(ms * max(1, constant / stated)) for ms, floored in exchange)
    assert links.ms("cpu", "cpu[1large]", 10**6, "fp16") == 0


@pytest.mark.parametrize("device", list_devices())
def test_call_costs_its_measured_constant_also_in_a_precision_without_measurements(device):
    profile = load_device(device)
    predictor = LatencyPredictor(profile)
    for name in profile.processors:
        on = profile.processor(name)
        if constant := predictor.handover(name).ms if on.fits.get(on.default_precision) else 0.0:
            assert all(predictor.handover(name, at).ms > 0 for at in on.precisions)
            if name != HOST:
                fixed = {at: predictor.links.ms(HOST, name, 0, at) + predictor.links.ms(name, HOST, 0, at) for at in on.precisions}
                unmeasured = [ms for at, ms in fixed.items() if at not in on.fits]
                assert unmeasured == [fixed[on.default_precision]] * len(unmeasured), (name, constant, fixed)


@given(st.integers(0, 10**8), st.sampled_from(["fp32", "fp16", "int8"]))
def test_transfer_between_two_accelerators_goes_through_the_cpu(elements, precision):
    via_cpu = LINKS.ms("gpu", "cpu", elements, precision) + LINKS.ms("cpu", "dsp", elements, precision)
    assert LINKS.ms("gpu", "dsp", elements, precision) == pytest.approx(via_cpu)


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        (KernelTime(10.0, 0.0, 10.0, 0.0), 11.0),
        (KernelTime(10.0, 0.0, 0.0, 10.0), 15.0),
        (KernelTime(10.0, 0.0, 5.0, 5.0), 13.0),
        (KernelTime(10.0, 10.0, 0.0, 0.0), 10.0),
        (KernelTime(11.0, 1.0, 10.0, 0.0), 12.0),
    ],
)
def test_each_part_of_a_kernel_is_slowed_by_its_own_factor(time, expected):
    assert KernelsTime.of(time).slowed(SlowdownFactors(1.1, 1.5)) == pytest.approx(expected)


def with_power(device, family, **states):
    """A device that states the power, in W, of one processor while it does not compute."""
    return with_family(device, family, **{key: NotNegative(watts, next(iter(device.sources))) for key, watts in states.items()})


def test_energy_of_a_run_is_the_sum_over_processors_of_power_times_computing_time():
    device = load_device("mi9")
    power = {name: device.processor(name).cores.power_w.value for name in ("cpu", "gpu", "dsp")}
    assert EnergyModel(device).mj("cpu", 10.0) == pytest.approx(power["cpu"] * 10)
    assert EnergyModel(device).plan_mj({"gpu": 10.0, "dsp": 4.0}, 12.0) == pytest.approx(10 * power["gpu"] + 4 * power["dsp"])
    assert EnergyModel(device).plan_mj({"gpu": 10.0, "cpu[1large]": 4.0}, 12.0) is None
    with pytest.raises(UnknownNameError, match="npu"):
        EnergyModel(device).mj("npu", 1.0)
    # an idle processor takes its idle power for the whole run
    idle = with_power(device, "cpu", idle_w=0.5, waiting_w=9.0)
    assert EnergyModel(idle).plan_mj({"gpu": 10.0}, 12.0) - EnergyModel(device).plan_mj({"gpu": 10.0}, 12.0) == pytest.approx(6.0)


@pytest.mark.parametrize(
    ("states", "watts"), [({"idle_w": 0.5}, 0.5), ({"idle_w": 0.5, "waiting_w": 0.75}, 0.75), ({"waiting_w": 0.25}, 0.25)]
)
def test_waiting_processors_take_the_waiting_power_of_the_profile(states, watts):
    models = [EnergyModel(device) for device in (load_device("mi9"), with_power(load_device("mi9"), "gpu", **states))]
    less, more = (model.plan_mj({"gpu": 10.0, "dsp": 4.0}, 12.0) for model in models)
    assert more - less == pytest.approx(2.0 * watts)


@pytest.mark.slow
@given(
    busy=st.dictionaries(st.sampled_from(["cpu", "gpu", "dsp", "cpu[3med]"]), st.floats(0, 100), min_size=1),
    longer=st.floats(0, 100),
    idle=st.none() | st.floats(0, 10),
)
def test_parts_add_up_to_the_energy_and_cover_the_run_of_every_processor(busy, longer, idle):
    device = load_device("mi9")
    if idle is not None:
        device = with_power(device, "dsp", idle_w=idle)
    makespan = max(busy.values()) + longer
    parts = EnergyModel(device).parts(busy, makespan)
    assert sum(part.mj or 0.0 for part in parts) == pytest.approx(EnergyModel(device).plan_mj(busy, makespan))
    assert {part.processor.partition("[")[0] for part in parts} == {"cpu", "gpu", "dsp"}
    for name in {part.processor for part in parts}:
        assert sum(part.ms for part in parts if part.processor == name) == pytest.approx(makespan)
    assert all((part.mj is None) == (part.power_w is None) == (part.source is None) for part in parts)


def test_host_is_found_at_any_position_and_may_be_missing():
    assert host_among(["gpu", "cpu[1large]", "cpu"]) == "cpu[1large]"
    assert host_among(["gpu", "dsp"]) is None
