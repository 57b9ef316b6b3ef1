"""Checks of this repository that no linter of Python has: `python tools/lint.py`, part of `make lint`.

Pages, links, records, files and the sizes of all code are checked. Each check yields one line per defect; the program prints
the lines and exits with 1 if there are any. It only reads files, and takes seconds.
"""

import ast
import io
import json
import re
import subprocess
import sys
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

from experiments.records import Record, read_record
from experiments.render import BLOCKS
from experiments.render import main as render
from predictors.errors import StretchError, install_command

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("predictors", "scheduler", "stretch")
#: Maximum number of lines of a Python file: one concept stays in one file, and longer files hold several.
FILE_LINES = 800
#: Languages whose lines are counted, by file suffix.
LANGUAGE_OF_SUFFIX = {".py": "Python", ".cpp": "C++", ".h": "C++", ".js": "JavaScript", ".cl": "OpenCL"}

#: Absolute paths that only exist on one person's machine, and hosts of package indexes.
MACHINE = re.compile(
    r"(?<![\w.~])/(?:work|home|root|Users|tmp|opt|mnt|scratch)/[\w.]+|file://|index-url\W+https?:|(?:\d{1,3}\.){3}\d{1,3}:\d+"
)
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
NAMED = re.compile(r"`((?:predictors|scheduler|stretch|tests|experiments|docs|requirements|tools)/[\w./-]*)`")
#: Languages of blocks on pages: tests run the first three, `text` is only shown.
LANGUAGES = {"sh", "python", "toml", "text"}

#: Text that looks like a result: a number with a decimal point, or one with a unit of results.
RESULT = re.compile(r"(?<![\w.])\d+\.\d+(?!\w|\.\d)|\d\s?(?:%|×(?!\d)|ms\b|µs\b|GFLOP/s|GPU minutes|times (?:as|the|its))")
#: Phrases with numbers that are no results.
NO_RESULT = re.compile(
    r"`[^`]*`|\]\([^)]*\)|9[05] % (?:intervals?|confidence)|Python 3\.11|PoCL 3\.0|[Rr]elease 0\.1\.0|since 0\.1\.0|0\.1\.0 \(|Apache-2\.0|RegNetX-1\.6GF|SqueezeNet 1\.1"
)
#: Words in a sentence that states a goal, a bound or a setting.
NO_FINDING = re.compile(
    r"\b(?:goals?|aim|bounds?|at most|at least|below|may be off|within|until|refused|recipe|learning rate|to 1\.0\d of)\b"
)
#: Sentences with numbers that follow from arithmetic, or that name a version or a paper's finding.
ALLOWED_NUMBERS = (
    "a whole sum in half would lose everything that is added beyond 2048 times its size",
    "QNN 2.51 takes them",
    "Its last wheels (2.14)",
    "depth 0.89 and width alone",
    "where the paper finds 1.5",
    "by `--min-cosine`",
)

SOURCES = {"measured", "simulated", "predicted", "paper"}
#: Numbers in rows that are settings of a run or parts of a formula, by program.
SETTINGS = {
    "experiments/calibration/run.py": [5e-4],
    "experiments/equal_latency/networks.py": [0.1],
    "experiments/lossless/run.py": [0.5, 2.0],
    "experiments/real_networks/more_images.py": [0.2, 0.2, 0.1],
    "experiments/real_networks/run.py": [0.75, 0.75],
    "experiments/sensitivity/run.py": [10.0, 10.0, 0.1],
    "experiments/train_to_run/run.py": [0.5],
}
#: Facts in every result of a job on another machine, in addition to its figures.
FACTS = {"gpu", "cores", "memory_gib", "system", "date", "cpu_load", "versions"}


def tracked() -> list[str]:
    """Return the names of the files under version control, and of new ones that git does not ignore."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    return sorted(name for name in listed.decode().split("\0") if name and (ROOT / name).is_file())


def texts(names: list[str], *suffixes: str) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of the files with one of these suffixes; without suffixes, of all text files."""
    for name in names:
        if not suffixes or name.endswith(suffixes):
            try:
                yield name, (ROOT / name).read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue


