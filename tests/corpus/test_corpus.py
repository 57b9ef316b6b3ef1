"""Wrong files of every kind through the real verbs: each ends in one sentence and a code of the contract, in bounded memory and time."""

import io
import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from predictors.devices import PROFILE_FOLDER
from stretch.train.recipe import recipe_folder
from tests.corpus import mutations
from tests.corpus.pool import Child
from tests.scheduler.bundles import two_branches
from tests.stretch.cli.commands import LOOSE, spawn

pytestmark = pytest.mark.torch

#: Wrong files of each kind; more than a thousand together.
COUNTS = {"onnx": 340, "manifest": 250, "npy": 110, "design": 110, "profile": 120, "recipe": 120, "weights": 30, "tflite": 70, "pipe": 8}

#: How many of each the fast suite looks at.
SAMPLE = 3

DESIGN = b"""
version = 1
model = "tiny_resnet"
[[segments]]
name = "s1"
join = "project"
branches = [{ processor = "cpu", depth = 1, width = 8 }, { processor = "gpu", depth = 1, width = 8 }]
"""


@pytest.fixture(scope="module")
def sound(tmp_path_factory, tiny_bundle):
    """Sound files of every kind, and folders that hold them."""
    top = tmp_path_factory.mktemp("sound")
    small = two_branches(top / "small")
    shutil.copytree(tiny_bundle, top / "tiny")
    lite = spawn("", "export", small, "--format", "tflite", "--out", top / "lite")
    assert lite.code == 0, lite.err
    return top


@pytest.fixture(scope="module")
def child(sound, tmp_path_factory):
    """The process that the wrong files are given to."""
    process = Child(sound / "small", tmp_path_factory.mktemp("log") / "log")
    yield process
    process.close()


def onnx_case(rng, sound, folder):
    """A file of a bundle, hashed anew so that what is in it is looked at."""
    shutil.copytree(sound / rng.choice(["small", "small", "tiny"]), folder)
    name = rng.choice([name for name in json.loads((folder / "bundle.json").read_text())["files"] if name.endswith(".onnx")])
    (folder / name).write_bytes(mutations.onnx_model(rng, (folder / name).read_bytes()))
    mutations.hashed(folder, name)
    return bundle_words(rng, folder)


def bundle_words(rng, folder):
    """A verb that reads a bundle."""
    return rng.choice(
        [
            ("verify", folder),
            ("verify", folder, "--json"),
            ("explain", folder),
            ("explain", folder, "--device", "pixel6", "--json"),
            ("run", folder, "--repeat", "1", "--warmup", "0"),
            ("run", folder, "--repeat", "1", "--warmup", "0", "--trace", folder / "trace.json"),
        ]
    )


def manifest_case(rng, sound, folder):
    shutil.copytree(sound / rng.choice(["small", "small", "tiny", "lite"]), folder)
    file = folder / "bundle.json"
    change = mutations.json_text if rng.random() < 0.85 else mutations.bytes_of
    file.write_bytes(change(rng, file.read_bytes()))
    return bundle_words(rng, folder)


def npy_case(rng, sound, folder):
    folder.mkdir()
    stream = io.BytesIO()
    shape = rng.choice([(1, 3, 8, 8), (1, 3, 8, 8), (), (0,), (1, 3, 8, 9), (3, 8, 8), (1,) * 40])
    number, kind = rng.choice([0.5, np.nan, np.inf, 1e38]), rng.choice([np.float32, np.float64, np.int8, np.complex64])
    with np.errstate(invalid="ignore"):
        np.save(stream, np.full(shape[:32], number).astype(kind))
    (folder / "x.npy").write_bytes(mutations.bytes_of(rng, stream.getvalue()) if rng.random() < 0.8 else stream.getvalue())
    return ("run", sound / "small", "--repeat", "1", "--warmup", "0", "--input", folder / "x.npy")


def design_case(rng, sound, folder):
    folder.mkdir()
    (folder / "d.toml").write_bytes(mutations.toml_text(rng, DESIGN))
    words = ("branch", "tiny_resnet", "--device", "pixel6", "--weights", "none", *LOOSE, "--no-controls")
    return (*words, "--design", folder / "d.toml", "--out", folder / "bundle")


def profile_case(rng, sound, folder):
    folder.mkdir()
    profile = rng.choice(sorted(PROFILE_FOLDER.glob("*.toml")))
    (folder / "p.toml").write_bytes(mutations.toml_text(rng, profile.read_bytes()))
    return ("predict", "tiny_resnet", "--device", folder / "p.toml", *rng.choice([(), ("--json",), ("--kernels",)]))


def recipe_case(rng, sound, folder):
    folder.mkdir()
    recipe = rng.choice(sorted(recipe_folder().glob("*.toml")))
    (folder / "r.toml").write_bytes(mutations.toml_text(rng, recipe.read_bytes()))
    return ("recipe", folder / "r.toml")


