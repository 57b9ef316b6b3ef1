"""Damaged files of every kind, reproducible by kind and number, the commands that read them, and a check of how the commands end."""

import io
import json
import os
import shutil
from pathlib import Path

import numpy as np
import onnx

from predictors.devices import PROFILE_FOLDER
from stretch.train.recipe import recipe_folder
from tests.corpus import mutations
from tests.scheduler.bundles import two_branches
from tests.stretch.cli.commands import LOOSE, perform

#: Number of damaged files of each kind.
COUNTS = {"onnx": 500, "manifest": 400, "repeated": 60, "outside": 120, "npy": 110, "design": 60, "profile": 300, "recipe": 300}
COUNTS |= {"weights": 24, "tflite": 180, "model_onnx": 120, "model_tflite": 80, "pipe": 8}

DESIGN = b"""
version = 1
model = "tiny_resnet"
[[segments]]
name = "s1"
join = "project"
branches = [{ processor = "cpu", depth = 1, width = 8 }, { processor = "gpu", depth = 1, width = 8 }]
"""


def sound_files(top, tiny):
    """Write valid files of every kind, from which the damaged files are made."""
    from tests.stretch.network.models.onnx.oracle import random
    from tests.stretch.network.models.tflite.files import op, write

    small = two_branches(top / "small")
    shutil.copytree(tiny, top / "tiny")
    lite = perform("export", small, "--format", "tflite", "--out", top / "lite")
    assert lite.code == 0, lite.err
    settings = {"stride_h": 1, "stride_w": 1}
    operators = [op("CONV_2D", ["x", "a", "b"], ["c"], **settings), op("RELU", ["c"], ["r"])]
    operators.append(op("CONV_2D", ["r", "d", "b"], ["y"], **settings))
    write(top / "net.tflite", *operators, stored={"a": random((6, 3, 3, 4), 1), "d": random((6, 3, 3, 6), 3), "b": random((6,), 2)})
    return top


def onnx_case(rng, sound, folder):
    """A damaged ONNX file of a bundle, with an updated hash so that its content is read."""
    shutil.copytree(sound / rng.choice(["small", "small", "tiny"]), folder)
    name = rng.choice([name for name in json.loads((folder / "bundle.json").read_text())["files"] if name.endswith(".onnx")])
    (folder / name).write_bytes(mutations.onnx_model(rng, (folder / name).read_bytes()))
    mutations.hashed(folder, name)
    return bundle_command(rng, folder)


def bundle_command(rng, folder):
    explain, run = ("explain", folder), ("run", folder, "--repeat", "1", "--warmup", "0")
    commands = [("verify", folder), ("verify", folder, "--json"), explain, (*explain, "--device", "pixel6", "--json"), run]
    return rng.choice([*commands, (*run, "--trace", folder / "trace.json")])


def manifest_case(rng, sound, folder):
    shutil.copytree(sound / rng.choice(["small", "small", "tiny", "lite"]), folder)
    file = folder / "bundle.json"
    change = mutations.json_text if rng.random() < 0.85 else mutations.bytes_of
    file.write_bytes(change(rng, file.read_bytes()))
    return bundle_command(rng, folder)


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
    arguments = ("branch", "tiny_resnet", "--device", "pixel6", "--weights", "none", *LOOSE, "--set", "controls=false")
    return (*arguments, "--design", folder / "d.toml", "--out", folder / "bundle")


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

    from stretch.network.models.load import load_model

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
    return ("branch", "tiny_resnet", "--device", "pixel6", "--weights", path, *LOOSE, "--set", "controls=false", "--out", folder / "bundle")


def tflite_case(rng, sound, folder):
    shutil.copytree(sound / "lite", folder)
    (folder / "model.tflite").write_bytes(mutations.flatbuffer(rng, (folder / "model.tflite").read_bytes()))
    mutations.hashed(folder, "model.tflite")
    return ("verify", folder)


def pipe_case(rng, sound, folder):
    """A pipe or device that never ends in place of a file."""
    shutil.copytree(sound / "small", folder)
    path = folder / "endless.toml"
    if rng.random() < 0.5:
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    branch = ("branch", "tiny_resnet", "--weights", "none", *LOOSE, "--out", folder / "out")
    commands = [("run", sound / "small", "--repeat", "1", "--input", path), (*branch, "--device", "pixel6", "--design", path)]
    commands += [(*branch, "--device", path), ("recipe", path), (*branch[:3], path, *branch[4:], "--device", "pixel6")]
    return rng.choice(commands)


def repeated_case(rng, sound, folder):
    """A manifest in which one key occurs twice, which JSON readers interpret differently."""
    shutil.copytree(sound / rng.choice(["small", "tiny"]), folder)
    file = folder / "bundle.json"
    file.write_bytes(mutations.keys_repeated(rng, file.read_bytes()))
    return bundle_command(rng, folder)