def paths_of_a_machine(names: list[str]) -> Iterator[str]:
    """Yield files that name a path or a host of one machine, and locks that pin without hashes or name a host."""
    for name, text in texts(names):
        if name == "tools/lint.py":
            continue
        plain = re.sub(r"sha256:\w+", "", text) if name.endswith(".lock") else text
        yield from (f"{name}: {match[0]} exists on one machine only" for match in MACHINE.finditer(plain))
    for name, text in texts(names, ".lock"):
        for block in re.split(r"\n(?=\S)", text.strip()):
            if not re.match(r"[a-z0-9._-]+==\S+", block) or "--hash=sha256:" not in block or "://" in block:
                yield f"{name}: {block.splitlines()[0]} is not pinned with hashes, or names a host"
    if "uv.lock" not in (ROOT / ".gitignore").read_text().split():
        yield ".gitignore: uv.lock, which names hosts, is not ignored"


def sizes(names: list[str]) -> Iterator[str]:
    """Yield Python files above `FILE_LINES` lines, and each part of the code above its budget in pyproject.toml."""
    budget = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["nn-stretch"]["lines"]
    lines = dict.fromkeys(budget, 0)
    for name, text in texts(names, *LANGUAGE_OF_SUFFIX):
        count, suffix = text.count("\n"), Path(name).suffix
        language = "OpenCL" if "/opencl/kernels/" in name else LANGUAGE_OF_SUFFIX[suffix]
        package, *inner = name.split("/")
        part = ("tools" if inner[0] == "tools" else "core") if package in PACKAGES else package
        if (key := f"{part} {language}") in lines:
            lines[key] += count
        if suffix == ".py" and count > FILE_LINES:
            yield f"{name}: {count} lines; a file has at most {FILE_LINES}"
    print("lines:", ", ".join(f"{key} {count} of {budget[key]}" for key, count in lines.items()))
    for key, count in lines.items():
        if count > budget[key]:
            yield (
                f"pyproject.toml: {count} lines of {key}, {budget[key]} are the budget: take away {count - budget[key]} lines, "
                "or raise the budget and say why in docs/explanations/decisions.md"
            )


def pages(names: list[str]) -> Iterator[str]:
    """Yield dead links and paths on pages, blocks of unknown languages, missing make targets, and pages that are not in the index."""
    makefile = (ROOT / "Makefile").read_text()
    index = ROOT / "docs" / "README.md"
    listed = {(index.parent / target).resolve() for target in LINK.findall(index.read_text())}
    for name, text in texts(names, ".md"):
        for target in LINK.findall(text):
            if "://" not in target and not ((ROOT / name).parent / target).exists():
                yield f"{name}: the link to {target} is dead"
        yield from (f"{name}: {path} does not exist" for path in NAMED.findall(text) if not (ROOT / path).exists())
        for language, block in FENCE.findall(text):
            if language not in LANGUAGES:
                yield f"{name}: a block of the language {language or '(none)'}; known are {', '.join(sorted(LANGUAGES))}"
            for target in re.findall(r"^make (\w+)", block, re.MULTILINE):
                if not re.search(rf"^{target}:", makefile, re.MULTILINE):
                    yield f"{name}: `make {target}` does not exist"
        if name.startswith("docs/") and ROOT / name != index and ROOT / name not in listed:
            yield f"docs/README.md: it does not list {name}"
    for name, text in texts(names, ".svg"):
        if name.startswith("docs/images/") and ("<title" not in text or "<desc" not in text):
            yield f"{name}: a picture needs <title> and <desc>"


