"""What becomes of other people's model files: `python -m experiments.foreign_files.run all|record [NAME …]`.

``all`` downloads each file's package, takes it through the whole command line, each command in a process of its own,
and goes on where it was interrupted; ``record`` writes what came.
"""

import argparse
import io
import json
import multiprocessing
import os
import re
import shutil
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from experiments.foreign_files.files import FILES, File, bring
from experiments.records import Value, this_commit, write_record
from predictors.errors import StretchError
from scheduler.bundle.manifest import SourceFile, SourceTensor

HERE = Path(__file__).parent
DEVICE, DEVICES = "rk3588", "rk3588,mi9"
#: Seconds that a command may take.
LIMIT = 300
#: Largest difference from the file, relative to the largest output, that counts as equal.
EQUAL = 1e-5
#: Exit code of `branch` where nothing divides the network exactly.
NO_DESIGN = 4
STEPS = ("predict", "advise", "branch", "run", "explain", "verify", "export")


def commands(file: File, path: Path, bundle: Path) -> dict[str, list[str]]:
    """The words of each command."""
    sizes = [word for size in file.sizes for word in ("--input", size)]
    return {
        "predict": [str(path), "--device", DEVICE, *sizes],
        "advise": [str(path), "--device", DEVICES, *sizes],
        "branch": [str(path), "--device", DEVICE, "--processors", "cpu,gpu", "--lossless", "--out", str(bundle), *sizes],
        "run": [str(bundle), "--repeat", "3", "--warmup", "1"],
        "explain": [str(bundle)],
        "verify": [str(bundle)],
        "export": [str(bundle), "--as", "tflite", "--out", f"{bundle}.tflite"],
    }


def try_file(file: File, folder: Path) -> dict[str, Any]:
    """What came of each command, and how far the bundle is from the file."""
    commit = this_commit()
    row: dict[str, Any] = {"file": file.name, "load": os.getloadavg()[0], "commit": commit.hash[:8] if commit else ""}
    try:
        path = bring(file, folder)
    except StretchError as error:
        return row | {"failed": str(error)}
    bundle = folder / "bundles" / path.stem
    for place in (bundle, Path(f"{bundle}.tflite")):
        shutil.rmtree(place, ignore_errors=True)
    for verb, words in commands(file, path, bundle).items():
        if verb in STEPS[3:] and not (bundle / "bundle.json").exists():
            continue
        row[verb] = _apart(_command, [verb, *words, "--json", "--quiet"])
        if verb == "branch" and row[verb]["code"] == NO_DESIGN:
            row[verb] = _apart(_command, [verb, *(word for word in words if word != "--lossless"), "--json", "--quiet"]) | {"kind": "any"}
    if (bundle / "bundle.json").exists():
        row["distance"] = _apart(_distance, [str(path), str(bundle)])
    return row | {"bytes": path.stat().st_size}


def _apart(work: Any, words: Sequence[str]) -> dict[str, Any]:
    """What a function answers in a process of its own."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "onnxruntime", "onnx", "stretch.api", "scheduler.runtime.session", "stretch.cli"])
    answers = context.SimpleQueue()
    process = context.Process(target=work, args=(list(words), answers))
    start = time.monotonic()
    process.start()
    process.join(LIMIT)
    if process.is_alive():
        process.kill()
        process.join()
        return {"code": -1, "error": f"more than {LIMIT} s"}
    answer = {"code": process.exitcode, "error": "the process ended"} if answers.empty() else answers.get()
    return answer | {"s": round(time.monotonic() - start, 1)}


def _command(words: list[str], answers: Any) -> None:
    from stretch.cli import app

    out, code = io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(io.StringIO()):
        try:
            app(words)
        except SystemExit as end:
            code = int(end.code or 0)
    try:
        said = json.loads(out.getvalue())
    except ValueError:
        said = {"error": out.getvalue()[-300:]}
    answers.put({"code": code, "error": said.get("error"), "hint": said.get("hint")})


def _distance(words: list[str], answers: Any) -> None:
    """The largest difference between the bundle and the user's file in its own runtime, over the largest output, on three inputs."""
    from scheduler.runtime.session import Session

    path, worst = Path(words[0]), 0.0
    with Session(words[1], {"gpu": "cpu"}) as session:
        manifest = session.bundle.manifest
        ends = manifest.own or _plain_ends(path, manifest)
        for seed in range(3):
            drawn = [_draw(np.random.default_rng([seed, at]), end) for at, end in enumerate(ends.inputs)]
            want = _run_file(path, {end.name: array for end, array in zip(ends.inputs, drawn, strict=True)})
            given = {end.tensor: _turn(array, end) for end, array in zip(ends.inputs, drawn, strict=True) if end.tensor}
            got = session(given if len(given) > 1 else next(iter(given.values())))
            results = dict(zip(manifest.outputs, got.values() if isinstance(got, dict) else [got], strict=True))
            for end, array in zip(ends.outputs, want, strict=True):
                if end.tensor:
                    right, result = _turn(array, end), np.asarray(results[end.tensor], np.float64)
                    worst = max(worst, float(np.abs(right - result).max() / max(np.abs(right).max(), 1e-12)))
    answers.put({"code": 0, "distance": worst, "exact": ends.exact})


