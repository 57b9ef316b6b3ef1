"""What a machine tells of itself, from trees like Linux's and from this machine."""

import pytest

from scheduler.measure.bench.conditions import Conditions, conditions, look


def tree(root, ticks, celsius, khz="1800000", governor="powersave"):
    """A machine of two cores."""
    for core in (0, 1):
        folder = root / f"sys/devices/system/cpu/cpu{core}/cpufreq"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "scaling_cur_freq").write_text(khz)
        (folder / "scaling_governor").write_text(f"{governor}\n")
    for i, degrees in enumerate(celsius):
        zone = root / f"sys/class/thermal/thermal_zone{i}"
        zone.mkdir(parents=True, exist_ok=True)
        (zone / "type").write_text("chip\n")
        (zone / "temp").write_text(degrees)
    (root / "proc").mkdir(exist_ok=True)
    rows = "".join(f"cpu{core} {' '.join(map(str, ticks))} 0 0\n" for core in (0, 1))
    (root / "proc/stat").write_text(f"cpu  1 1 1 1 1 1 1 1 0 0\n{rows}intr 5\n")


def seen(root, before, after, cores=(0, 1)):
    tree(root, **before)
    one = look(cores, root)
    tree(root, **after)
    return conditions(one, look(cores, root), processor="p", system="s", cores=cores, process_cores=cores)


def test_shares_frequencies_and_temperatures_are_those_of_the_files(tmp_path):
    before = {"ticks": (0, 0, 0, 100, 0, 0, 0, 0), "celsius": ["40000", "55500"]}
    after = {"ticks": (60, 0, 10, 110, 10, 0, 0, 10), "celsius": ["41000", "70000"], "khz": "900000"}
    found = seen(tmp_path, before, after)
    # of 100 ticks that passed on each core 20 were idle and 10 stolen
    assert (found.stolen, found.busy) == (0.1, 0.7)
    assert (found.mhz_before, found.mhz_after) == ({"0": 1800.0, "1": 1800.0}, {"0": 900.0, "1": 900.0})
    assert (found.celsius_before, found.celsius_after) == ({"chip": 55.5}, {"chip": 70.0})
    words = " ".join(found.warnings)
    assert "the host gave 10.0% of the cores' time to others" in words
    assert "warmed up by 14 °C" in words


@pytest.mark.parametrize("text", ["", "cpu0 1 2\n", "cpu0 a b c d e f g h\n", "nothing"])
def test_what_the_system_does_not_tell_is_unknown(tmp_path, text):
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/stat").write_text(text)
    found = look((0,), tmp_path)
    assert (found.mhz, found.celsius, found.ticks) == ({}, {}, None)
    known = conditions(found, found, processor="p", system="s", cores=(0,), process_cores=(0,))
    assert (known.stolen, known.busy) == (None, None)


@pytest.mark.parametrize(("load", "told"), [(0.0, False), (5.0, True), (None, False)])
def test_busy_machine_is_told(load, told):
    empty = {name: {} for name in ("governors", "mhz_before", "mhz_after", "celsius_before", "celsius_after")}
    found = Conditions(
        processor="p", system="s", cores=[0], process_cores=[0, 1], load_before=load, load_after=0.0, stolen=None, busy=None, **empty
    )
    assert any("busy in the minute before" in each for each in found.warnings) is told
