"""The references, the picture of bands and the commands on pages agree with the code."""

import inspect
import re
import shlex
import subprocess
import sys

import pytest
import typer

import scheduler
import stretch
from stretch.cli import VERBS, app
from tests.contracts.repository import ROOT
from tests.docs.pages import pages, program, snippets

PAGE = ROOT / "docs/reference/python.md"
NAMES = [f"{package.__name__}.{name}" for package in (stretch, scheduler) for name in package.__all__]


def resolve(name):
    package, attribute = name.split(".")
    return getattr(sys.modules[package], attribute)


@pytest.mark.slow
@pytest.mark.parametrize("program", ["make_python_reference", "make_cli_reference", "make_bands_picture"])
def test_generated_page_or_picture_is_up_to_date(program):
    command = [sys.executable, f"docs/{program}.py", "--check"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.parametrize(
    ("sentence", "instead"),
    [("image_count: int = 256", "image_count: int = 9"), ("Plan only: build no model", "Plan"), ("Branched.save", "Branched.keep")],
)
def test_page_that_differs_from_the_code_is_out_of_date(sentence, instead):
    text = PAGE.read_text()
    assert text.count(sentence) == 1
    assert program("make_python_reference").reference(text.replace(sentence, instead)) == text


@pytest.mark.parametrize("name", [name for name in NAMES if not (inspect.isclass(resolve(name)) and issubclass(resolve(name), Exception))])
def test_reference_of_a_name_has_and_describes_all_its_parameters(name):
    *_, part = re.findall(rf"<!-- name {re.escape(name)} -->\n(.*?)<!-- /name -->", PAGE.read_text(), re.DOTALL)
    signature = part.split("```")[1].split(f"{name}", 1)[1]
    parameters = [p for p in inspect.signature(resolve(name)).parameters if p != "self"]
    assert re.findall(r"(?:^\s*|\(|, )\*{0,2}(\w+):", signature, re.MULTILINE) == parameters
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", part, re.MULTILINE))
    if len(parameters) > 1:
        assert set(parameters) <= rows.keys()
    assert all(rows.values())


def test_examples_use_every_public_function():
    code = "\n".join(snippet.text for snippet in snippets(PAGE.relative_to(ROOT)) if snippet.language == "python")
    functions = [f"{name}(" for name in NAMES if inspect.isfunction(resolve(name))]
    assert not [used for used in (*functions, "stretch.PlanConfig(", ".save(", "scheduler.Session(", "except stretch.") if used not in code]


def test_reference_page_has_a_section_for_each_verb():
    text = (ROOT / "docs" / "reference" / "cli.md").read_text()
    assert [line.removeprefix("## stretch ") for line in text.splitlines() if line.startswith("## stretch ")] == list(VERBS)


#: CONTRIBUTING is left out: `tests/contracts/test_worked_examples.py` runs its blocks in a copy of the checkout.
RUNNABLE = [
    page for page in pages() if str(page) != "CONTRIBUTING.md" and {"sh", "python"} & {snippet.language for snippet in snippets(page)}
]


#: Commands whose output differs from run to run, since they measure.
MEASURES = re.compile(r"stretch (run|explain|profile|evaluate|train|web)")

#: Command that times this machine: no other test may run then.
TIMES = "stretch profile --name here"


def runnable(page):
    """Make a parameter of a page; its test runs alone if its commands time this machine."""
    times = any(snippet.language == "sh" and TIMES in snippet.text for snippet in snippets(page))
    return pytest.param(page, id=str(page), marks=[pytest.mark.timing] if times else [])


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.torch
@pytest.mark.parametrize("page", [runnable(page) for page in RUNNABLE])
def test_commands_of_a_page_succeed_in_their_order_and_print_the_outputs_shown(page, tmp_path, warm):
    shown = ""
    for snippet in snippets(page):
        if snippet.follows and snippet.language == "text" and shown:
            # a warning on weights depends on the network connection
            lines = [" ".join(line.split()) for line in snippet.text.splitlines() if not line.startswith("warning: `")]
            assert not [line for line in lines if line not in shown]
        shown = ""
        if snippet.language == "toml" and (name := re.match(r"# ([\w-]+\.toml)\n", snippet.text)):
            (tmp_path / name[1]).write_text(snippet.text)
        if command := {"sh": ("bash", "-euc"), "python": ("snippet",)}.get(snippet.language):
            result = warm.run(*command, snippet.text, cwd=tmp_path)
            if "too noisy" in result.stderr:  # other programs may disturb a machine: resume as the hint says
                result = warm.run(*command, snippet.text.replace(TIMES, f"{TIMES} --resume"), cwd=tmp_path)
            assert result.returncode == 0, f"{snippet.text}\n{result.stderr}"
            shown = "" if MEASURES.search(snippet.text) else " ".join(f"{result.stdout} {result.stderr}".split())


def test_verbs_in_text_blocks_exist():
    # the reference is generated from the verbs' help, which may begin a line with the program's name
    blocks = [
        snippet for page in pages() if str(page) != "docs/reference/cli.md" for snippet in snippets(page) if snippet.language == "text"
    ]
    lines = [line for block in blocks for line in block.text.splitlines()]
    shown = [shlex.split(line, comments=True) if "'" not in line else line.split() for line in lines]
    named = {arguments[1] for arguments in shown if len(arguments) > 1 and arguments[0].endswith("stretch")}
    flags = {flag for param in typer.main.get_command(app).params for flag in param.opts}
    assert set() < named <= {*VERBS, *flags}
