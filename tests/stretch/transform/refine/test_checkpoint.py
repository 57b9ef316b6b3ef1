import json

import pytest

torch = pytest.importorskip("torch")

from safetensors import safe_open  # noqa: E402 - torch may be missing
from safetensors.torch import load_file, save_file  # noqa: E402

from predictors.errors import StretchError  # noqa: E402
from stretch.transform import build  # noqa: E402
from stretch.transform.refine import Checkpoint, Refinement, refine  # noqa: E402
from stretch.transform.refine.checkpoint import FILE, VERSION, Done, fingerprint  # noqa: E402
from tests.stretch.designs import cpu_and  # noqa: E402

pytestmark = pytest.mark.torch

DONE = Done(version=VERSION, identity={"images": "a", "settings": "b"}, phase=1, steps=3, seconds=0.5, looks=2, least=0.25)
TENSORS = {"model.w": torch.arange(3.0)}


def images(found, count=32, seed=0):
    return torch.randn(count, *found.graph.input.shape[1:], generator=torch.Generator().manual_seed(seed))


def test_what_is_read_is_what_was_written_last(tmp_path):
    checkpoint = Checkpoint(tmp_path / "new" / "folder")
    assert checkpoint.read({}) is None
    for steps in (1, 2):
        checkpoint.write(Done(**{key: getattr(DONE, key) for key in DONE.__struct_fields__} | {"steps": steps}), TENSORS)
    done, tensors = checkpoint.read({"images": "a"})
    assert done.steps == 2
    assert torch.equal(tensors["model.w"], TENSORS["model.w"])
    assert [path.name for path in checkpoint.file.parent.iterdir()] == [FILE]
    checkpoint.remove()
    assert not checkpoint.file.parent.exists()


def test_folder_with_files_of_others_stays(tmp_path):
    (tmp_path / "note.txt").write_text("mine")
    checkpoint = Checkpoint(tmp_path)
    checkpoint.write(DONE, TENSORS)
    checkpoint.remove()
    checkpoint.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["note.txt"]


@pytest.mark.parametrize("damage", [b"", b"x" * 100, b"\xff" * 16])
def test_damaged_file_is_named(tmp_path, damage):
    (tmp_path / FILE).write_bytes(damage)
    with pytest.raises(StretchError, match=rf"{FILE} is no whole checkpoint") as error:
        Checkpoint(tmp_path).read({})
    assert "remove" in error.value.hint


@pytest.mark.parametrize(("key", "value"), [("steps", -1), ("least", None), ("phase", "one"), ("more", 1), ("seconds", -0.5)])
def test_header_that_states_nonsense_is_refused(tmp_path, key, value):
    Checkpoint(tmp_path).write(DONE, TENSORS)
    with safe_open(tmp_path / FILE, framework="pt") as file:
        state = json.loads(file.metadata()["state"])
    save_file(TENSORS, tmp_path / FILE, {"state": json.dumps(state | {key: value})})
    with pytest.raises(StretchError, match="no whole checkpoint"):
        Checkpoint(tmp_path).read({})


def test_other_version_is_refused(tmp_path):
    Checkpoint(tmp_path).write(Done(**{key: getattr(DONE, key) for key in DONE.__struct_fields__} | {"version": VERSION + 1}), TENSORS)
    with pytest.raises(StretchError, match=f"version {VERSION + 1}"):
        Checkpoint(tmp_path).read({})


def test_checkpoint_of_another_refinement_is_refused_by_what_differs(tmp_path):
    Checkpoint(tmp_path).write(DONE, TENSORS)
    for what in DONE.identity:
        with pytest.raises(StretchError, match=f"a refinement with other {what}"):
            Checkpoint(tmp_path).read(DONE.identity | {what: "else"})


def test_tensors_that_do_not_fit_the_network_are_told_as_a_damaged_checkpoint(captured, tmp_path):
    found = captured("tiny_resnet")
    how = Refinement(steps=1, batch=8, looks=1)
    refine(build(found, cpu_and("gpu", found.graph, "sum")), found, [images(found)], how, checkpoint=Checkpoint(tmp_path))
    with safe_open(tmp_path / FILE, framework="pt") as file:
        header = file.metadata()
    tensors = load_file(tmp_path / FILE)
    name = next(name for name in tensors if name.startswith("best.") and tensors[name].dim() == 4)
    for damaged in (tensors | {name: torch.zeros(1)}, {key: value for key, value in tensors.items() if key != "random.views"}):
        save_file(damaged, tmp_path / FILE, header)
        with pytest.raises(StretchError, match="no whole checkpoint"):
            refine(build(found, cpu_and("gpu", found.graph, "sum")), found, [images(found)], how, checkpoint=Checkpoint(tmp_path))


def test_fingerprint_knows_names_shapes_and_numbers():
    one = fingerprint({"a": torch.zeros(2, 3)})
    assert one == fingerprint({"a": torch.zeros(2, 3).contiguous()})
    others = ({"b": torch.zeros(2, 3)}, {"a": torch.zeros(3, 2)}, {"a": torch.zeros(2, 3).double()}, {"a": torch.full((2, 3), 1e-30)})
    assert one not in {fingerprint(each) for each in others}
