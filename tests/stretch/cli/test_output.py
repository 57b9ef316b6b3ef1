"""Output of verbs, their streams and reports, and the end of a verb for each kind of exception."""

import errno
import inspect
import io
import json
import os
import pty
import re
import subprocess
import sys
import warnings
from pathlib import Path

import msgspec
import numpy as np
import pytest
from rich.table import Table

from predictors.errors import InfeasibleError, MissingBackendError, StretchError, UnknownNameError, UsageError, install_line
from stretch.cli.failures import SPEAKER_VARIABLE, guard
from stretch.cli.options import verb_command
from stretch.cli.output import Output, make_console, print_json
from tests.stretch.cli.commands import LOOSE, call, succeed
from tests.stretch.report.html.reading import checked


class Result(msgspec.Struct, kw_only=True):
    bundle: Path
    ms: float
    cores: tuple[int, ...]
    inner: "Result | None" = None


def test_result_is_printed_as_one_object_of_its_fields_in_their_order(capsys):
    inner = Result(bundle=Path("b"), ms=np.float32(0.5), cores=())
    result = Result(bundle=Path("runs/x"), ms=np.float64(1.5), cores=(0, 1), inner=inner)
    Output(as_json=True).emit(result, lambda console: console.print("for people"))
    out, err = capsys.readouterr()
    printed = json.loads(out)
    assert (err, list(printed)) == ("", ["schema", "version", "bundle", "ms", "cores", "inner"])
    assert (printed["bundle"], printed["ms"], printed["cores"]) == ("runs/x", 1.5, [0, 1])
    assert printed["inner"] == {"bundle": "b", "ms": 0.5, "cores": [], "inner": None}


@pytest.mark.parametrize(("value", "error"), [(np.zeros(3), TypeError), (object(), TypeError), (float("nan"), ValueError)])
def test_value_without_a_json_form_is_refused(value, error):
    for data in ({"a": value}, Result(bundle=Path("b"), ms=1.0, cores=(), inner={"a": value})):
        with pytest.raises(error, match="JSON"):
            print_json(data, io.StringIO())


def test_control_characters_in_text_and_tables_are_escaped():
    stream = io.StringIO()
    table = Table("a\x1b[2J")
    table.add_row("b\x07")
    make_console(stream).print("c\x1b]0;title\x07", table)
    assert all(c.isprintable() or c == "\n" for c in stream.getvalue())
    assert all(escaped in stream.getvalue() for escaped in ("a\\x1b[2J", "b\\x07", "c\\x1b]0;title\\x07"))


def test_progress_draws_a_bar_on_a_terminal():
    code = 'from stretch.cli.output import Output\nwith Output().progress("exporting", total=2) as step:\n    step(); step("s1.cpu")'
    controller, terminal = pty.openpty()
    try:
        subprocess.run([sys.executable, "-c", code], stderr=terminal, check=True)
        assert b"exporting" in os.read(controller, 4096)
    finally:
        os.close(controller)
        os.close(terminal)


def test_verb_keeps_stray_prints_out_of_the_json(capsys):
    def shout(out: Output, word: str) -> None:
        """Say a word."""
        sys.stdout.write("stray\n")
        out.emit({"word": word}, lambda console: None)

    verb_command("shout", shout)(["hello", "--json"], standalone_mode=False)
    out, err = capsys.readouterr()
    assert (json.loads(out)["word"], err) == ("hello", "stray\n")


def test_warnings_of_our_packages_are_printed_once_and_kept_for_the_result(capsys):
    code = "import warnings\nfor _ in range(2): warnings.warn('the cache is ignored', UserWarning, stacklevel=1)"

    def warned(out: Output) -> None:
        for file in (str(Path(inspect.getfile(Output)).parents[1] / "plugins.py"), "/elsewhere/package.py"):
            exec(compile(code, file, "exec"), {})
        out.emit({"warnings": out.warnings}, lambda console: None)

    before = warnings.showwarning
    with warnings.catch_warnings(record=True) as others:
        warnings.simplefilter("always")
        verb_command("warned", warned)(["--json"], standalone_mode=False)
    out, err = capsys.readouterr()
    assert (json.loads(out)["warnings"], err.count("warning: the cache is ignored\n")) == (["the cache is ignored"], 1)
    assert [Path(other.filename).name for other in others] == ["package.py"] * 2
    assert warnings.showwarning is before


def outcome(capsys, error, *, as_json=False):
    """Exit code, stdout and stderr of an action that raises `error`."""

    def action():
        raise error

    code = guard(action, as_json=as_json, debug=False, usage_hint=lambda _: "see the help")
    return code, *capsys.readouterr()


