"""Entry points of other packages register themselves; a broken one harms nobody."""

import subprocess
import sys

GROUP = "nn_stretch.test_group"


def run(folder, code):
    """Output of code in a fresh interpreter that finds the packages in `folder`."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys\nsys.path.insert(0, {str(folder)!r})\n{code}"], capture_output=True, text=True, check=True
    )


def package(folder, name, body):
    """Lay a package with one entry point of `GROUP` into a folder."""
    (folder / f"{name}.py").write_text(body)
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{GROUP}]\n{name} = {name}\n")


LOAD = f"from stretch.plugins import load_plugins\nprint(load_plugins({GROUP!r}))\nprint(load_plugins({GROUP!r}))"


def test_entry_point_is_imported_once(tmp_path):
    package(tmp_path, "good_plugin", "print('imported')\n")
    assert run(tmp_path, LOAD).stdout.splitlines() == ["imported", "('good_plugin',)", "('good_plugin',)"]


def test_broken_entry_point_is_left_out_with_a_warning(tmp_path):
    package(tmp_path, "bad_plugin", "raise RuntimeError('out of order')\n")
    package(tmp_path, "good_plugin", "")
    result = run(tmp_path, LOAD)
    assert result.stdout.splitlines()[0] == "('good_plugin',)"
    assert "plug-in `bad_plugin`" in result.stderr
    assert "out of order" in result.stderr


def test_family_of_another_package_builds_models(tmp_path):
    body = """
from torch import nn
from stretch.models.families import families

@families.register("acme")
class Acme:
    prefix = "acme:"
    def names(self): return ["net"]
    def build(self, name): return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    def input_shape(self, name): return (1, 3, 8, 8)
    def default_weights(self, name): return None
    def checked(self): return frozenset()
"""
    package(tmp_path, "acme_plugin", body)
    (tmp_path / "acme_plugin-1.0.dist-info" / "entry_points.txt").write_text("[nn_stretch.families]\nacme = acme_plugin\n")
    result = run(
        tmp_path,
        "from stretch.models import load_model, model_names\nprint(model_names('acme*'))\nprint(type(load_model('acme:net').module).__name__)",
    )
    assert result.stdout.splitlines() == ["[('acme:net', 'acme')]", "Sequential"]