def installing(names: list[str]) -> Iterator[str]:
    """Yield install commands that name no checkout or unknown extras, and sources that write their own."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, text in texts(names, ".py", ".md", ".toml"):
        if name.startswith(("tests/", "tools/")) or name == "pyproject.toml":
            continue
        if name.split("/")[0] in PACKAGES and name != "predictors/errors.py" and re.search(r'pip install "?\.', text):
            yield f"{name}: install commands come from predictors/errors.py"
        for rest in (match.rstrip(" .,") for match in re.findall(r"pip install ([^\n`)]*)", text)):
            if "nn-stretch" in rest or ("nn_stretch" in rest and ".whl" not in rest):
                yield f"{name}: `pip install {rest}`: nn-stretch is on no index"
            if name.endswith(".md") and (match := re.search(r"\.\[([\w,]+)\]", rest)):
                words = match[1].split(",")
                if not set(words) <= extras.keys() or not f"pip install {rest}".startswith(install_command(*words)):
                    yield f"{name}: `pip install {rest}` is not what predictors/errors.py writes"


def findings(text: str) -> list[str]:
    """Return the sentences of a page, outside blocks, code and tables, that look like a result."""
    plain = re.sub(r"^<!-- block .*?^<!-- /block -->$|^```.*?^```|^\|.*?$", "", text, flags=re.DOTALL | re.MULTILINE)
    return [
        sentence
        for sentence in re.split(r"(?<=[.:;?]) |\n", plain)
        if RESULT.search(NO_RESULT.sub("", sentence))
        and not NO_FINDING.search(sentence)
        and not any(known in sentence for known in ALLOWED_NUMBERS)
    ]


def numbers_on_pages(names: list[str]) -> Iterator[str]:
    """Yield pages that differ from their records or state results of their own, and blocks that no page shows."""
    if render(["--check"]):
        yield "pages: blocks differ from their records; run `make docs`"
    shown = set()
    for name, text in texts(names, ".md"):
        if name.startswith(("docs/", "experiments/")) or "/" not in name:
            shown |= set(re.findall(r"^<!-- block (\w+) -->$", text, re.MULTILINE))
            yield from (f"{name}: `{sentence}` reads like a result; results come from records" for sentence in findings(text))
    for path in sorted((ROOT / BLOCKS).iterdir()):
        if path.stem not in shown:
            yield f"{path.relative_to(ROOT)}: no page shows it"
        for number in RESULT.findall(NO_RESULT.sub("", re.sub(r"\{\{.*?\}\}", "", path.read_text(), flags=re.DOTALL))):
            yield f"{path.relative_to(ROOT)}: {number} is not taken from a record"


#: Words on our pages and in help with a plainer replacement; the reader's terms are in docs/start/concepts.md.
WORDING = {
    r"\b[Ww]hat [^.?!:;]{3,60}\b(?:is|are|has|have|was|were)\b(?![^.]*\?)": "the name of the thing",
    r"^What\b(?! to optimise)(?![^.]*\?)": "a verb or the name of the thing first",
    r"\banew\b": "again",
    r"(?<!-)\bbeside\b": "next to, with, in addition to",
    r"\b(?:stands?|stood|lies) (?:in|for|beside|below|there)\b": "is in, replaces, means",
    r"\b(?:is|are|was) (?:said|told|asked back)\b": "the subject that says it",
    r"\b(?:tell|tells|told)\b": "say, report, show",
    r"\bwants?\b": "need",
    r"\b(?:whoever|somebody)\b": "anyone who",
    r"\bshall\b": "should, must",
    r"\bmostly\b": "usually",
    r"\bnine (?:of|in) ten\b|\bprobability of 0\.9\b|\bno clear winner\b": "90 % interval, too close to call",
    r"\b(?:contestant|contender|rival|control network)s?\b": "baseline",
    r"\btimes as (?:long|fast)\b": "1.12x faster",
    r", for (?:it|they|he|nothing|nobody|those who)\b": "because",
}
#: Sentences of these pages that are plain although they match.
ALLOWED_SENTENCES = (
    "quantiles of measured",
    "Student's t for the logarithm",
    "What matters is the error",
    "the search takes several times as long",
    "takes 1.5 times as long",
)
#: Articles, question words and prepositions: a docstring that starts with one of them does not say what its function does.
NO_VERB = re.compile(
    r"(?:a|all|an|as|at|both|by|each|every|for|from|how|in|its?|of|one|only|some|such|that|the|this|what|when|where|whether|which|why)\b",
    re.IGNORECASE,
)
#: Maximum number of words of a sentence on a page or in help.
SENTENCE = 30
HELP = "docs/reference/cli.md"
#: Values of JSON keys, which keep their wording.
IDS = {"no clear winner"}


def wording_defects(text: str, most: int | None = SENTENCE) -> list[str]:
    """Return the defects of a text's wording: words with a plainer replacement, and long sentences.

    Args:
        text: Markdown without fenced blocks, or help whose wrapped lines are joined.
        most: Maximum number of words of a sentence; None for no maximum.
    """
    result = []
    plain = re.sub(r"`[^`\n]*`|<!--.*?-->", "x", re.sub(r"\]\([^)\n]*\)", "]", text))
    for part in re.split(r"\n\s*\n|\n(?=\s*(?:[-*#|]|\d+\.))|(?<=\S) *\| ", plain):
        for sentence in re.split(r"(?<=[.?!:])[)*]*\s+", " ".join(part.split())):
            if any(allowed in sentence for allowed in ALLOWED_SENTENCES):
                continue
            for pattern, instead in WORDING.items():
                result += [f"`{match[0]}`: write {instead}" for match in re.finditer(pattern, sentence)]
            if most is not None and len(words := re.findall(r"\S*\w\S*", sentence)) > most:
                result.append(f"`{' '.join(words[:6])} …`: {len(words)} words; a sentence has at most {most}")
    return result


def texts_of_module(source: str, *, messages: bool = True) -> Iterator[tuple[int, str, bool]]:
    """Yield line and text of a module's docstrings, comments and messages, and whether users read it; values in messages become ``x``.

    Args:
        source: Code of the module.
        messages: Whether to yield strings other than docstrings.
    """
    tree, used = ast.parse(source), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (text := ast.get_docstring(node)):
            used.add(id(node.body[0].value))  # type: ignore[attr-defined]
            first, _, others = text.partition("\n\n")
            is_public = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_")
            yield getattr(node, "lineno", 1), first, messages and is_public
            yield getattr(node, "lineno", 1), others, False
        elif isinstance(node, ast.JoinedStr) and messages:
            used |= set(map(id, node.values))
            yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values), True
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in used and messages:
            yield node.lineno, node.value, True
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("#: "), False


def wording(names: list[str]) -> Iterator[str]:
    """Yield the wording defects of README, CONTRIBUTING, the documentation, help, messages and docstrings."""
    checked = (*PACKAGES, "tests/", "experiments/", "docs/", "tools/")
    for name, source in texts([name for name in names if name.startswith(checked)], ".py"):
        for line, text, is_read in texts_of_module(source, messages=name.startswith(PACKAGES)):
            # text without two spaces is a name, and text with lines that end in a semicolon is code
            if text.count(" ") > 1 and ";\n" not in text and text not in IDS:
                yield from (f"{name}:{line}: {defect}" for defect in wording_defects(text, SENTENCE if is_read else None))
    pages = [name for name in names if name in ("README.md", "CONTRIBUTING.md", "experiments/README.md") or name.startswith("docs/")]
    for name, text in texts([name for name in pages if name != "docs/reference/python.md"], ".md"):
        # lines of help are wrapped under their option; a blank line ends a unit of reading
        page_text = re.sub(r"\n {7,}(?=\S)", " ", text).replace("\n  ", "\n\n") if name == HELP else FENCE.sub("", text)
        yield from (f"{name}: {defect}" for defect in wording_defects(page_text))


def docstrings(names: list[str]) -> Iterator[str]:
    """Yield the functions whose docstring starts with no verb; a property may have a noun."""
    for name, source in texts([name for name in names if name.startswith((*PACKAGES, "tools/", "experiments/"))], ".py"):
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            match, is_property = (
                NO_VERB.match(ast.get_docstring(node) or ""),
                any("property" in ast.unparse(d) for d in node.decorator_list),
            )
            if match and not is_property:
                yield f"{name}:{node.lineno}: the docstring of {node.name} starts with `{match[0]}`; start with a verb: Return, Write …"


def records(names: list[str]) -> Iterator[str]:
    """Yield experiments without a page or a program, and records with defects."""
    folders = {Path(*Path(name).parts[:2]) for name in names if name.startswith("experiments/") and name.count("/") > 1}
    for folder in sorted(folders - {BLOCKS}):
        yield from (f"{folder}: it needs {name}" for name in ("README.md", "run.py") if not (ROOT / folder / name).is_file())
    for name in names:
        path = Path(name)
        if path.parts[0] == "experiments" and path.parts[-2] == "results" and path.suffix == ".json":
            try:
                yield from (f"{name}: {defect}" for defect in defects_of_record(path, read_record(ROOT / path)))
            except StretchError as error:
                yield f"{name}: {error}"


def defects_of_record(path: Path, record: Record) -> Iterator[str]:
    """Yield the defects of one record."""
    if record.experiment != path.parts[-3]:
        yield f"it says that it belongs to {record.experiment}"
    if record.source != "paper":
        files = [word.replace(".", "/") + ".py" for word in record.command.split() if word.startswith("experiments.")]
        yield from (f"{file} does not exist" for file in files if not (ROOT / file).is_file())
    commits = [commit for commit in (record.commit and record.commit.hash, record.recorded_in) if commit]
    if len(commits) != 1 or len(commits[0]) != 40:
        yield "it needs one commit: that of the run, or that in which it was recorded"
    if (record.machine is None) != (record.source == "paper") or not record.versions:
        yield "it needs a machine and versions, and one of a paper no machine"
    if record.load is None and record.source not in ("paper", "predicted"):
        yield "it needs the load"
    if any("interleaved" in note for note in record.notes):
        yield "the field `interleaved` says so, not a note"
    for name, rows in record.tables.items():
        for row in rows:
            if "source" in row:
                facts = record.facts(name, row=str(next(iter(row.values()))))
                if row["source"] not in SOURCES or facts.source != row["source"]:
                    yield f"{name}: the source {row['source']} of a row is not that of its facts"
        for column in rows[0]:
            source = record.facts(name, column=column).source
            if column.startswith("predicted") and source != "predicted":
                yield f"{name}: the column {column} is not marked as predicted"
            if column.startswith("top-1 %") and source not in ("measured", "simulated"):
                yield f"{name}: the column {column} is not marked as measured"
    if record.recorded_in is not None and path.name != "checked.json":
        yield from changes_of_record(path, record)


def changes_of_record(path: Path, record: Record) -> Iterator[str]:
    """Yield differences of a record from the file that its run wrote; none if the commit is missing, as in a shallow clone."""
    stored = subprocess.run(["git", "show", f"{record.recorded_in}:{path.as_posix()}"], cwd=ROOT, capture_output=True, check=False)
    if stored.returncode:
        return
    old = json.loads(stored.stdout)
    if any(key in old and old[key] != getattr(record, key) for key in ("date", "command", "versions")):
        yield "date, command or versions are not those of its run"
    if not record.corrected and (old["tables"] != record.tables or (old["runs"], old["load"]) != (record.runs, record.load)):
        yield "its tables are not those that its run wrote"
    if record.machine is not None and any(getattr(record.machine, key) not in (value, None) for key, value in old["machine"].items()):
        yield "its machine is not that of its run"


def written_by_hand(source: str) -> list[float]:
    """Return the numbers in a program that are values of a row or part of one, except 0, 1 and powers of ten for units."""
    numbers = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) and isinstance(key.value, str) for key in node.keys):
            constants = [part.value for value in node.values for part in ast.walk(value) if isinstance(part, ast.Constant)]
            numbers += [value for value in constants if isinstance(value, float) and value not in (0.0, 1.0, 1e3, 1e6, 1e9, 256e3)]
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Machine":
            numbers += [part.value for part in node.args if isinstance(part, ast.Constant) and isinstance(part.value, int | float)]
    return numbers


def programs(names: list[str]) -> Iterator[str]:
    """Yield programs of experiments that write numbers by hand into a record, or mix facts and results."""
    for name, text in texts([name for name in names if name.startswith("experiments/")], ".py"):
        if (numbers := written_by_hand(text)) != SETTINGS.get(name, []):
            yield f"{name}: {numbers} are written by hand into a row; a setting belongs into SETTINGS of tools/lint.py"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.BinOp) and isinstance(node.left, ast.Dict) and "facts" in ast.unparse(node.right):
                lost = FACTS & {key.value for key in node.left.keys if isinstance(key, ast.Constant)}
                if lost and name != "experiments/gpu.py":
                    yield f"{name}: `{{…}} | facts()` overwrites {', '.join(sorted(lost))}"


def defined_names(tree: ast.Module) -> set[str]:
    """Return the names that a module's statements define, including those within `if` and `try`; ``*`` if a function computes names."""
    names, nodes = set(), list[ast.AST](tree.body)
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add("*" if node.name == "__getattr__" else node.name)
        elif isinstance(node, ast.alias):
            names.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        else:
            nodes += ast.iter_child_nodes(node)
    return names


