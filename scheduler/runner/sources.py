"""The folder that a runner is built from: C++ sources, the plan of one bundle, and the bundle's TFLite file."""

import hashlib
import os
import shutil
import tempfile
from importlib.resources import files
from pathlib import Path

from predictors.errors import StretchError
from scheduler.bundle.load import Bundle
from scheduler.bundle.tflite_file import check_belongs, parse_tflite
from scheduler.runner.header import plan_header

#: Names of what is written beside the sources.
PLAN, MODEL = "plan.h", "model.tflite"


def source_names() -> list[str]:
    """Files of the runner that are the same for every bundle."""
    return sorted(
        source.name for source in files("scheduler.runner").joinpath("cpp").iterdir() if source.name.endswith((".h", ".cpp", ".txt"))
    )


def write_runner(bundle: Bundle, out: Path) -> list[str]:
    """Write a folder that CMake builds a runner of one bundle in.

    Args:
        out: The folder, which must not exist yet.

    Returns:
        Names of the files in it.
    """
    if out.exists():
        raise StretchError(f"{out} exists already", "choose a new folder with --out")
    content = tflite_content(bundle)
    header = plan_header(content, bundle.path / str(bundle.manifest.tflite))
    sources = files("scheduler.runner").joinpath("cpp")
    names = source_names()
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
            partial = Path(folder) / out.name
            partial.mkdir()
            for name in names:
                (partial / name).write_bytes(sources.joinpath(name).read_bytes())
            (partial / PLAN).write_text(header)
            (partial / MODEL).write_bytes(content)
            os.replace(partial, out)
    except (OSError, shutil.Error) as error:
        raise StretchError(f"cannot write {out}: {getattr(error, 'strerror', error)}", "choose a writable folder with --out") from error
    return sorted([*names, PLAN, MODEL])


def tflite_content(bundle: Bundle) -> bytes:
    """The bundle's TFLite file, checked."""
    name = bundle.manifest.tflite
    if name is None:
        raise StretchError(
            f"{bundle.path} has no TFLite file", f"write one with `stretch export {bundle.path} --format tflite --out NEW_BUNDLE`"
        )
    path = bundle.file(name)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StretchError(f"cannot read {path}: {error.strerror}") from error
    if hashlib.sha256(content).hexdigest() != bundle.manifest.files[name].sha256:
        raise StretchError(f"{path} was changed after the bundle was written: its SHA-256 differs", "write the bundle again")
    check_belongs(parse_tflite(content, path), bundle.manifest)
    return content
