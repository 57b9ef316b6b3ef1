"""Bundles with TFLite files, and C++ runners that are built from them."""

import importlib.util
import subprocess
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from scheduler.bundle.load import load_bundle
from scheduler.tools.runner.sources import write_runner
from stretch.export.quantize.images import synthetic_images
from stretch.export.tflite import export_tflite


def exported(folder, make, precision=None):
    """Export the bundle that `make` writes with a TFLite file."""
    floats = load_bundle(make(folder / "floats"))
    images = synthetic_images(floats.manifest.model.input_shape, 8)
    export_tflite(floats, folder / "bundle", images, "synthetic", precision=precision)
    return load_bundle(folder / "bundle", check_hashes=True)


#: Options of every run: few repetitions and a time limit.
QUICK = ("--repeat", "3", "--warmup", "1", "--time-limit", "120")


def litert_library():
    return Path(importlib.util.find_spec("ai_edge_litert").origin).parent / "libLiteRt.so"


@dataclass
class Ran:
    """A finished run: exit code, standard output and error, and the folder of its results."""

    code: int
    out: str
    err: str
    folder: Path

    def outputs(self):
        return [np.load(path) for path in sorted(self.folder.glob("output_*.npy"))]

    def json(self, name):
        return msgspec.json.decode((self.folder / name).read_bytes())

    def spans(self):
        """Start, end and queue of each step, by inference and name."""
        result = {}
        for event in self.json("trace.json")["traceEvents"]:
            if event["ph"] == "X":
                details = event["args"]
                result.setdefault(details["inference"], {})[event["name"]] = (event["ts"], event["ts"] + event["dur"], details["queue"])
        return result


@dataclass
class Built:
    program: Path
    model: Path

    def run(self, out, *options, inputs=(), model=None):
        arguments = [part for path in inputs for part in ("--input", str(path))]
        command = [str(self.program), str(model or self.model), "--out", str(out), *QUICK, *arguments, *options]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=300)
        return Ran(ended.returncode, ended.stdout, ended.stderr, out)


def build(bundle, folder, *options):
    """Build a bundle's runner with CMake; every warning is an error."""
    write_runner(bundle, folder / "source")
    tree = folder / "tree"
    _call("cmake", "-S", folder / "source", "-B", tree, f"-DLITERT_LIBRARY={litert_library()}", *options)
    _call("cmake", "--build", tree)
    return Built(tree / "runner", folder / "source" / "model.tflite")


def again(bundle, built, folder):
    """Build a runner of another bundle from existing object files: only main.cpp, which includes plan.h, is compiled."""
    write_runner(bundle, folder / "source")
    objects = [path for path in (built.program.parent / "CMakeFiles" / "runner.dir").glob("*.o") if path.name != "main.cpp.o"]
    library = litert_library()
    command = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", folder / "source" / "main.cpp", *objects]
    _call(*command, library, f"-Wl,-rpath,{library.parent}", "-pthread", "-o", folder / "runner")
    return Built(folder / "runner", folder / "source" / "model.tflite")


def _call(*command):
    ended = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