def imports(names: list[str]) -> Iterator[str]:
    """Yield imports of modules or names that do not exist in this repository, including imports within functions."""
    trees = {name: ast.parse(text) for name, text in texts(names, ".py")}
    modules = {name.removesuffix(".py").removesuffix("/__init__").replace("/", "."): defined_names(tree) for name, tree in trees.items()}
    modules |= {folder: set() for module in modules if (folder := module.rpartition(".")[0]) not in modules}
    packages = {module.partition(".")[0] for module in modules}
    for file, tree in trees.items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                pairs = [(alias.name, "*") for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                pairs = [(str(node.module), alias.name) for alias in node.names]
            else:
                continue
            for module, name in pairs:
                if module not in modules and module.partition(".")[0] in packages:
                    yield f"{file}:{node.lineno}: there is no module {module}"
                elif module in modules and name != "*" and not {name, "*"} & modules[module] and f"{module}.{name}" not in modules:
                    yield f"{file}:{node.lineno}: {module} has no {name}"


#: Features of only some operating systems; `predictors/system.py` has a form for the others.
_SYSTEM = re.compile(
    r"\bos\.(?:fork|sched_\w+|getloadavg|memfd_create|sysconf|uname|O_(?:NONBLOCK|CLOEXEC|DIRECTORY|NOFOLLOW))\b|\bsignal\.pthread_kill\b|^\s*import (?:fcntl|resource)\b",
    re.M,
)
#: Files in which they are allowed: the form for Linux, and programs that run only there.
_OF_LINUX = ("predictors/system.py", "scheduler/tools/boards/", "stretch/train/")


def systems(names: list[str]) -> Iterator[str]:
    """Yield uses of features that a system may lack, outside of the module that has a form for them."""
    ours = [name for name in names if name.split("/")[0] in PACKAGES and not name.startswith(_OF_LINUX)]
    for name, text in texts(ours, ".py"):
        for match in _SYSTEM.finditer(text):
            yield f"{name}: `{match[0].strip()}` is not on every system: take it from predictors.system"


CHECKS = (paths_of_a_machine, sizes, imports, systems, pages, installing, numbers_on_pages, wording, docstrings, records, programs)


def main() -> int:
    """Print the defects; return 1 if there are any."""
    names = tracked()
    defects = [defect for check in CHECKS for defect in check(names)]
    print(*defects, sep="\n", end="\n" if defects else "")
    return 1 if defects else 0


if __name__ == "__main__":
    sys.exit(main())
