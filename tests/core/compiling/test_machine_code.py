"""Precompiled machine code is used only if it is intact and fits the processor and the sources."""

import hashlib
import json

import pytest

from streamsvm.core.compiling import machine_code

LEVEL = "x86-64-v3"


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """An invalid library with valid metadata, except for the changes of a test: a function that returns why it is not loaded."""
    library, metadata_path = tmp_path / "_machine_code.abi3.so", tmp_path / "_machine_code.json"
    library.write_bytes(b"no library")
    monkeypatch.setattr(machine_code, "LIBRARY_PATH", library)
    monkeypatch.setattr(machine_code, "METADATA_PATH", metadata_path)
    monkeypatch.setattr(machine_code, "_read_processor_features", lambda: dict.fromkeys(machine_code._FEATURES[LEVEL], True))
    monkeypatch.delenv("STREAMSVM_MACHINE_CODE", raising=False)
    metadata = {"processor": LEVEL, "sources": machine_code.compute_sources_digest()}

    def find_reason(content=None, **changes):
        metadata_path.write_text(json.dumps(metadata | {"library": hashlib.sha256(library.read_bytes()).hexdigest()} | changes))
        if content is not None:
            library.write_bytes(content)
        module, reason = machine_code._load_library.__wrapped__()
        assert module is None
        return reason

    return find_reason


def test_reasons_why_machine_code_is_not_used(shipped, monkeypatch):
    assert "cannot be loaded: " in shipped()  # it is not a library
    assert shipped(sources="0" * 64) == "the sources have changed since it was made"
    assert shipped(library="0" * 64).endswith("is damaged")
    assert shipped(content=b"no librar").endswith("is damaged")
    assert shipped(processor="x86-64-v9") == "the processor lacks x86-64-v9"
    monkeypatch.setattr(machine_code, "_read_processor_features", lambda: {"AVX2": False, "FMA3": True, "F16C": True})
    assert shipped() == "the processor lacks AVX2"
    monkeypatch.setenv("STREAMSVM_MACHINE_CODE", "0")
    assert shipped() == "STREAMSVM_MACHINE_CODE=0"


def test_missing_or_invalid_metadata_is_refused(shipped):
    assert shipped(processor=[]).endswith("_machine_code.json is damaged")
    for content in ("{", "{}", "[]", "[" * 100_000, "\xff"):
        machine_code.METADATA_PATH.write_text(content, encoding="latin-1")
        assert machine_code._load_library.__wrapped__()[1].endswith("_machine_code.json is damaged")
    machine_code.METADATA_PATH.unlink()
    assert machine_code._load_library.__wrapped__() == (None, "this installation has none")


def test_temporary_files_of_editors_do_not_change_the_digest(tmp_path, monkeypatch):
    monkeypatch.setattr(machine_code, "__file__", str(tmp_path / "core" / "compiling" / "machine_code.py"))
    monkeypatch.setattr(machine_code, "_SOURCES", ("memory",))
    folder = tmp_path / "memory"
    folder.mkdir()
    (folder / "block.py").write_text("")
    before = machine_code.compute_sources_digest()
    (folder / ".#block.py").symlink_to("somebody@somewhere")
    (folder / "#block.py").write_text("half a line")
    assert machine_code.compute_sources_digest() == before
    (folder / "kernels.py").write_text("")
    assert machine_code.compute_sources_digest() != before
