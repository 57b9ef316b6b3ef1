import re

import pytest

from predictors.devices import KERNEL_KINDS, PROFILE_FOLDER, list_devices, load_device, quantities
from predictors.errors import StretchError, UnknownNameError
from predictors.fusion import load_rules
from predictors.predictor import origin_of
from predictors.thermal import Throttle, read_thermal

HOST = (PROFILE_FOLDER / "host.toml").read_text()

TEXT = """
source = "assumed, for the shape"
resistance_c_per_w = 8.0
time_constant_s = 240.0
ambient_c = 25.0
hysteresis_c = 2.0
power_exponent = 2.0
throttle = [{ at_c = 45.0, speed = 0.8 }, { at_c = 55.0, speed = 0.6 }]

[power_w]
gpu = 3.0
"""
SECTION = "\n[thermal]\n" + TEXT.split("[power_w]")[0]
#: The thermal section with a source of the profile.
HEAT = SECTION.replace("assumed, for the shape", "rate")


@pytest.mark.representatives(8)
@pytest.mark.parametrize("device", list_devices())
def test_every_number_of_a_profile_has_a_source(device):
    profile = load_device(device)
    result = quantities(profile)
    assert len(result) > 25
    assert all(len(profile.sources[quantity.source]) > 10 for _, quantity in result)
    # A source that no number uses is a leftover.
    assert {quantity.source for _, quantity in result} == set(profile.sources)
    # Every number in the file has a source.
    assert len(re.findall(r"value =", (PROFILE_FOLDER / f"{device}.toml").read_text())) == len(result)


def test_profiles_are_named_after_their_files_and_their_backends_exist():
    for device in list_devices():
        profile = load_device(device)
        assert profile.id == device
        for processor in profile.processors.values():
            assert load_rules(processor.backend).id == processor.backend
            assert set(processor.efficiency) | {"matmul"} == set(KERNEL_KINDS)


def test_cpu_with_dot_products_has_int8_as_default_if_its_int8_times_were_measured():
    for device in map(load_device, list_devices()):
        cpu = device.processor("cpu")
        peak = cpu.cores.peak_gops.get("int8")
        measured = [precision for precision in cpu.precisions if origin_of(cpu, precision) != "roofline"]
        if peak is not None and "with dot products" in device.sources[peak.source]:
            assert cpu.default_precision == "int8" if "int8" in measured or not measured else cpu.default_precision in measured, device.id
        # without dot products, int8 may still be the fastest precision if measurements show it
        elif cpu.default_precision == "int8":
            assert origin_of(cpu, "int8") == "fit", device.id


def test_bare_name_means_the_default_core_set():
    profile = load_device("mi9")
    assert profile.processor("cpu").core_set == profile.processor("cpu[3med]").core_set == "3med"
    assert (profile.variants[:2], "cpu[3med]" in profile.variants) == (("cpu", "cpu[1large3med]"), False)


def test_unknown_processor_is_refused_with_a_hint_and_an_omitted_one_with_the_reason():
    for name in ("npu", "cpu[9large]", "cpu[1large", "gpu[]"):
        with pytest.raises(UnknownNameError) as caught:
            load_device("mi9").processor(name)
        assert caught.value.exit_code == 3
        assert caught.value.hint
    profile = next(profile for profile in map(load_device, list_devices()) if profile.left_out)
    for omitted, reason in profile.left_out.items():
        with pytest.raises(UnknownNameError, match=re.escape(reason)) as caught:
            profile.processor(omitted)
        assert "did you mean" not in caught.value.hint