KINDS = (StretchError, UsageError, UnknownNameError, InfeasibleError, MissingBackendError)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        *((kind("it broke"), code, "it broke") for code, kind in enumerate(KINDS, 1)),
        (OSError(errno.ENOSPC, "No space left on device", "runs/x"), 1, "runs/x: No space left on device"),
        (StretchError("unknown model `\x1b[31mred`"), 1, "unknown model `\\x1b[31mred`"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=repr,
)
def test_error_gives_its_sentence_without_control_characters_and_its_exit_code(capsys, error, code, sentence):
    assert outcome(capsys, error) == (code, "", f"error: {sentence}\n")


def test_json_failure_is_one_object_with_error_and_hint(capsys):
    code, out, err = outcome(capsys, KeyboardInterrupt(), as_json=True)
    assert (code, json.loads(out)["error"], err) == (130, "interrupted", "")
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


def test_unexpected_exception_is_one_sentence_without_traceback(capsys):
    code, _, err = outcome(capsys, RuntimeError("first line\nsecond line"))
    assert (code, err.startswith("error: unexpected RuntimeError: first line\n\nhint: "), "--debug" in err) == (1, True, True)
    assert not re.search("Traceback|second line", err)


def test_only_the_first_of_many_failing_processes_prints_the_error(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv(SPEAKER_VARIABLE, str(tmp_path / "failed"))
    failed = [outcome(capsys, StretchError("it broke")) for _ in range(3)]
    assert failed == [(1, "", "error: it broke\n"), (1, "", ""), (1, "", "")]


TINY = ("tiny_resnet", "--device", "pixel6", "--weights", "none")


@pytest.mark.torch
def test_report_of_branch_has_the_figures_of_its_json_and_the_command(capsys, tmp_path):
    page = tmp_path / "a <b> & c.html"
    done = succeed(capsys, "branch", *TINY, *LOOSE, "--dry-run", "--html", page, "--json")
    text = checked(page.read_text()).text
    expected = (f"{done.data['predicted']['makespan_ms']:.2f} ms", "a <b> & c.html", "stretch branch tiny_resnet --device pixel6")
    assert all(" ".join(part.split()) in text for part in (*expected, *done.data["warnings"]))
    assert f"report: {page}" in done.err


@pytest.mark.torch
def test_refusal_has_a_report_and_keeps_its_exit_code(capsys, tmp_path):
    page = tmp_path / "refused.html"
    done = call(capsys, "branch", *TINY, "--set", "macs=0.97:1.03", "--alpha", "0.000001", "--dry-run", "--html", page)
    assert done.code == 4, done.err
    assert all(part in checked(page.read_text()).text for part in ("no branches", "run it on", "alpha 1e-06"))


def report_of(capsys, page, *args):
    """JSON answer of a verb and its parsed HTML report."""
    data = succeed(capsys, *args, "--html", page, "--json").data
    return data, checked(page.read_text())


BUSY = ("--busy", "gpu=0.9@100:600", "--deadline", 8, "--jitter", 0.1)


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--inferences", 1), "Confidence: simulated"),
        (("--inferences", 40, "--beside"), "Bundles that shared the processors"),
        pytest.param(("--inferences", 5000), "One in 3 inferences is drawn", marks=pytest.mark.slow),
    ],
)
def test_report_of_a_simulation_has_the_figures_of_its_json(tmp_path, bundle_dir, capsys, more, sentence):
    args = (*more, bundle_dir) if more[-1] == "--beside" else more
    data, report = report_of(capsys, tmp_path / "page.html", "simulate", bundle_dir, *BUSY, *args)
    expected = (f"{data['missed']} of {more[1]}", f"p99 {data['p99_ms']:.3g} ms", "90 % of the gpu busy")
    assert [part for part in (*expected, sentence) if part not in report.text] == []
    assert ("One in 3" in report.text) == (more[1] == 5000)


def test_report_of_a_run_has_the_figures_of_its_json_and_separates_the_prediction(tmp_path, bundle_dir, capsys):
    data, report = report_of(capsys, tmp_path / "page.html", "run", bundle_dir, "--repeat", 3, "--warmup", 0)
    expected = (f"{data['median_ms']:.2f} ms", "On this machine branching is", "The inference with the median time, measured here")
    expected += ("measured, one timeline predicted", "It does not apply to this machine.", *data["subgraphs_alone_ms"])
    assert [part for part in expected if part not in report.text] == []
    assert report.tags.count("svg") >= 2


@pytest.mark.parametrize(
    ("verb", "args"),
    [("branch", ("no_such_model", "--device", "pixel6")), ("predict", ("no_such_model", "--device", "pixel6")), ("run", ("gone",))],
)
def test_page_that_cannot_be_written_is_refused_before_anything_else(tmp_path, capsys, verb, args):
    done = call(capsys, verb, *args, "--html", tmp_path / "gone" / "x.html")
    assert done.code == 2
    assert "there is no folder" in done.message
    assert call(capsys, verb, *args, "--html", tmp_path / "x.pdf").code == 2
    assert not list(tmp_path.iterdir())
