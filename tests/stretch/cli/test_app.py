"""The command line as a whole: verbs, usage errors, version."""

import subprocess
import sys

from stretch.cli import MOVED, RENAMED, VERBS
from tests.stretch.cli.commands import call, succeed


def test_help_lists_every_verb_in_order_and_each_has_the_shared_options(capsys):
    done = call(capsys)
    listed = [line.split()[0] for line in done.out.partition("Commands:")[2].splitlines() if line.startswith("  ") and line[2] != " "]
    assert (done.code, listed, done.err) == (0, list(VERBS), "")
    for name in VERBS:
        assert {"--json", "--quiet", "--debug"} <= set(succeed(capsys, name, "--help").out.split()), name


def test_version_is_printed(capsys):
    assert succeed(capsys, "--version").out == "nn-stretch 0.1.0\n"


def test_unknown_verb_is_a_usage_error_that_names_the_closest(capsys):
    wrong = call(capsys, "profil")
    assert (wrong.code, wrong.out) == (2, "")
    assert wrong.err == "error: no such command 'profil'\n\nhint: did you mean `profile`?\n"


def test_old_name_of_a_verb_says_in_one_sentence_what_to_type(capsys):
    for old, new in MOVED.items():
        wrong = call(capsys, old, "anything", "--flag")
        assert wrong.code == 2
        assert wrong.err.startswith(f"error: `stretch {old}` is called `stretch {new}` now\n")
        help_text = succeed(capsys, new.split()[0], "--help").out
        assert all(word in help_text for word in new.split() if word.startswith("--"))


def test_old_name_of_a_flag_is_told_with_the_new_one(capsys):
    for (verb, old), new in RENAMED.items():
        wrong = call(capsys, verb, old, "9")
        assert wrong.code == 2
        assert f"`{old}` is called `{new}` now" in wrong.err
        assert f"{new} " in succeed(capsys, verb, "--help").out


def test_usage_error_with_json_is_one_object_on_stdout(capsys):
    wrong = call(capsys, "verify", "bundle", "--json", "extra")
    assert (wrong.code, wrong.err, wrong.data["schema"]) == (2, "", 1)
    assert "extra" in wrong.data["error"]
    assert wrong.data["hint"]


def test_reader_that_stops_early_gets_no_traceback():
    command = f"{sys.executable} -c 'from stretch.cli import app; app()' list env | head -n 1"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert result.stdout.startswith("nn-stretch")
    assert result.stderr == ""
