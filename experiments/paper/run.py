"""Draw the papers' figures and tables from records: `python -m experiments.paper.run [--check] [FIGURE…]`.

Nothing is trained, timed or planned here: each figure names the records that it is drawn from,
and where one is missing the command that makes it is told.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

from experiments.paper.picture import Picture
from predictors.errors import StretchError, UnknownNameError

HERE = Path(__file__).parent
#: What a figure's program and file are called in its folder.
PROGRAM, FILE = "draw.py", "figure.svg"


def figures() -> list[str]:
    """Names of all figures: the folders that have a program which draws."""
    return sorted(path.parent.name for path in HERE.glob(f"*/{PROGRAM}"))


def picture(name: str) -> Picture:
    """A figure by the name of its folder.

    Raises:
        UnknownNameError: If there is none.
    """
    if name not in figures():
        raise UnknownNameError.among("figure", name, figures())
    PICTURE: Picture = importlib.import_module(f"experiments.paper.{name}.draw").PICTURE
    return PICTURE


def main(words: Sequence[str] | None = None) -> int:
    """Draw figures; with ``--check`` change nothing and return 1 if a file differs."""
    parser = argparse.ArgumentParser(prog="python -m experiments.paper.run", description=__doc__)
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help="folders under experiments/paper; all of them if none is named")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a figure is out of date")
    options = parser.parse_args(words)
    stale = False
    try:
        for name in options.figures or figures():
            drawn, path = picture(name).svg(name), HERE / name / FILE
            if path.is_file() and path.read_text(encoding="utf-8") == drawn:
                continue
            stale = True
            if not options.check:
                partial = path.with_name(f".{path.name}.part")
                partial.write_text(drawn, encoding="utf-8")
                partial.replace(path)
            answer = "is out of date: run make paper" if options.check else "drawn"
            sys.stderr.write(f"experiments/paper/{name}/{FILE} {answer}\n")
    except StretchError as error:
        sys.stderr.write(f"error: {error.message}\n" + (f"\nhint: {error.hint}\n" if error.hint else ""))
        return error.exit_code
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
