"""Every kind of exception ends as a sentence, a hint and the right exit code."""

import errno
import json

import pytest

from predictors.errors import InfeasibleError, MissingBackendError, StretchError, UnknownNameError, UsageError
from predictors.install import install_line
from stretch.cli.failures import SPEAKER_VARIABLE, guard


def outcome(capsys, error=None, *, as_json=False, debug=False, result=None):
    """Exit code, stdout and stderr where the action raises `error` or returns `result`."""

    def action():
        if error is not None:
            raise error
        return result

    code = guard(action, as_json=as_json, debug=debug, usage_hint=lambda _: "see the help")
    return code, *capsys.readouterr()


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StretchError("it broke"), 1),
        (UsageError("it broke"), 2),
        (UnknownNameError("it broke"), 3),
        (InfeasibleError("it broke"), 4),
        (MissingBackendError("it broke"), 5),
    ],
)
def test_own_error_gives_its_sentence_and_exit_code(capsys, error, code):
    assert outcome(capsys, error) == (code, "", "error: it broke\n")


def test_json_failure_is_one_object_with_error_and_hint(capsys):
    code, out, err = outcome(capsys, UnknownNameError.among("device", "pixel7", ["pixel6", "mi9"]), as_json=True)
    assert (code, err) == (3, "")
    assert json.loads(out) == {"schema": 1, "version": "0.1.0", "error": "unknown device `pixel7`", "hint": "did you mean `pixel6`?"}


@pytest.mark.parametrize(
    ("package", "line"),
    [("torch", install_line("torch")), ("pyopencl", install_line("opencl")), ("onnxruntime", "pip install onnxruntime")],
)
def test_missing_package_gives_the_install_line(capsys, package, line):
    code, _, err = outcome(capsys, ModuleNotFoundError(f"No module named '{package}.x'", name=f"{package}.x"))
    assert code == 5
    assert f"`{package}`" in err
    assert f"hint: {line}\n" in err


def test_system_error_gives_its_file_and_reason(capsys):
    code, _, err = outcome(capsys, OSError(errno.ENOSPC, "No space left on device", "runs/x"))
    assert (code, err) == (1, "error: runs/x: No space left on device\n")


def test_unexpected_exception_is_one_sentence_without_traceback(capsys):
    code, _, err = outcome(capsys, RuntimeError("first line\nsecond line"))
    assert code == 1
    assert err.startswith("error: unexpected RuntimeError: first line\n\nhint: ")
    assert "--debug" in err
    assert "Traceback" not in err
    assert "second line" not in err


def test_debug_shows_the_traceback_and_keeps_the_exit_code(capsys):
    code, _, err = outcome(capsys, UnknownNameError("it broke"), debug=True)
    assert code == 3
    assert "Traceback" in err
    assert err.endswith("error: it broke\n")


@pytest.mark.parametrize("as_json", [False, True])
def test_interrupt_exits_with_130(capsys, as_json):
    code, out, err = outcome(capsys, KeyboardInterrupt(), as_json=as_json)
    assert code == 130
    assert "interrupted" in (out if as_json else err)


def test_control_characters_of_a_name_do_not_reach_the_terminal(capsys):
    _, _, err = outcome(capsys, StretchError("unknown model `\x1b[31mred`"))
    assert err == "error: unknown model `\\x1b[31mred`\n"


def test_of_many_processes_that_fail_alike_the_first_alone_says_so(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv(SPEAKER_VARIABLE, str(tmp_path / "failed"))
    failed = [outcome(capsys, StretchError("it broke")) for _ in range(3)]
    assert failed == [(1, "", "error: it broke\n"), (1, "", ""), (1, "", "")]


def test_later_process_of_many_leaves_an_interruption_to_the_first(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert outcome(capsys, KeyboardInterrupt()) == (130, "", "")
    monkeypatch.setenv("RANK", "0")
    assert outcome(capsys, KeyboardInterrupt()) == (130, "", "error: interrupted\n")
