"""`stretch delegates`: what can run here."""

import pytest


def test_lists_every_delegate_with_its_availability(stretch):
    code, data, _ = stretch("delegates", "--json")
    assert code == 0
    items = {item["name"]: item for item in data["items"]}
    assert {"cpu", "null", "reference"} <= set(items)
    assert items["reference"]["available"] is True
    assert items["null"]["computes"] is False
    assert items["cpu"]["module"] == "scheduler.delegates.cpu"


def test_people_read_a_line_per_delegate(stretch):
    _, out, _ = stretch("delegates")
    # a reason that is longer than the terminal is wide goes on in lines that name nothing
    named = [line.split()[0] for line in out.splitlines()[1:] if line[:1].strip()]
    assert named == sorted(named)
    assert {"cpu", "null", "reference"} <= set(named)


@pytest.fixture
def broken_package(tmp_path, monkeypatch):
    """An installed package whose delegate cannot be imported."""
    info = tmp_path / "theirs-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[nn_stretch.delegates]\ntheirs = theirs_module:Delegate\n")
    monkeypatch.syspath_prepend(tmp_path)


def test_broken_delegate_of_another_package_takes_nothing_else_away(stretch, broken_package):
    code, data, err = stretch("delegates", "--json")
    assert code == 0
    assert "theirs" in data["broken"]
    assert "theirs" in err
    assert {"cpu", "null", "reference"} <= {item["name"] for item in data["items"]}
