import subprocess
import sys

PACKAGE = """
from predictors.lazy import lazy_names
__getattr__, __dir__ = lazy_names(__name__, {"lazypkg.inner": ["answer", "gone"]})
"""
INNER = "print('imported'); answer = 42\n"


def python(folder, code):
    """Standard output of a fresh interpreter that finds a package with two lazy names, one of which its module lacks."""
    (folder / "lazypkg").mkdir()
    (folder / "lazypkg/__init__.py").write_text(PACKAGE)
    (folder / "lazypkg/inner.py").write_text(INNER)
    code = f"import sys; sys.path.insert(0, {str(folder)!r}); import lazypkg\n{code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def test_package_imports_nothing_until_a_name_is_asked_for(tmp_path):
    assert python(tmp_path, "print('before'); print(lazypkg.answer)") == ["before", "imported", "42"]


def test_name_is_kept_once_it_was_found(tmp_path):
    assert python(tmp_path, "print('answer' in vars(lazypkg)); lazypkg.answer; print(vars(lazypkg)['answer'])") == [
        "False",
        "imported",
        "42",
    ]
