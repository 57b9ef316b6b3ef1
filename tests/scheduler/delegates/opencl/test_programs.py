from pathlib import Path

import pytest

from scheduler.delegates.opencl import programs
from scheduler.delegates.opencl.device import open_device
from scheduler.delegates.opencl.programs import FOLDER, BuildError, Programs, programs_of, source, source_hash


def test_failed_build_names_a_file_with_the_drivers_log():
    with pytest.raises(BuildError, match="its log is in") as caught:
        Programs(open_device(()), False).kernel("softmax", (("LOGARITHM", "nonsense("),))
    log = Path(caught.value.message.rsplit(" ", 1)[-1])
    text = log.read_text()
    log.unlink()
    assert "-DLOGARITHM=nonsense(" in text
    assert "error" in text
    assert caught.value.hint is not None


def test_equal_macros_are_built_once(monkeypatch):
    built = Programs(open_device(()), False)
    first = built.kernel("softmax", (("LOGARITHM", "0"),))
    monkeypatch.setattr(built, "_build", None)
    second = built.kernel("softmax", (("LOGARITHM", "0"),))
    assert first is not second
    assert first.get_info(0x1193).int_ptr == second.get_info(0x1193).int_ptr  # CL_KERNEL_PROGRAM


def test_all_subgraphs_of_a_device_share_their_kernels():
    assert programs_of(open_device(()), False) is programs_of(open_device(()), False)
    assert programs_of(open_device(()), False) is not programs_of(open_device(()), True)


def test_hash_changes_with_the_source(monkeypatch):
    names = [path.stem for path in FOLDER.glob("*.cl")]
    assert len({source_hash(name) for name in names}) == len(names) >= 12
    before = source_hash("pool")
    monkeypatch.setattr(programs, "source", lambda name: source(name) + " ")
    programs.source_hash.cache_clear()
    assert source_hash("pool") != before
    monkeypatch.undo()
    programs.source_hash.cache_clear()


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.cl")), ids=lambda path: path.stem)
def test_file_holds_the_kernel_of_its_name_and_says_what_it_does(path):
    text = path.read_text()
    assert f"__kernel void {path.stem}(" in text
    assert text.count("__kernel") == 1
    assert text.startswith("// ")