def outside_case(rng, sound, folder):
    """A bundle with paths out of its folder: in file names, links or external weights."""
    shutil.copytree(sound / rng.choice(["small", "tiny"]), folder)
    secret = folder.parent / "forbidden" / "secret.onnx"
    file = folder / "bundle.json"
    manifest = json.loads(file.read_bytes())
    name = rng.choice([name for name in manifest["files"] if name.endswith(".onnx")])
    out = f"../{secret.parent.name}/{secret.name}"
    options = [out, str(secret), f"x/../{out}", "a\\..\\b", "c:/x", "./" + name]
    choice = rng.randrange(5)
    if choice == 0:
        # every occurrence of the name
        file.write_text(json.dumps(manifest).replace(json.dumps(name), json.dumps(rng.choice(options))))
    elif choice == 1:
        (folder / name).unlink()
        target = rng.choice([secret, Path("../forbidden/secret.onnx"), Path(name), folder, "/dev/zero", "/proc/self/mem"])
        (folder / name).symlink_to(target)
    elif choice == 2:
        inner = folder / rng.choice([str(Path(name).parent), "."])
        shutil.rmtree(inner)
        inner.symlink_to(rng.choice([secret.parent, sound / "small", inner]))
    elif choice == 3:
        (folder / name).write_bytes(mutations.kept_elsewhere(rng, (folder / name).read_bytes(), [*options, "bundle.json"]))
        mutations.hashed(folder, name)
    else:
        manifest["files"][rng.choice(options)] = manifest["files"][name]
        file.write_text(json.dumps(manifest))
    arguments = bundle_command(rng, folder)
    return rng.choice([arguments, arguments, ("export", folder, "--format", "onnx", "--out", folder.parent / f"{folder.name}.out")])


def model_onnx_case(rng, sound, folder):
    """A damaged ONNX model as input of `branch` or `predict`."""
    folder.mkdir()
    source = onnx.load(sound / rng.choice(["small/model.onnx", "tiny/original.onnx"]))
    (folder / "m.onnx").write_bytes(mutations.onnx_model(rng, source.SerializeToString()))
    return model_command(rng, folder / "m.onnx", folder)


def model_tflite_case(rng, sound, folder):
    """A damaged TFLite model as input of `branch` or `predict`: bytes, and offsets between tables."""
    folder.mkdir()
    source = (sound / "net.tflite").read_bytes()
    (folder / "m.tflite").write_bytes(mutations.flatbuffer(rng, source))
    return model_command(rng, folder / "m.tflite", folder)


def model_command(rng, path, folder):
    predict = ("predict", path, "--device", "pixel6")
    branch = ("branch", path, "--device", "pixel6", *LOOSE, "--set", "controls=false", "--out", folder / "bundle")
    return rng.choice([predict, (*predict, "--json"), ("list", "models", path, "--details"), branch])


def tree_of(folder):
    """Names and contents of the files below a folder, without following links."""
    return {str(path): path.read_bytes() if path.is_file() and not path.is_symlink() else b"" for path in sorted(folder.rglob("*"))}


def made(kind, number, sound, top):
    """A damaged file in its own folder, next to files that no command may change."""
    rng = mutations.chance(kind, number)
    top.mkdir(parents=True, exist_ok=True)
    forbidden = top / "forbidden"
    shutil.rmtree(forbidden, ignore_errors=True)
    forbidden.mkdir()
    (forbidden / "secret.onnx").write_bytes((sound / "small" / "stem.onnx").read_bytes())
    folder = top / f"{kind}{number}"
    arguments = CASES[kind](rng, sound, folder)
    before = tree_of(forbidden), sorted(top.iterdir())

    def written_outside():
        current = {folder, top / f"{folder.name}.out"}
        after = tree_of(forbidden), sorted(set(top.iterdir()) - (current - set(before[1])))
        return "" if after == before else f"it wrote outside: {sorted(map(str, set(after[1]) ^ set(before[1]))) or forbidden}"

    return arguments, written_outside


CASES = {kind: globals()[f"{kind}_case"] for kind in COUNTS}


def judge(answer):
    """How a command's end differs from the documented one; empty if it does not."""
    output = answer["out"] + answer["err"]
    if answer["escaped"]:
        return f"{answer['escaped']} {answer['err'][-500:]}"
    if "unexpected" in output or "Traceback" in output or "MemoryError" in output:
        return output[-600:]
    if answer["code"] not in (0, None, 1, 2, 3, 4, 5):
        return f"exit code {answer['code']}"
    sentences = answer["err"].count("\nerror: ") + answer["err"].startswith("error: ") + ('"error": ' in answer["out"])
    if answer["code"] and not sentences and "not fit to run" not in output and '"ok": false' not in output:
        return f"exit code {answer['code']} without a sentence: {output[-300:]}"
    return "" if sentences <= 1 else f"{sentences} sentences: {output[-300:]}"
