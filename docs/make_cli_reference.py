"""Write `docs/reference/cli.md` from the help of every verb: `python docs/make_cli_reference.py [--check]`."""

import os
import sys
from pathlib import Path

from typer.testing import CliRunner

from stretch.cli import VERBS, app, command_of

PAGE = Path(__file__).resolve().parent / "reference" / "cli.md"

HEAD = """# Command line

<!-- Written by `make docs` from `stretch --help`; change the verbs, not this page. -->

Standard output carries data, standard error carries progress, notes and warnings. Times are milliseconds, sizes bytes, MACs multiply-accumulates at batch 1. Every verb takes `--json`: one object on standard output, with `schema` and `version` first; keys may be added, and are renamed only with a new schema number.

| exit code | meaning |
|---:|---|
| 0 | done |
| 1 | failure: a file that cannot be read or is invalid, a failure while running |
| 2 | usage: an unknown option, a value out of range |
| 3 | an unknown name; the closest one is given |
| 4 | no design meets the constraints; the tightest rule and the nearest value are named |
| 5 | a missing extra or backend; the install line is given |
| 130 | interrupted |

An error is one sentence, then a blank line, then a `hint:`. With `--json` it is `{"error": …, "hint": …}` on standard output and the exit code is the same. `--debug` adds the traceback.
"""


def reference() -> str:
    """The whole page."""
    parts = [HEAD, "## stretch\n\n```text\n" + _help() + "```\n"]
    shown: set[str] = set()
    for name in VERBS:
        parts.append(f"## stretch {name}\n\n```text\n{_help(name)}```\n")
        known = command_of(name).settings
        rows = [
            f"| `{key}` | {'' if option.shown_default is None else option.shown_default} | {option.help} |"
            for key, option in known.items()
            if (key, option.help) not in shown
        ]
        if rows:
            parts.append(
                "\n".join(
                    [
                        "Settings, for `--set KEY=VALUE` and the file of `--config`:\n",
                        "| setting | default | meaning |",
                        "|---|---|---|",
                        *rows,
                        "",
                    ]
                )
            )
        elif known:
            parts.append("Settings: those of the verbs above.\n")
        shown |= {(key, option.help) for key, option in known.items()}
    return "\n".join(parts)


def _help(*words: str) -> str:
    result = CliRunner().invoke(app, [*words, "--help"], prog_name="stretch", env={"COLUMNS": "100", "TERMINAL_WIDTH": "100"})
    if result.exit_code:
        raise SystemExit(f"`stretch {' '.join(words)} --help` failed: {result.output}")
    return "\n".join(line.rstrip() for line in result.output.strip().splitlines()) + "\n"


def main(words: list[str]) -> int:
    """Write the page; with ``--check`` change nothing and return 1 if it is out of date."""
    os.environ["COLUMNS"] = "100"
    text = reference()
    if PAGE.is_file() and PAGE.read_text() == text:
        return 0
    if "--check" in words:
        sys.stderr.write("docs/reference/cli.md is out of date: run make docs\n")
        return 1
    PAGE.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
