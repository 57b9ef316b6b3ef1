"""Convert exceptions to one sentence, a hint and an exit code."""

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Callable

import typer

from predictors.errors import InfeasibleError, MissingBackendError, StretchError, UsageError, install_line
from predictors.files import readable
from stretch.cli.interrupt import GRACE_S, interruptible
from stretch.cli.output import print_json, printable
from stretch.cli.start import INTERRUPTED, started
from stretch.plugins import culprit

#: Environment variable with the file that the first failed process of a distributed run creates; `stretch train --gpus` sets it.
SPEAKER_VARIABLE = "NN_STRETCH_SPEAKER"

#: Time that other failed processes wait for the first process's message, s, in a distributed run without this variable.
_FIRST_FAILURE_WAIT_S = 3.0

#: Packages that may be missing, with the extra that installs them ("" for the base install).
EXTRAS = {
    "torch": "torch",
    "torchvision": "torch",
    "timm": "torch",
    "safetensors": "torch",
    "pyopencl": "opencl",
    "scipy": "fit",
    "sklearn": "fit",
    "ai_edge_litert": "litert",
    "onnxruntime_qnn": "qnn",
    "onnxruntime": "",
    "onnx": "",
}


def guard(
    action: Callable[[], object], *, as_json: bool, debug: bool, usage_hint: Callable[[typer.TyperException], str], grace_s: float = GRACE_S
) -> int:
    """Run an action and return the exit code of the command line; print failures."""
    try:
        started()
        with interruptible(lambda: _exit_message(as_json=as_json), grace_s):
            code = action()
    except Exception as error:
        failure = explain(error, usage_hint)
        if debug:
            traceback.print_exc()
        if _reports_failure():
            print_failure(failure, as_json=as_json)
        return failure.exit_code
    except KeyboardInterrupt:
        code = INTERRUPTED
    if code == INTERRUPTED and not _later_process():
        print_failure(StretchError("interrupted"), as_json=as_json)
    return code if isinstance(code, int) else 0


def _exit_message(*, as_json: bool) -> int:
    """Print the failure of a hanging main thread, a delegate's timeout or an interrupt, and return the exit code."""
    from scheduler.runtime.watchdog import last_hang

    failure = last_hang()
    print_failure(failure or StretchError("interrupted"), as_json=as_json)
    return INTERRUPTED if failure is None else failure.exit_code


def _reports_failure() -> bool:
    """Return whether this process reports the failure: only the first failed process of a distributed run does."""
    claim = os.environ.get(SPEAKER_VARIABLE)
    if claim is None:
        if _later_process():
            # the end of the first process ends the others
            time.sleep(_FIRST_FAILURE_WAIT_S)
        return True
    try:
        os.close(os.open(claim, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    except OSError as error:
        # report the failure if the folder is missing or full
        return not isinstance(error, FileExistsError)
    return True


def _later_process() -> bool:
    """Return whether this is a process of a distributed run other than the first."""
    return os.environ.get("RANK", "0") != "0"


def explain(error: Exception, usage_hint: Callable[[typer.TyperException], str]) -> StretchError:
    """Return the failure to print for any exception."""
    first = (str(error).splitlines() or [""])[0]
    description = f"{type(error).__name__}: {first}" if first else type(error).__name__
    match error:
        case StretchError():
            return error
        case _ if not isinstance(error, typer.TyperException) and (whose := culprit(error)) is not None:
            return StretchError(f"{whose} failed: {description}", "report it to its authors, with the traceback that --debug shows")
        case typer.TyperException():
            return UsageError(_usage_message(error), usage_hint(error))
        case ModuleNotFoundError() if (package := (error.name or "").partition(".")[0]) in EXTRAS:
            extra = EXTRAS[package]
            line = install_line(extra) if extra else f"pip install {package}"
            return MissingBackendError(f"this needs the package `{package}`, which is not installed", line)
        case OSError(strerror=str(reason)):
            return StretchError(f"{error.filename}: {reason}" if error.filename else reason)
        case _:
            return StretchError(
                f"unexpected {description}", "this is a fault of nn-stretch or of a package it uses; run with --debug for the traceback"
            )


def print_failure(failure: StretchError, *, as_json: bool) -> None:
    """Print a failure: lines on stderr, or one JSON object on stdout."""
    message, hint = printable(readable(failure.message)), printable(readable(failure.hint or ""))
    # a broken pipe means that nobody reads the output any more
    with contextlib.suppress(BrokenPipeError):
        if as_json:
            rules = [rule._asdict() for rule in failure.rules] if isinstance(failure, InfeasibleError) else []
            print_json({"error": message, "hint": hint or None} | ({"rules": rules} if rules else {}), sys.stdout)
        else:
            sys.stderr.write(f"error: {message}\n" + (f"\nhint: {hint}\n" if hint else ""))
            sys.stderr.flush()


def _usage_message(error: typer.TyperException) -> str:
    """Return the parser's message on a wrong command line as one sentence."""
    text = error.format_message() if hasattr(error, "format_message") else str(error)
    text = " ".join(text.split()).rstrip(".").replace("Value error, ", "") or "the command line is not complete"
    return text[0].lower() + text[1:]
