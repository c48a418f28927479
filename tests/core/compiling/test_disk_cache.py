"""Compiled functions on disk: where, whole, and compiled by one process only."""

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
#: The superuser may write anywhere, until a program is started that is denied CAP_DAC_OVERRIDE.
WITHOUT_RIGHTS = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


@pytest.fixture
def read_only():
    """A folder with a copy of the package that its user cannot write to, and a temporary directory beside it."""
    folder = Path(tempfile.mkdtemp(prefix="streamsvm-test-"))  # not of pytest: those are closed to other users
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


def test_a_folder_of_the_temporary_directory_is_used(read_only):
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
    image = read_only / "tmp" / "image" / "streamsvm"  # filled before, and read only
    shutil.copytree(made, image)
    image.chmod(0o555)
    done = run(read_only, f"{code}; {COUNT}", NUMBA_CACHE_DIR=str(image.parent))
    assert (done.returncode, done.stdout, done.stderr) == (0, "0\n", "")
    image.chmod(0o755)


def test_the_command_line_learns_in_a_container(read_only):
    # It writes to its folder and to the cache; that of the tests spares it compiling what they have compiled.
    (read_only / "tmp" / "rows.csv").write_text("a,b,y\n" + "".join(f"{i % 5},{i % 3},{i % 2}\n" for i in range(100)))
    words = ["learn", "tmp/rows.csv", "--label", "y", "--learner", "linear", "--checkpoint", "tmp/state", "--quiet"]
    learn = f"from streamsvm.cli.main import main; import sys; sys.exit(main({words!r}))"
    processor = {name: value for name, value in os.environ.items() if name.startswith("NUMBA_CPU")}
    done = run(read_only, learn, **processor, NUMBA_CACHE_DIR=str(cache_folders.find_cache_folder().parent), TMPDIR="/proc")
    assert (done.returncode, done.stderr) == (0, "")
    assert (read_only / "tmp" / "state" / "checkpoint-000000000100.ckpt").exists()


def test_a_folder_that_others_could_write_to_is_not_used(read_only):
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
    if os.geteuid() == 0:  # who alone can make a folder of somebody else
        os.chown(foreign, 65534, 65534)
    else:
        places.remove(foreign)
    done = run(read_only, SHOW, *(place.parent for place in places))
    for place, found in zip(places, done.stdout.split(), strict=True):
        assert f", so compiled code is kept in {found}. " in done.stderr
        assert found.startswith(f"{place.parent}/streamsvm-")
        assert found != str(place)
        assert not Path(found).exists()
        assert not place.is_dir() or not list(place.iterdir())


def test_without_any_place_nothing_is_cached(read_only):
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
    """Uses a function as a new process does, which may find its file in a folder; how many functions were compiled for it."""
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
    """Compile in a process of its own; how many functions it has compiled."""
    changed = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "STREAMSVM_MACHINE_CODE": "0", **variables}
    environment = {name: value for name, value in changed.items() if value is not None}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def test_damaged_files_are_compiled_again(tmp_path, compiles):
    assert compiles() == 1
    assert compiles() == 0
    [path] = files(tmp_path)
    whole = path.read_bytes()
    for content in (whole[:1000], b"", whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:], b"other" + whole[5:]):
        path.write_bytes(content)
        assert compiles() == 1
        assert path.read_bytes()[:20] == whole[:20]
    assert compiles() == 0


def test_another_processor_has_files_of_its_own(tmp_path):
    for number, processor in enumerate((THIS, ANOTHER)):
        assert compile_in(tmp_path, **processor) == 1
        assert len(files(tmp_path)) == number + 1


def test_a_second_process_waits_for_what_the_first_compiles(tmp_path):
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


def test_without_room_on_the_disk_every_process_compiles(tmp_path):
    # Files may have no more than 1,000 bytes.
    small = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
    small += f"resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)); {COMPILE}"
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "STREAMSVM_MACHINE_CODE": "0"}
    done = subprocess.run([sys.executable, "-c", small], capture_output=True, text=True, check=True, env=environment)
    assert "compiled code cannot be kept on disk, so every process compiles it again: " in done.stderr
    assert files(tmp_path) == []


def test_what_others_could_have_written_is_not_executed(tmp_path, compiles):
    assert compiles() == 1
    [path] = files(tmp_path)
    path.chmod(0o666)
    assert compiles() == 1
    assert compiles() == 0
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        assert compiles() == 1


def test_only_old_files_of_ours_are_deleted(tmp_path, compiles):
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


def test_a_process_that_was_stopped_does_not_stop_others(tmp_path, compiles, monkeypatch):
    monkeypatch.setattr(disk_cache, "_LOCK_WAIT_SECONDS", 0.2)
    monkeypatch.setattr(disk_cache, "_stopped_waiting", threading.Event())
    assert compiles() == 1
    [path] = files(tmp_path)
    path.unlink()
    with path.with_suffix(".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert compiles() == 1


def test_a_lock_that_was_deleted_is_taken_anew(tmp_path, monkeypatch):
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

    def late(file):  # who held the lock deletes it between its being opened and locked
        if not deleted:
            deleted.append(path.with_suffix(".lock").unlink())
        return locks(file)

    monkeypatch.setattr(disk_cache, "try_lock", late)
    third._lock(path)
    assert path.with_suffix(".lock").exists()
    third.release(0)
    assert list(tmp_path.iterdir()) == []


def test_links_pipes_and_files_of_other_functions_are_not_opened(tmp_path, compiles):
    assert compiles() == 1
    [path] = files(tmp_path)
    whole, other = path.read_bytes(), path.with_name("another-" + "0" * 40 + ".code")
    precious = tmp_path / "precious"
    precious.write_bytes(whole)  # which is right, but for where it is

    def pipe(at):
        os.mkfifo(at)

    def link(at):
        at.symlink_to(precious)

    for made, at in ((pipe, path), (pipe, path.with_suffix(".lock")), (link, path), (link, path.with_suffix(".lock"))):
        path.unlink()
        made(at)
        assert compiles() == 1
        at.unlink(missing_ok=True)
        path.write_bytes(whole)
        assert precious.read_bytes() == whole
    assert disk_cache._read_file(path) is not None
    path.rename(other)
    assert disk_cache._read_file(other) is None
