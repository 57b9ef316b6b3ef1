"""What hints and pages say of installing is one thing, and it works."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from predictors.install import ON_BOARD, install_command, install_line, upgrade_line
from tests.contracts.repository import ROOT

EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

#: Files that people and programs read.
TEXTS = [
    *(p for folder in ("stretch", "scheduler", "predictors", "examples", "experiments", "recipes") for p in (ROOT / folder).rglob("*") if p.suffix in (".py", ".md", ".toml")),
    *(ROOT / "docs").rglob("*.md"),
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
]  # fmt: skip


def commands(text):
    """Each ``pip install`` of a text with what follows it, up to the end of the code it stands in."""
    return [match.rstrip(" .,") for match in re.findall(r"pip install ([^\n`)]*)", text)]


@pytest.mark.parametrize("path", [p for p in TEXTS if "pip install" in p.read_text()], ids=lambda p: str(p.relative_to(ROOT)))
def test_nothing_is_installed_from_an_index_that_does_not_have_it(path):
    for rest in commands(path.read_text()):
        assert "nn-stretch" not in rest, rest
        assert ".whl" in rest or "nn_stretch" not in rest, rest


@pytest.mark.parametrize("path", [p for p in TEXTS if p.suffix == ".md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_pages_write_the_command_as_hints_do(path):
    for rest in commands(path.read_text()):
        if match := re.search(r"\.\[([\w,]+)\]", rest):
            extras = match[1].split(",")
            assert set(extras) <= EXTRAS.keys()
            assert f"pip install {rest}".startswith(install_command(*extras)), rest


def test_sources_leave_the_spelling_to_one_place():
    found = [
        p
        for folder in ("stretch", "scheduler", "predictors")
        for p in (ROOT / folder).rglob("*.py")
        if re.search(r'pip install "?\.', p.read_text())
    ]
    assert found == [ROOT / "predictors" / "install.py"]


def test_lines_name_the_checkout_and_the_extras():
    assert install_line("litert", "qnn") == '`pip install ".[litert,qnn]"` in a checkout of nn-stretch'
    assert install_line() == "`pip install .` in a checkout of nn-stretch"
    assert "`pip install .`" in upgrade_line()


def test_line_on_a_board_names_the_flag_that_brings_extras_there(monkeypatch):
    monkeypatch.setenv(ON_BOARD, "1")
    assert install_line("opencl") == "`--extras opencl` beside `--on`"


@pytest.mark.slow
def test_command_installs_a_program_that_runs(tmp_path):
    uv = Path(sys.executable).parent / "uv"
    if not uv.is_file():
        pytest.skip("uv is not installed")
    command = install_command("torch").replace('"', "").split()
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--python", sys.executable, "--target", str(tmp_path)]
    subprocess.run([str(uv), *command, *options], cwd=ROOT, check=True)
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import stretch; print(stretch.__file__); from stretch.cli import app; app(['--version'])"
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines()[0].startswith(str(tmp_path)), done.stderr
    assert "nn-stretch" in done.stdout.splitlines()[1]
