"""Findings of the repository's lint, and texts without findings."""

import re
import subprocess
import textwrap

import pytest

from tools import lint


def test_text_like_a_result_is_a_finding_and_goals_settings_and_blocks_are_not():
    assert all(lint.findings(f"It {text}.") for text in ("keeps 99.4 %", "12 ms", "3 times the speed"))
    text = (
        "The goal is 0.97. A 95 % interval. Python 3.11. `-t 0.5` is a 3×3 kernel.\n\n<!-- block x -->\nIt takes 3 ms.\n<!-- /block -->\n"
    )
    assert (lint.findings(text), lint.findings(text + "It reaches 0.98.")) == ([], ["It reaches 0.98."])


@pytest.mark.parametrize(
    "source",
    [
        'cost.append({"training": "parent", "GPU minutes": 2.59, "over one": round(2.59 / mean, 2)})',
        'write_record(machine=machine({"cores": 64, "memory_gib": 512.0} | runs[0]))',
        'Machine("phones", 1, 1.0, "see paper")',
    ],
)
def test_number_written_by_hand_into_a_row_is_reported(source):
    assert lint.written_by_hand(source)


@pytest.mark.parametrize(
    ("text", "quoted"),
    [
        ("It says what the segment reads is copied.", "what the segment reads is"),
        ("What it computes.", "What"),
        ("Make it\nanew.", "anew"),
        ("- It runs beside another.", "beside"),
        ("A core stands in for it.", "stands in"),
        ("| The number | is said of it |", "is said"),
        ("It holds in nine of ten cases.", "nine of ten"),
        ("It takes 1.2 times as long.", "times as long"),
        ("The tool wants images.", "wants"),
        (f"A sentence {'of words ' * 15}.", "A sentence of words of words …"),
    ],
)
def test_clumsy_words_and_long_sentences_are_findings(text, quoted):
    [finding] = lint.wording_defects(f"A plain sentence. {text} Another one.")
    assert finding.startswith(f"`{quoted}`: ")


@pytest.mark.parametrize(
    "text",
    [
        "What do I do if it is too close to call?",
        "`--beside` shares processors; `anew` is code.",
        "A [link](anew/beside.md) leads on.",
        "short and plain\n\n" * 20,
        "\n".join(["- a list of short items"] * 20),
        "| a cell of words " * 20 + "|",
        "Nine words are in this sentence, and no more. " * 5,
    ],
)
def test_questions_code_lists_and_tables_have_no_findings(text):
    assert lint.wording_defects(text) == []


def written(folder, files):
    for name, text in files.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_text(text)


def test_docstring_of_a_function_must_start_with_a_verb_and_of_a_property_need_not(tmp_path, monkeypatch):
    code = (
        'def right():\n    """Return it."""\n\n\ndef wrong():\n    """Whether it is."""\n\n\n@property\ndef named():\n    """The name."""\n'
    )
    written(tmp_path, {"tools/a.py": code})
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    [found] = lint.docstrings(["tools/a.py"])
    assert found.startswith("tools/a.py:5: ")


def test_wording_is_checked_across_wrapped_lines_of_help_and_not_in_blocks(tmp_path, monkeypatch):
    files = {"README.md": "Plain.\n\n```text\nbeside\n```\n", "notes.md": "Make it anew.\n"}
    files[lint.HELP] = "```text\n  --map <str>  A core that stands\n               in for it.\n  --on <str>   A board.\n```\n"
    written(tmp_path, files)
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    found = list(lint.wording(["README.md", "notes.md", lint.HELP]))
    assert found == [f"{lint.HELP}: `stands in`: write {lint.WORDING[next(p for p in lint.WORDING if 'stood' in p)]}"]


def test_wording_is_checked_in_messages_docstrings_and_comments(tmp_path, monkeypatch):
    source = f"""
        class Maker:
            def make(self, name):
                \"\"\"Make it anew.\"\"\"
                raise ValueError(f"make {{name}} beside it")

            def _make(self):
                \"\"\"A sentence {"of words " * 15}.\"\"\"
                # this is not anew
                return "anew", "no clear winner", "int beside = 1;\\n  int anew;\\n"
    """
    written(tmp_path, {"stretch/maker.py": textwrap.dedent(source)})
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    again, next_to = lint.WORDING[r"\banew\b"], lint.WORDING[r"(?<!-)\bbeside\b"]
    found = {(3, "anew", again), (5, "beside", next_to), (9, "anew", again)}
    assert set(lint.wording(["stretch/maker.py"])) == {f"stretch/maker.py:{line}: `{word}`: write {better}" for line, word, better in found}


def test_defects_of_pages_files_and_budgets_are_reported_with_their_location(tmp_path, monkeypatch, capsys):
    files = {"docs/README.md": "[a](a.md)\n", "Makefile": "test:\n", ".gitignore": "uv.lock\n", "stretch/long.py": "x = 1\n" * 801}
    files["docs/a.md"] = "[b](gone.md) `tests/gone.py`\n\n```text\nmake nothing\n```\n\n```cobol\n```\n"
    files["docs/b.md"] = "at " + "/" + "home/me\n"
    files["pyproject.toml"] = '[tool.nn-stretch.lines]\n"core Python" = 100\n"tests Python" = 1\n'
    written(tmp_path, files)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    names = lint.tracked()
    assert sorted(lint.pages(names)) == [
        "docs/README.md: it does not list docs/b.md",
        "docs/a.md: `make nothing` does not exist",
        "docs/a.md: a block of the language cobol; known are python, sh, text, toml",
        "docs/a.md: tests/gone.py does not exist",
        "docs/a.md: the link to gone.md is dead",
    ]
    assert list(lint.paths_of_a_machine(names)) == ["docs/b.md: " + "/" + "home/me exists on one machine only"]
    assert [re.split(";|, or", line)[0] for line in lint.sizes(names)] == [
        "stretch/long.py: 801 lines",
        "pyproject.toml: 801 lines of core Python, 100 are the budget: take away 701 lines",
    ]
    assert "core Python 801 of 100" in capsys.readouterr().out


def test_import_of_a_missing_name_is_reported_also_inside_of_a_function(tmp_path, monkeypatch):
    part = (
        "import os\ntry:\n    from json import dumps as write\nexcept ImportError:\n    write = None\n(a, b), c = (1, 2), 3\nx: int = 1\n"
    )
    user = "from stretch import part\nfrom stretch.part import a, b, c, os, write, x\nfrom stretch.lazy import anything\nimport json\n"
    user += (
        "def late():\n    local = 1\n    from stretch.part import gone\n    from stretch.user import local\n    import stretch.nowhere\n"
    )
    lazy = "def __getattr__(name):\n    return 1\n"
    files = {"stretch/__init__.py": "", "stretch/part.py": part, "stretch/lazy.py": lazy, "stretch/user.py": user}
    written(tmp_path, files)
    monkeypatch.setattr(lint, "ROOT", tmp_path)
    assert list(lint.imports(list(files))) == [
        "stretch/user.py:7: stretch.part has no gone",
        "stretch/user.py:8: stretch.user has no local",
        "stretch/user.py:9: there is no module stretch.nowhere",
    ]