def weights_case(rng, sound, folder):
    folder.mkdir()
    import torch
    from safetensors.torch import save

    from stretch.models.load import load_model

    tensors = load_model("tiny_resnet", weights="none").module.state_dict()
    name = rng.choice(sorted(key for key in tensors if tensors[key].ndim))
    changed = rng.choice([tensors[name] * float("nan"), tensors[name] - 9, tensors[name][:0], tensors[name].bool(), tensors[name].double()])
    path = folder / rng.choice(["w.safetensors", "w.pth"])
    if path.suffix == ".pth":
        torch.save(tensors | {name: rng.choice([changed, tensors[name].to_sparse(), tensors[name].to(torch.complex64), 3, "x"])}, path)
    else:
        path.write_bytes(save({key: value.contiguous() for key, value in (tensors | {name: changed}).items()}))
    if rng.random() < 0.5:
        path.write_bytes(mutations.bytes_of(rng, path.read_bytes()))
    return ("branch", "tiny_resnet", "--device", "pixel6", "--weights", path, *LOOSE, "--no-controls", "--out", folder / "bundle")


def tflite_case(rng, sound, folder):
    shutil.copytree(sound / "lite", folder)
    (folder / "model.tflite").write_bytes(mutations.bytes_of(rng, (folder / "model.tflite").read_bytes()))
    mutations.hashed(folder, "model.tflite")
    return ("verify", folder)


def pipe_case(rng, sound, folder):
    """Something that never ends in place of a file."""
    import os

    shutil.copytree(sound / "small", folder)
    path = folder / "endless.toml"
    if rng.random() < 0.5:
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    branch = ("branch", "tiny_resnet", "--weights", "none", *LOOSE, "--out", folder / "out")
    return rng.choice(
        [
            ("run", sound / "small", "--repeat", "1", "--input", path),
            (*branch, "--device", "pixel6", "--design", path),
            (*branch, "--device", path),
            ("recipe", path),
            (*branch[:3], path, *branch[4:], "--device", "pixel6"),
        ]
    )


CASES = {kind: globals()[f"{kind}_case"] for kind in COUNTS}


def judge(answer):
    """Why a command did not end as the contract says; empty if it did."""
    said = answer["out"] + answer["err"]
    if answer["escaped"]:
        return f"{answer['escaped']} {answer['err'][-500:]}"
    if "unexpected" in said or "Traceback" in said or "MemoryError" in said:
        return said[-600:]
    if answer["code"] not in (0, None, 1, 2, 3, 4, 5):
        return f"exit code {answer['code']}"
    sentences = answer["err"].count("\nerror: ") + answer["err"].startswith("error: ") + ('"error": ' in answer["out"])
    if answer["code"] and not sentences and "not fit to run" not in said and '"ok": false' not in said:
        return f"exit code {answer['code']} without a sentence: {said[-300:]}"
    return "" if sentences <= 1 else f"{sentences} sentences: {said[-300:]}"


def judged(child, sound, tmp_path, kind, numbers):
    """What the wrong files of a kind with these numbers did that they may not."""
    failures = {}
    for number in numbers:
        rng = mutations.chance(kind, number)
        folder = tmp_path / f"{kind}{number}"
        words = CASES[kind](rng, sound, folder)
        if problem := judge(child.ask(words)):
            failures[number] = (" ".join(Path(word).name if "/" in str(word) else str(word) for word in words), problem)
        shutil.rmtree(folder, ignore_errors=True)
    return failures


@pytest.mark.parametrize("kind", COUNTS)
def test_some_wrong_files_end_in_one_sentence(child, sound, tmp_path, kind):
    assert judged(child, sound, tmp_path, kind, range(SAMPLE)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("kind", COUNTS)
def test_every_wrong_file_of_the_corpus_ends_in_one_sentence(child, sound, tmp_path, kind):
    assert judged(child, sound, tmp_path, kind, range(COUNTS[kind])) == {}


def test_corpus_has_a_thousand_files_of_which_most_are_wrong(sound, tmp_path):
    assert sum(COUNTS.values()) >= 1000
    sources = {name: (sound / "small" / name).read_bytes() for name in ("stem.onnx", "bundle.json")}
    made = {mutations.onnx_model(mutations.chance("onnx", n), sources["stem.onnx"]) for n in range(100)}
    assert len(made - {sources["stem.onnx"]}) > 80
    readable = [content for content in made if _is_onnx(content)]
    assert len(readable) > 50, "most must be well formed, or only the parser is tested"


def _is_onnx(content):
    try:
        return bool(onnx.load_model_from_string(content).graph.node)
    except Exception:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("kind", COUNTS)
def test_wrong_file_ends_a_process_of_its_own_in_one_sentence(sound, tmp_path, kind):
    words = CASES[kind](mutations.chance(kind, "process"), sound, tmp_path / "case")
    if words[0] == "recipe":
        words = ("train", words[1], "--dry-run", "--out", tmp_path / "out")
    ended = spawn("", *words)
    answer = {"code": ended.code, "out": ended.out, "err": ended.err, "escaped": ""}
    assert judge(answer) == ""
