"""The disk cache of compiled functions: its folder, damaged and foreign files, and locks between processes."""

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

import streamsvm
from streamsvm.core.compiling.common import INTERPRETED
from streamsvm.core.compiling.functions import load_backend

if not INTERPRETED:
    from streamsvm.core.compiling import cache_folders, disk_cache

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")]

COMPILE = (
    "import numpy; from streamsvm.core.kernels import exp2d; x = numpy.zeros((2, 3)); exp2d(x[0], 0.0, 3, x[1]); assert x.any()"
)
SHOW = """
import sys, tempfile
from streamsvm.core.compiling.cache_folders import find_cache_folder
for tempfile.tempdir in sys.argv[1:]:
    find_cache_folder.cache_clear()
    print(find_cache_folder())
"""
COUNT = "from streamsvm.core.compiling.disk_cache import compiled_names; print(len(compiled_names))"
#: Processors to compile for, by the settings of numba.
THIS, ANOTHER = {"NUMBA_CPU_NAME": None, "NUMBA_CPU_FEATURES": None}, {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
#: Root may write anywhere, unless it is denied CAP_DAC_OVERRIDE.
WITHOUT_RIGHTS = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.fixture
def read_only():
    """A folder with a copy of the package that the user cannot write to, and a temporary directory beside it."""
    folder = Path(tempfile.mkdtemp(prefix="streamsvm-test-"))  # not tmp_path, which other users cannot enter
    try:
        shutil.copytree(Path(streamsvm.__file__).parent, folder / "streamsvm", ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "tmp").mkdir()
        (folder / "tmp").chmod(0o1777)
        closed = [folder, folder / "streamsvm", *(path for path in folder.glob("streamsvm/**/") if path.is_dir())]
        for path in closed:
            path.chmod(0o555)
        yield folder
    finally:
        for path in closed:
            path.chmod(0o755)
        shutil.rmtree(folder)


def run(folder, code, *words, **variables):
    launcher = ["-c", WITHOUT_RIGHTS] if os.geteuid() == 0 else []
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("NUMBA_", "XDG_"))}
    environment = {**kept, "HOME": str(folder), "PYTHONPATH": str(folder), "TMPDIR": str(folder / "tmp"), **variables}
    command = [sys.executable, *launcher, "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def the_warning(done):
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Warning") == 1
    assert "Set NUMBA_CACHE_DIR to a folder that can be written to" in done.stderr
    return done.stderr


def folder_of_user(folder):
    return folder / "tmp" / f"streamsvm-{os.geteuid()}"


def test_fallback_cache_folder_is_in_the_temporary_directory(read_only):
    code = f"import streamsvm; {COMPILE}; assert streamsvm.__file__.startswith({str(read_only)!r})"
    warning = the_warning(run(read_only, code))
    made = folder_of_user(read_only)
    assert warning.startswith("<string>:1: RuntimeWarning: the user's cache directory cannot be written to (")
    assert f", so compiled code is kept in {made}. " in warning
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    compiled = {path: path.stat().st_mtime_ns for path in made.rglob("*.code")}
    assert compiled
    the_warning(run(read_only, code))
    assert {path: path.stat().st_mtime_ns for path in made.rglob("*.code")} == compiled
    image = read_only / "tmp" / "image" / "streamsvm"  # filled in advance, and read-only
    shutil.copytree(made, image)
    image.chmod(0o555)
    done = run(read_only, f"{code}; {COUNT}", NUMBA_CACHE_DIR=str(image.parent))
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
    image.chmod(0o755)


def test_the_command_line_learns_in_a_container(read_only):
    # It writes to its folder and to the cache of the tests, where most functions are compiled already.
    (read_only / "tmp" / "rows.csv").write_text("a,b,y\n" + "".join(f"{i % 5},{i % 3},{i % 2}\n" for i in range(100)))
    words = ["learn", "tmp/rows.csv", "--label", "y", "--learner", "linear", "--checkpoint", "tmp/state", "--quiet"]
    learn = f"from streamsvm.cli.main import main; import sys; sys.exit(main({words!r}))"
    processor = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_CPU")}
    done = run(read_only, learn, **processor, NUMBA_CACHE_DIR=str(cache_folders.find_cache_folder().parent), TMPDIR="/proc")
    assert (done.returncode, done.stderr) == (0, "")
    assert (read_only / "tmp" / "state" / "checkpoint-000000000100.ckpt").exists()


def test_cache_folder_writable_by_others_is_not_used(read_only):
    name = folder_of_user(read_only).name
    places = [read_only / "tmp" / planted / name for planted in ("open", "link", "file", "foreign")]
    for place in places:
        place.parent.mkdir()
        place.parent.chmod(0o1777)
    (a_folder, link, file, foreign) = places
    a_folder.mkdir()
    a_folder.chmod(0o770)
    (link.parent / "elsewhere").mkdir(0o700)
    link.symlink_to("elsewhere")
    file.touch()
    foreign.mkdir(0o700)
    if os.geteuid() == 0:  # only root can create folders of other users
        os.chown(foreign, 65534, 65534)
    else:
        places.remove(foreign)
    done = run(read_only, SHOW, *(place.parent for place in places))
    for place, path in zip(places, done.stdout.split(), strict=True):
        assert f", so compiled code is kept in {path}. " in done.stderr
        assert path.startswith(f"{place.parent}/streamsvm-")
        assert path != str(place)
        assert not Path(path).exists()
        assert not place.is_dir() or not list(place.iterdir())


def test_without_a_writable_folder_nothing_is_cached(read_only):
    nowhere = f"import tempfile; tempfile.tempdir = {str(read_only / 'none')!r}"
    warning = the_warning(run(read_only, f"{nowhere}; {COMPILE}", NUMBA_CACHE_DIR="/proc/none"))
    assert "NUMBA_CACHE_DIR=/proc/none cannot be written to (" in warning
    assert "), so compiled code is not kept: every process compiles it again" in warning


def files(folder):
    return list((folder / "streamsvm").iterdir())


def double(x):
    return 2.0 * x


@pytest.fixture
def compiles(tmp_path, monkeypatch):
    """A function that uses a compiled function as a new process would, and returns how many functions were compiled for it."""
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    for cached in (cache_folders.find_cache_folder, disk_cache._delete_unused):
        cached.cache_clear()

    def use():
        before = len(disk_cache.compiled_names)
        assert load_backend().CompiledFunction(double, {})(3.0) == 6.0
        return len(disk_cache.compiled_names) - before

    yield use
    cache_folders.find_cache_folder.cache_clear()


def compile_in(folder, code=f"{COMPILE}; {COUNT}", **variables):
    """Compile in a new process; return the number of functions that it has compiled."""
    changed = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "STREAMSVM_MACHINE_CODE": "0", **variables}
    environment = {name: value for name, value in changed.items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_functions_in_damaged_files_are_compiled_again(tmp_path, compiles):
    assert compiles() == 1
    assert compiles() == 0
    [path] = files(tmp_path)
    valid = path.read_bytes()
    for content in (valid[:1000], b"", valid[:2000] + bytes([valid[2000] ^ 1]) + valid[2001:], b"other" + valid[5:]):
        path.write_bytes(content)
        assert compiles() == 1
        assert path.read_bytes()[:20] == valid[:20]
    assert compiles() == 0


def test_each_processor_type_has_its_own_files(tmp_path):
    for number, processor in enumerate((THIS, ANOTHER)):
        assert compile_in(tmp_path, **processor) == 1
        assert len(files(tmp_path)) == number + 1


def test_second_process_waits_for_the_first_to_compile(tmp_path):
    assert compile_in(tmp_path) == 1
    [path] = files(tmp_path)
    aside = path.rename(tmp_path / "aside")
    with path.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "STREAMSVM_MACHINE_CODE": "0"}
        words = [sys.executable, "-c", f"{COMPILE}; {COUNT}"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as second:
            with pytest.raises(subprocess.TimeoutExpired):
                second.wait(5.0)
            aside.rename(path)
            fcntl.flock(lock, fcntl.LOCK_UN)
            assert second.communicate()[0] == "0\n"


def test_full_disk_makes_every_process_compile(tmp_path):
    # Files are limited to 1,000 bytes.
    small = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    small += f"resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); {COMPILE}"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "STREAMSVM_MACHINE_CODE": "0"}
    done = subprocess.run([sys.executable, "-c", small], capture_output=True, text=True, check=True, env=environment)
    assert "compiled code cannot be kept on disk, so every process compiles it again: " in done.stderr
    assert files(tmp_path) == []


