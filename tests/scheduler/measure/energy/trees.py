"""Folders as Linux has them, with real files that a run may write to."""

import pytest

MOST_UJ = 262_143_328_850


@pytest.fixture
def rapl(tmp_path):
    """Two packages with what lies within them, and the platform that holds both: energy in µJ by folder."""
    zones = {
        "intel-rapl:0": ("package-0", 1_000),
        "intel-rapl:0:0": ("core", 500),
        "intel-rapl:0:1": ("dram", 300),
        "intel-rapl:1": ("package-1", MOST_UJ - 1_000),
        "intel-rapl:2": ("psys", 9_000),
        "intel-rapl-mmio:0": ("package-0", 7),
    }
    for folder, (name, energy) in zones.items():
        path = tmp_path / "powercap" / folder
        path.mkdir(parents=True)
        write(path, name=name, energy_uj=energy, max_energy_range_uj=MOST_UJ)
    (tmp_path / "powercap" / "intel-rapl").mkdir()
    return tmp_path


@pytest.fixture
def battery(tmp_path):
    """A battery that gives 4 V × 1.5 A, and a charger that gives nothing."""
    folder = tmp_path / "power_supply" / "BAT0"
    folder.mkdir(parents=True)
    write(folder, type="Battery", status="Discharging", current_now=-1_500_000, voltage_now=4_000_000)
    (tmp_path / "power_supply" / "AC").mkdir()
    write(tmp_path / "power_supply" / "AC", type="Mains", online=0)
    return tmp_path


def write(folder, **values):
    """Write one value a file."""
    for name, value in values.items():
        (folder / name).write_text(f"{value}\n")


def add(path, number):
    """Let a counter go on; where it would be larger than it can be, it begins anew."""
    most = int((path.parent / "max_energy_range_uj").read_text())
    path.write_text(f"{(int(path.read_text()) + number) % most}\n")
