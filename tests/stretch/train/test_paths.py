from pathlib import Path

import pytest

from stretch.train.recipe import root_paths, rooted
from stretch.train.recipe import load_recipe

RECIPE = """
model = "nets/mine.py:make"
device = "mi9"
weights = "w.pth"
design = "d.toml"
[data]
name = "images"
path = "../photos"
[plan]
accuracy = "accuracy.json"
[supernet]
designs = ["a.toml", "/b.toml"]
"""


def test_files_and_folders_of_a_recipe_are_relative_to_its_own_folder(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "r.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path / "elsewhere")
    for written in (tmp_path / "r.toml", Path("../r.toml")):
        found = load_recipe(written)
        assert Path(found.design).resolve() == tmp_path / "d.toml"
        assert Path(found.data.path).resolve() == (tmp_path / "../photos").resolve()
        assert Path(found.weights).resolve() == tmp_path / "w.pth"
        assert Path(found.plan.accuracy).resolve() == tmp_path / "accuracy.json"
        assert [Path(each).resolve() for each in found.supernet.designs] == [tmp_path / "a.toml", Path("/b.toml")]
        file, _, factory = found.model.rpartition(":")
        assert (Path(file).resolve(), factory) == (tmp_path / "nets/mine.py", "make")


def test_what_the_command_line_names_is_relative_to_where_the_command_runs(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "r.toml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = load_recipe(tmp_path / "r.toml", ("data.path=mine", "design=own.toml", "supernet.designs=['c.toml']"))
    assert Path(found.data.path) == tmp_path / "elsewhere/mine"
    assert Path(found.design) == tmp_path / "elsewhere/own.toml"
    assert [Path(each) for each in found.supernet.designs] == [tmp_path / "elsewhere/c.toml"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("weights", word) for word in ("default", "none", "")),
        *(("model", name) for name in ("resnet50", "timm:resnet50", "package.module:factory")),
        *(("design", value) for value in ("", "/at/the/root.toml", 5, None)),
        ("device", "mi9"),
    ],
)
def test_names_that_are_no_paths_and_absolute_paths_stay(key, value):
    assert rooted(key, value, Path("/folder")) == value


def test_home_is_expanded():
    assert rooted("data.path", "~/photos", Path("/folder")) == str(Path.home() / "photos")


def test_tables_that_are_something_else_are_left_to_the_check_of_types():
    raw = {"data": 5, "supernet": ["x"]}
    root_paths(raw, Path("/folder"))
    assert raw == {"data": 5, "supernet": ["x"]}


def test_model_that_is_an_onnx_file_is_a_file(tmp_path):
    assert rooted("model", "nets/mine.onnx", tmp_path) == str(tmp_path / "nets/mine.onnx")
    assert rooted("model", "resnet18", tmp_path) == "resnet18"
