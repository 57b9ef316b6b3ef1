"""Every figure is that of its records, and drawing needs nothing else."""

import re
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("matplotlib")

from experiments.paper.run import FILE, HERE, figures, picture
from experiments.records import read_record
from tests.contracts.repository import ROOT


def named_alike(svg):
    """A picture whose paths have one name: matplotlib's are made of sums that differ in their last digit between processors."""
    return re.sub(r"-p[0-9a-f]{10}\b", "-p", svg)


@pytest.mark.slow
def test_every_figure_is_that_of_its_records_and_its_page_says_where_they_come_from():
    for name in figures():
        assert named_alike((HERE / name / FILE).read_text(encoding="utf-8")) == named_alike(picture(name).svg(name)), "run make paper"
        page = (HERE / name / "README.md").read_text(encoding="utf-8")
        assert f"![{picture(name).words}]({FILE})" in page
        assert "\nWhat differs, and why:\n\n- " in page
        for need in picture(name).needs.values():
            assert need.command == read_record(ROOT / need.record).command
            assert f"`{need.command}`" in page


def copy(to):
    """The experiments alone, as a repository of their own."""
    shutil.copytree(ROOT / "experiments", to / "experiments", ignore=shutil.ignore_patterns("__pycache__"))
    return to


def run(root, *words):
    command = [sys.executable, "-m", "experiments.paper.run", *words]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_missing_record_is_one_sentence_that_names_its_command(tmp_path):
    root = copy(tmp_path)
    (root / "experiments/paper/fig10_energy/results/energy.json").unlink()
    done = run(root, "fig10_energy")
    assert done.returncode == 1
    assert done.stderr == (
        "error: the record experiments/paper/fig10_energy/results/energy.json is missing: "
        "make it with `python -m experiments.paper.fig10_energy.run`\n"
    )