def test_files_writable_by_others_are_not_executed(tmp_path, compiles):
    assert compiles() == 1
    [path] = files(tmp_path)
    path.chmod(0o666)
    assert compiles() == 1
    assert compiles() == 0
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        assert compiles() == 1


def test_only_unused_cache_files_are_deleted(tmp_path, compiles):
    assert compiles() == 1
    [path] = files(tmp_path)
    kept = [path.with_name(name) for name in ("poetry.lock", "film.part", "my.code")]
    old = [path.with_name(f"old-{'0' * 40}.{kind}") for kind in ("code", "lock")] + [path.with_name(".part-streamsvm-0")]
    for made in (*kept, *old):
        made.touch()
        os.utime(made, (0, 0))
    disk_cache._delete_unused.cache_clear()
    path.unlink()
    assert compiles() == 1
    assert set(kept) < set(files(tmp_path))
    assert not set(old) & set(files(tmp_path))


def test_suspended_process_does_not_block_others(tmp_path, compiles, monkeypatch):
    monkeypatch.setattr(disk_cache, "_LOCK_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(disk_cache, "_stopped_waiting", threading.Event())
    assert compiles() == 1
    [path] = files(tmp_path)
    path.unlink()
    with path.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert compiles() == 1


def test_deleted_lock_file_is_locked_again(tmp_path, monkeypatch):
    first, second, third = (disk_cache.FunctionCache(None) for _ in range(3))
    path = tmp_path / "f.code"
    first._lock(path)
    waits = threading.Thread(target=second._lock, args=[path])
    waits.start()
    time.sleep(0.1)
    first.release(0)
    waits.join()
    assert second.held == 1
    with path.with_suffix(".lock").open("rb") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    second.release(0)
    locks, deleted = disk_cache.try_lock, []

    def late(file):  # the previous owner deletes the lock file after it was opened and before it is locked
        if not deleted:
            deleted.append(path.with_suffix(".lock").unlink())
        return locks(file)

    monkeypatch.setattr(disk_cache, "try_lock", late)
    third._lock(path)
    assert path.with_suffix(".lock").exists()
    third.release(0)
    assert list(tmp_path.iterdir()) == []


def test_links_pipes_and_renamed_files_are_not_loaded(tmp_path, compiles):
    assert compiles() == 1
    [path] = files(tmp_path)
    valid, renamed = path.read_bytes(), path.with_name("another-" + "0" * 40 + ".code")
    precious = tmp_path / "precious"
    precious.write_bytes(valid)  # valid content at another path

    def pipe(at):
        os.mkfifo(at)

    def link(at):
        at.symlink_to(precious)

    for made, at in ((pipe, path), (pipe, path.with_suffix(".lock")), (link, path), (link, path.with_suffix(".lock"))):
        path.unlink()
        made(at)
        assert compiles() == 1
        at.unlink(missing_ok=True)
        path.write_bytes(valid)
        assert precious.read_bytes() == valid
    assert disk_cache._read_file(path) is not None
    path.rename(renamed)
    assert disk_cache._read_file(renamed) is None
