"""The command line as a whole: verbs, usage errors, version."""

import json
import subprocess
import sys

import pytest

from stretch.cli import MOVED, RENAMED, VERBS, app


def run(capsys, *words):
    """Exit code, stdout and stderr of the command line in this process."""
    with pytest.raises(SystemExit) as stop:
        app(list(words))
    out, err = capsys.readouterr()
    return stop.value.code, out, err


def test_help_lists_every_verb_in_order_and_each_has_the_shared_options(capsys):
    code, out, err = run(capsys)
    listed = [line.split()[0] for line in out.partition("Commands:")[2].splitlines() if line.startswith("  ") and line[2] != " "]
    assert (code, listed, err) == (0, list(VERBS), "")
    for name in VERBS:
        code, out, _ = run(capsys, name, "--help")
        assert (code, {"--json", "--quiet", "--debug"} <= set(out.split())) == (0, True), name


def test_version_is_printed(capsys):
    code, out, _ = run(capsys, "--version")
    assert (code, out) == (0, "nn-stretch 0.1.0\n")


def test_unknown_verb_is_a_usage_error_that_names_the_closest(capsys):
    code, out, err = run(capsys, "profil")
    assert code == 2
    assert out == ""
    assert err == "error: no such command 'profil'\n\nhint: did you mean `profile`?\n"


def test_old_name_of_a_verb_says_in_one_sentence_what_to_type(capsys):
    for old, new in MOVED.items():
        code, _, err = run(capsys, old, "anything", "--flag")
        assert code == 2
        assert err.startswith(f"error: `stretch {old}` is called `stretch {new}` now\n")
        help_text = run(capsys, new.split()[0], "--help")[1]
        assert all(word in help_text for word in new.split() if word.startswith("--"))


def test_old_name_of_a_flag_is_told_with_the_new_one(capsys):
    for (verb, old), new in RENAMED.items():
        code, _, err = run(capsys, verb, old, "9")
        assert code == 2
        assert f"`{old}` is called `{new}` now" in err
        assert f"{new} " in run(capsys, verb, "--help")[1]


def test_usage_error_with_json_is_one_object_on_stdout(capsys):
    code, out, err = run(capsys, "verify", "bundle", "--json", "extra")
    assert code == 2
    assert err == ""
    data = json.loads(out)
    assert data["schema"] == 1
    assert "extra" in data["error"]
    assert data["hint"]


def test_reader_that_stops_early_gets_no_traceback():
    command = f"{sys.executable} -c 'from stretch.cli import app; app()' list env | head -n 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("nn-stretch")
    assert result.stderr == ""
