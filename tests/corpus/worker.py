"""A process with limited memory that runs command lines one after another and reports how each ended."""

import contextlib
import faulthandler
import io
import json
import os
import resource
import sys
import warnings

#: Address space that a command may add to that of the imported packages, in bytes.
MEMORY = 1 << 30


def warm():
    """Import and run the packages that commands use, so that the memory limit counts only later allocations."""
    import ai_edge_litert.interpreter  # noqa: F401
    import onnxruntime  # noqa: F401
    import torch

    from stretch.cli import app

    device = ["--device", "pixel6"]
    for arguments in (["verify", sys.argv[1]], ["predict", "tiny_resnet", *device], ["explain", sys.argv[1], *device]):
        run(app, arguments)
    torch.set_num_threads(1)
    return app


def run(app, arguments):
    """Run one command and return its exit code, standard output, standard error and uncaught exception."""
    out, err, escaped, code = io.StringIO(), io.StringIO(), "", None
    # Warnings of packages are no output of the command.
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(action="ignore"):
        try:
            if arguments[0] == "recipe":
                recipe(arguments[1])
            app([str(argument) for argument in arguments])
        except SystemExit as stop:
            code = stop.code
        except BaseException as error:
            escaped = f"{type(error).__name__}: {error}"
    return {"code": code, "out": out.getvalue(), "err": err.getvalue(), "escaped": escaped}


def recipe(path):
    """Read a recipe as `train` does, without training; ends as the command line would."""
    from pathlib import Path

    from stretch.cli.failures import guard
    from stretch.train.recipe import load_recipe, recipe_to_toml

    raise SystemExit(guard(lambda: recipe_to_toml(load_recipe(Path(path))) and None, as_json=False, debug=False, usage_hint=str))


def used():
    """Address space of this process in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main():
    """Read the arguments of one command per line, in JSON, and write one line with its outcome."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    faulthandler.enable()
    app = warm()
    started = used()
    resource.setrlimit(resource.RLIMIT_AS, (started + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        outcome = run(app, json.loads(line))
        print(json.dumps(outcome | {"grown": used() - started > MEMORY // 2}), file=answers, flush=True)


if __name__ == "__main__":
    main()
