"""A process that runs command lines one after another, with a limit to its memory, and says how each ended."""

import contextlib
import faulthandler
import io
import json
import os
import resource
import sys
import warnings

#: Resources of a command in addition to those of the packages' start.
MEMORY = 1 << 30


def warm():
    """Import and start what commands use, so that only they count from now on."""
    import ai_edge_litert.interpreter  # noqa: F401
    import onnxruntime  # noqa: F401
    import torch

    from stretch.cli import app

    device = ["--device", "pixel6"]
    for words in (["verify", sys.argv[1]], ["predict", "tiny_resnet", *device], ["explain", sys.argv[1], *device]):
        run(app, words)
    torch.set_num_threads(1)
    return app


def run(app, words):
    """How one command ended: exit code, what it said, and what escaped."""
    out, err, escaped, code = io.StringIO(), io.StringIO(), "", None
    # Whatever a package warns of is none of a command's words.
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings(action="ignore"):
        try:
            if words[0] == "recipe":
                recipe(words[1])
            app([str(word) for word in words])
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
    """Address space of this process, bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main():
    """Answer one line for each line: the words of a command in JSON, and how it ended."""
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