def _plain_ends(path: Path, manifest: Any) -> Any:
    """The ends of a file that its bundle does not hold: those of an ONNX file, in order, with the bundle's shapes."""
    import onnxruntime

    runtime, shapes = onnxruntime.InferenceSession(str(path)), {tensor.name: tensor.shape for tensor in manifest.tensors}
    sides = ((manifest.inputs, runtime.get_inputs()), (manifest.outputs, runtime.get_outputs()))
    ends = [[SourceTensor(end.name, name, shapes[name]) for name, end in zip(names, there, strict=True)] for names, there in sides]
    return SourceFile(tuple(ends[0]), tuple(ends[1]))


def _draw(random: np.random.Generator, end: Any) -> Any:
    kind = np.dtype(end.dtype)
    whole = kind.kind in "iu" and end.scale is None
    return (
        random.integers(0, 2, end.shape)
        if whole
        else random.integers(-99, 99, end.shape)
        if kind.kind in "iu"
        else random.normal(size=end.shape)
    ).astype(kind)


def _turn(array: Any, end: Any) -> Any:
    """A tensor of the file as the bundle has it."""
    reals = (array.astype(np.float32) - end.zero_point) * end.scale if end.scale is not None else array
    return np.ascontiguousarray(reals.transpose(np.argsort(end.order)) if end.order else reals)


def _run_file(path: Path, inputs: dict[str, Any]) -> list[Any]:
    """All outputs of a user's file, in its order."""
    if path.suffix == ".onnx":
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        return list(onnxruntime.InferenceSession(str(path), options).run(None, inputs))
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    # the reference kernels: delegates round otherwise
    runtime = Interpreter(str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES)
    for name, array in inputs.items():
        runtime.resize_tensor_input(int(name), array.shape)
    runtime.allocate_tensors()
    for name, array in inputs.items():
        runtime.set_tensor(int(name), array)
    runtime.invoke()
    return [runtime.get_tensor(item["index"]) for item in runtime.get_output_details()]


def word(answer: dict[str, Any] | None) -> str:
    """What came of a command: ok, refused, fault, too long, or nothing where it was not reached."""
    if answer is None:
        return ""
    if answer["code"] == 0:
        return "not exact" if "kind" in answer else "ok"
    said = str(answer["error"])
    return (
        "too long"
        if answer["code"] < 0
        else "fault"
        if "unexpected" in said or "ended" in said or "as nn-stretch writes" in said
        else "refused"
    )


def told(file: File, row: dict[str, Any]) -> dict[str, Value]:
    """A file's row of the record."""
    words = {verb: word(row.get(verb)) for verb in STEPS}
    failed = next((row[verb]["error"] for verb in STEPS if words[verb] not in ("", "ok", "not exact")), row.get("failed"))
    distance = row.get("distance", {}).get("distance")
    kept = "" if failed is None else re.sub(r"[^\s`]*/[^/\s`]*\.(onnx|tflite)", "the file", str(failed)).replace("|", "/")[:200]
    start = {"file": file.name, "kind": file.kind, "package": file.package, "megabytes": round(row.get("bytes", 0) / 1e6, 2)}
    return start | words | {"differs by": distance, "what was refused": kept, "commit": row["commit"]}


def record(folder: Path) -> None:
    """Write what came of the files that were tried."""
    tried = [(file, json.loads((folder / f"{file.name}.json").read_text())) for file in FILES if (folder / f"{file.name}.json").exists()]
    rows = [told(file, row) for file, row in tried]
    outcomes = ("ok", "not exact", "refused", "fault", "too long")
    counts = [{"command": verb} | {name: sum(row[verb] == name for row in rows) for name in outcomes} for verb in STEPS]
    apart = [row["differs by"] for row in rows if isinstance(row["differs by"], float)]
    near = {"files": len(rows), "bundles compared": len(apart), "equal": sum(x <= EQUAL for x in apart), "furthest": max(apart)}
    write_record(
        HERE / "results" / "files.json",
        {"files": rows, "commands": counts, "equal": [near]},
        source="measured",
        command="python -m experiments.foreign_files.run all && python -m experiments.foreign_files.run record",
        runs=1,
        load=max(row["load"] for _, row in tried),
        notes=[
            f"`predict` and `branch` for {DEVICE}, `advise` for {DEVICES}; `branch --lossless --processors cpu,gpu`, and where that finds no "
            "design without `--lossless` (not exact); `export --as tflite`; each command in a process of its own for at most "
            f"{LIMIT} s on a shared machine",
            "differs by: the largest difference between the bundle and the file itself in ONNX Runtime or LiteRT, over the largest output, on three inputs",
            "a row names the commit that it was tried at; empty cells were not reached or not measured",
        ],
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["all", "record"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--out", type=Path, default=Path("runs/foreign_files"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    if arguments.what == "record":
        record(arguments.out)
        sys.exit()
    for item in FILES:
        target = arguments.out / f"{item.name}.json"
        if not target.exists() and (not arguments.names or item.name in arguments.names):
            target.write_text(json.dumps(try_file(item, arguments.out), indent=1))
