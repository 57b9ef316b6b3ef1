"""Fill the blocks of README and docs from records: `python -m experiments.render [--check]`.

A page holds blocks, one per table or group of paragraphs::

    <!-- block headline -->
    …written by this program from experiments/blocks/headline.txt…
    <!-- /block -->

    <!-- block experiments/executor/results/host.json#efficiency -->
    …the whole table, and the conditions of its numbers…
    <!-- /block -->

`experiments.templates` describes templates.
"""

import argparse
import re
import sys
from pathlib import Path

from experiments.templates import fill, whole_table
from predictors.errors import StretchError

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = Path("experiments/blocks")

BLOCK = re.compile(r"^(<!-- block (\S+) -->\n).*?^(<!-- /block -->)$", re.DOTALL | re.MULTILINE)
MARKER = re.compile(r"`[^`\n]*`|(<!-- /?(?:block|table|value)\b)")


def pages() -> list[Path]:
    """Return every page that may show records."""
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("experiments/**/*.md")])


def render(text: str, where: str, root: Path = ROOT) -> str:
    """Return the page with all its blocks filled.

    Args:
        text: The page.
        where: Name of the page, for errors.
        root: Folder that names of records and templates are relative to.

    Raises:
        StretchError: If a block is not closed, or if the block or its template names something that does not exist.
    """
    if len(list(filter(None, MARKER.findall(text)))) != 2 * len(BLOCK.findall(text)):
        raise StretchError(
            f"{where} has a marker that is no part of a block", "a block is `<!-- block NAME -->` … `<!-- /block -->`, each on its line"
        )
    return BLOCK.sub(lambda match: match[1] + content(match[2], where, root) + match[3], text)


def content(name: str, where: str, root: Path) -> str:
    """Return the content of a block.

    Args:
        name: ``FILE#TABLE``, or the name of a template.
        where: Name of the page, for errors.
        root: Folder that names are relative to.
    """
    if "#" in name:
        return whole_table(root, name, where)
    template = BLOCKS / f"{name}.txt"
    try:
        return fill((root / template).read_text(), str(template), root)
    except OSError as error:
        raise StretchError(f"{where} has the block `{name}`, but {template} cannot be read: {error.strerror}") from error


def main(words: list[str] | None = None) -> int:
    """Render every page; with ``--check`` change no page, and return 1 if one is out of date."""
    parser = argparse.ArgumentParser(prog="python -m experiments.render", description="Fill README and docs from records.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    options = parser.parse_args(words)
    stale = []
    try:
        for page in pages():
            text = page.read_text()
            filled = render(text, str(page.relative_to(ROOT)))
            if filled != text:
                stale.append(page.relative_to(ROOT))
                if not options.check:
                    page.write_text(filled)
    except StretchError as error:
        sys.stderr.write(f"error: {error.message}\n")
        return error.exit_code
    for name in stale:
        sys.stderr.write(f"{name} {'is out of date: run python -m experiments.render' if options.check else 'written'}\n")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