def test_device_is_found_by_chip_or_product_in_any_spelling_and_unknown_names_get_a_hint():
    names = {"sm8750": "s25", "Snapdragon 8 Elite": "s25", "SNAPDRAGON-8-ELITE-GEN-5": "sm8850", "galaxy s24": "s24", "pixel-6": "pixel6"}
    assert {name: load_device(name).id for name in names} == names
    # a misspelt name, the number of another device, a chip that several devices have, and several names
    hints = {"pixle6": "`pixel6`", "sm8570": "another device", "snapdragon 855": "mi9, pixel4", "a03s,mi9": "give one device"}
    for name, hint in hints.items():
        with pytest.raises(UnknownNameError) as caught:
            load_device(name)
        assert hint in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('id = "host"', 'id = "host"\nspeed = 3', "`speed` is an unknown key"),
        ("{ value = 16,", "{ value = -1,", r"width_slice.value"),
        ("{ value = 16,", "{ value = 16.5,", "width_slice must be a whole number"),
        ('source = "simd"', 'source = "hearsay"', "`hearsay`"),
        (', source = "simd" }', " }", "width_slice.*`source`"),
        ("conv1x1 = ", "conv2x2 = ", "`conv2x2`"),
        ('default_core_set = "1core"', 'default_core_set = "8cores"', "is none of its core sets"),
        ('default_precision = "fp32"', 'default_precision = "int8"', "int8"),
        ('default_precision = "fp32"', 'default_precision = "fp7"', "invalid enum value 'fp7'"),
        ("[links.gpu]", "[links.cpu]", "links.gpu"),
        ('id = "host"', 'id = "../host"', "is not a device profile"),
        ("contention.gpu = { value = 1.15", "contention.gpu = { value = 0.9", "contention.gpu.*`low`"),
        ("contention.gpu = { value = 1.15", "contention.gpu = { value = 0", "contention.gpu.value"),
        ("contention.gpu = {", "contention.gpo = {", "contention.gpo"),
        ("contention.gpu = {", "contention.cpu = {", "contention.cpu"),
        ("contention.gpu = {", "contention = {", "contention"),
        ("{ value = 16,", "{ value = inf,", "inf.*finite"),
        ("{ value = 16,", "{ value = nan,", "nan.*finite"),
        ("{ value = 16,", "{ value = 1e300,", r"width_slice.value"),
        ("processors.cpu", "processors.npu", "no processor `cpu`"),
        (HOST, HOST + HOST[HOST.index("[links.gpu]") :].replace("links.gpu", "links.npu"), "links.npu"),
        (HOST, HOST + SECTION.replace("assumed, for the shape", "nowhere"), "`nowhere`"),
        (HOST, HOST + HEAT.replace("speed = 0.6", "speed = 0.9"), "thermal"),
        (HOST, HOST + HEAT.replace("resistance_c_per_w", "resistance"), "resistance"),
    ],
    ids=lambda text: text[:40].replace("\n", " "),
)
def test_bad_profile_is_refused_in_one_sentence(tmp_path, old, new, message):
    assert old in HOST
    (tmp_path / "broken.toml").write_text(HOST.replace(old, new, -1 if old == "processors.cpu" else 1))
    with pytest.raises(StretchError, match=message) as caught:
        load_device(tmp_path / "broken.toml")
    assert ("\n" in caught.value.message, caught.value.exit_code) == (False, 1)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('source = "assumed, for the shape"\n', "", "source"),
        ("time_constant_s = 240.0", "time_constant_s = 0.0", "time_constant_s"),
        ("time_constant_s = 240.0", "time_constant_s = nan", "finite"),
        ("time_constant_s = 240.0", "time_constant = 240.0", "time_constant"),
        ("speed = 0.6", "speed = 0.0", "speed"),
        ("speed = 0.6", "speed = 0.9", "55 °C is not hotter and slower"),
        ("at_c = 55.0", "at_c = 44.0", "44 °C is not hotter and slower"),
        ("ambient_c = 25.0", "ambient_c = 44.0", "would never end"),
        ("gpu = 3.0", "gpu = -3.0", "gpu"),
        ("hysteresis_c = 2.0", "hysteresis_c = 2.0.0", "heat"),
    ],
)
def test_invalid_thermal_description_is_refused(tmp_path, before, after, message):
    assert before in TEXT
    (tmp_path / "heat.toml").write_text(TEXT.replace(before, after))
    with pytest.raises(StretchError, match=message):
        read_thermal(tmp_path / "heat.toml")


def test_profile_may_state_a_thermal_section_with_its_own_source(tmp_path):
    assert load_device("host").thermal is None
    (tmp_path / "host.toml").write_text(HOST + HEAT)
    thermal = load_device(tmp_path / "host.toml").thermal
    assert (thermal.source, thermal.throttle[1]) == ("rate", Throttle(55.0, 0.6))
