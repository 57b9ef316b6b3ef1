import subprocess
import sys

import pytest

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


@pytest.mark.slow
def test_names_can_be_imported_from_the_package(tmp_path):
    assert python(tmp_path, "from lazypkg import answer; print(answer)") == ["imported", "42"]


@pytest.mark.slow
def test_dir_lists_names_that_were_not_asked_for_yet(tmp_path):
    assert python(tmp_path, "print({'answer', '__name__'} <= set(dir(lazypkg)), sorted(dir(lazypkg)) == dir(lazypkg))") == ["True True"]


@pytest.mark.parametrize("name", ["answr", "gone"])
def test_name_that_is_not_there_is_an_attribute_error_that_names_it(tmp_path, name):
    code = f"try:\n    lazypkg.{name}\nexcept AttributeError as error:\n    print({name!r} in str(error), error.name)"
    assert python(tmp_path, code)[-1] == f"True {name}"
