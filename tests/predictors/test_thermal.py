import pytest

from predictors.devices import PROFILE_FOLDER, load_device
from predictors.errors import StretchError
from predictors.thermal import Thermal, Throttle, read_thermal

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


def test_file_says_everything_of_a_chip(tmp_path):
    (tmp_path / "heat.toml").write_text(TEXT)
    found = read_thermal(tmp_path / "heat.toml")
    assert found == Thermal("assumed, for the shape", 8.0, 240.0, 25.0, (Throttle(45.0, 0.8), Throttle(55.0, 0.6)), 2.0, 2.0, {"gpu": 3.0})


@pytest.mark.parametrize(
    ("before", "after", "told"),
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
def test_what_makes_no_sense_is_refused_in_a_sentence(tmp_path, before, after, told):
    assert before in TEXT
    (tmp_path / "heat.toml").write_text(TEXT.replace(before, after))
    with pytest.raises(StretchError, match=told):
        read_thermal(tmp_path / "heat.toml")


SECTION = "\n[thermal]\n" + TEXT.split("[power_w]")[0]


def test_profile_may_state_heat_with_a_source_of_its_own(tmp_path):
    text = (PROFILE_FOLDER / "host.toml").read_text()
    assert load_device("host").thermal is None
    (tmp_path / "host.toml").write_text(text + SECTION.replace("assumed, for the shape", "rate"))
    found = load_device(tmp_path / "host.toml").thermal
    assert found is not None
    assert (found.source, found.throttle[1]) == ("rate", Throttle(55.0, 0.6))


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("assumed, for the shape", "nowhere", "names the source `nowhere`"),
        ("speed = 0.6", "speed = 0.9", r"\[thermal\] does not hold together"),
        ("resistance_c_per_w", "resistance", "resistance"),
    ],
)
def test_profile_with_heat_that_makes_no_sense_is_refused(tmp_path, before, after, told):
    text = (PROFILE_FOLDER / "host.toml").read_text()
    (tmp_path / "host.toml").write_text(text + SECTION.replace(before, after).replace("assumed, for the shape", "rate"))
    with pytest.raises(StretchError, match=told):
        load_device(tmp_path / "host.toml")
