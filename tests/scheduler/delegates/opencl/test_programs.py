from pathlib import Path

import pytest

from scheduler.delegates.opencl import programs
from scheduler.delegates.opencl.programs import binary_folder, write_binary
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


@pytest.fixture
def compilations(tmp_path, monkeypatch):
    """Counts how often a driver compiles the kernel that a new collection is asked for, in a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    compiled = []

    def write(path, binary):
        compiled.append(path)
        write_binary(path, binary)

    def count():
        compiled.clear()
        assert Programs(open_device(()), False).kernel("softmax", (("LOGARITHM", "1"),)).num_args == 3
        return len(compiled)

    monkeypatch.setattr(programs, "write_binary", write)
    return count


def test_compiled_kernel_is_kept_and_one_that_is_damaged_is_compiled_again(compilations):
    assert [compilations(), compilations()] == [1, 0]
    (kept,) = binary_folder().iterdir()
    kept.write_bytes(kept.read_bytes()[:-1])
    assert [compilations(), compilations()] == [1, 0]


def test_binary_that_the_driver_refuses_is_compiled_again(compilations):
    if open_device(()).traits.id == "mesa":
        pytest.skip("Mesa 22.3 ends the process")
    compilations()
    (kept,) = binary_folder().iterdir()
    write_binary(kept, b"of another compiler")
    assert [compilations(), compilations()] == [1, 0]


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
