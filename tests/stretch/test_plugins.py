"""Entry points of other packages register themselves; a broken one affects no other."""

import json
import os
import subprocess
import sys

import pytest

from stretch.plugins import culprit
from tests.scheduler.bundles import two_branches


def test_entry_point_is_imported_once_and_a_broken_one_is_left_out_with_a_warning(tmp_path):
    group = "nn_stretch.test_group"
    package(tmp_path, group, "good_plugin", "print('imported')\n")
    package(tmp_path, group, "bad_plugin", "raise RuntimeError('out of order')\n")
    calls = 2 * f"print(load_plugins({group!r}))\n"
    code = f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\nfrom stretch.plugins import load_plugins\n{calls}"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["imported", "('good_plugin',)", "('good_plugin',)"]
    assert "plug-in `bad_plugin`" in result.stderr
    assert "out of order" in result.stderr


def package(folder, group, name, body):
    """Write a package with one entry point of a group into a folder."""
    (folder / f"{name}.py").write_text(body)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {name}\n")


FAULTY = '''
from scheduler.delegates.base import Delegate, Invocation
from scheduler.delegates.null import NullCompiled, NullDelegate
from scheduler.formats.onnx import open_onnx
from stretch.network.models.families import families


class Plain(Delegate):
    def compile(self, model):
        return None


class Documented(NullDelegate):
    """Says what it is here.

    And more of it there.
    """

    summary = ""


class Unsure(NullDelegate):
    drives = ("gpu",)

    @classmethod
    def unavailable(cls):
        raise KeyError("no such chip")


class Abstract(Delegate):
    summary = "lacks compile"


class Compiling(NullDelegate):
    def compile(self, model):
        return {}["subgraphs"]


class Failing(Invocation):
    def run(self):
        raise ValueError("lost its chip")


class Running(NullDelegate):
    def compile(self, model):
        found = NullCompiled(*open_onnx(model).ends, 0.0)
        found.bind = lambda inputs, outputs: Failing()
        return found


@families.register("acme")
class Acme:
    prefix = "acme:"

    def names(self):
        return ["net"]

    def build(self, name):
        raise RuntimeError("out of order")


@families.register("silent")
class Silent:
    prefix = "silent:"

    def names(self):
        raise OSError("no list")
'''

DELEGATES = ("Plain", "Documented", "Unsure", "Abstract", "Compiling", "Running")


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Environment with an installed package whose plug-ins all fail."""
    source, site = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("site")
    (source / "acme_faults.py").write_text(FAULTY)
    points = "\n".join(f'{name.lower()} = "acme_faults:{name}"' for name in DELEGATES)
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["hatchling"]\nbuild-backend = "hatchling.build"\n'
        '[project]\nname = "acme-faults"\nversion = "1.0"\n'
        f'[project.entry-points."nn_stretch.delegates"]\n{points}\n'
        '[project.entry-points."nn_stretch.families"]\nacme = "acme_faults"\n'
        '[tool.hatch.build.targets.wheel]\ninclude = ["acme_faults.py"]\n'
    )
    quiet = ["--quiet", "--offline", "--no-deps", "--no-build-isolation"]
    ended = subprocess.run([sys.executable, "-m", "uv", "pip", "install", *quiet, "--target", site, source], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    return {**os.environ, "PYTHONPATH": str(site)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "reason"),
    [("compiling", "compile `s1.gpu`: KeyError: 'subgraphs'"), ("running", "lost its chip"), ("abstract", "lacks `compile`")],
)
def test_exception_of_a_delegate_names_its_package_and_entry_point(installed, tmp_path, name, reason):
    bundle = two_branches(tmp_path / "bundle")
    code, out, err = stretch(installed, "run", bundle, "--map", f"gpu={name}", "--repeat", 1)
    assert (code, out) == (1, "")
    assert [text for text in (reason, "acme-faults", f"acme_faults:{name.title()}") if text not in err] == []
    assert [text for text in ("fault of nn-stretch", "Traceback") if text in err] == []


@pytest.mark.torch
@pytest.mark.slow
def test_faults_of_model_families_name_the_package_and_hide_no_other_model(installed):
    pytest.importorskip("torch")
    code, out, err = stretch(installed, "list", "models", "tiny*")
    assert (code, "tiny_resnet" in out) == (0, True), err
    assert [text for text in ("model family `silent`", "package acme-faults") if text not in err] == []
    code, out, err = stretch(installed, "branch", "acme:net", "--device", "pixel6", "--dry-run")
    assert code == 1
    assert [text for text in ("of the package acme-faults", "RuntimeError: out of order") if text not in err] == []


def stretch(environment, *arguments):
    """Run a command with the package installed; return exit code, stdout and stderr."""
    code = "import sys; from stretch.cli import app; sys.argv[0] = 'stretch'; app()"
    process = subprocess.run([sys.executable, "-c", code, *map(str, arguments)], env=environment, capture_output=True, text=True)
    return process.returncode, process.stdout, process.stderr


@pytest.mark.slow
def test_faults_of_plug_ins_remove_nothing_from_the_list_of_delegates(installed):
    code, out, err = stretch(installed, "list", "delegates", "--json")
    assert code == 0, out
    data = json.loads(out)
    items = {item["name"]: item for item in data["items"]}
    assert {"cpu", "null", "plain", "documented", "unsure"} <= set(items)
    assert [items[name]["summary"] for name in ("plain", "documented")] == ["no summary, from acme_faults", "Says what it is here."]
    assert [items[name]["origin"] for name in ("plain", "cpu")] == ["package acme-faults, entry point acme_faults:Plain", None]
    assert items["unsure"]["available"] is False
    for name, reason in {"unsure": "KeyError: 'no such chip'", "abstract": "lacks `compile`"}.items():
        assert reason in data["broken"][name]
        assert "package acme-faults" in data["broken"][name]
        assert f"delegate `{name}` of another package cannot be used" in err
    assert stretch(installed, "list", "delegates")[0] == 0


def test_faults_of_nn_stretch_are_not_blamed_on_a_plug_in():
    with pytest.raises(KeyError) as caught:
        {}["own"]
    assert culprit(caught.value) is None
