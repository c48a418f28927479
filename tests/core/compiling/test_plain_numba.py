"""Learners work without the replacements, if numba has renamed a private part that the library replaces."""

import os
import subprocess
import sys

import pytest

from lists import OF_RELEASE, sample
from streamsvm.core.compiling.common import INTERPRETED

pytestmark = [pytest.mark.thorough, pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")]

PARTS = (
    "add_linking_library",
    "from_function",
    "_finalize_final_module",
    "get_pointer_to_function",
    "get_executable",
    "_customize_flags",
    "_compile_core",
    "raise_with_shape_context",
    "run_untyped_passes",
    "inline_function",
)

#: Loads numba's modules with one function renamed, then runs a script and prints the value of a condition.
RENAMED = r"""
import gc, importlib.machinery as machinery, re, sys

gc.set_threshold(50_000)  # compiling makes many objects that stay

class Loader(machinery.SourceFileLoader):
    def get_code(self, fullname):
        source = self.get_data(self.path)
        if self.path.split("site-packages")[-1].startswith("/numba/") and sys.argv[1].encode() in source:
            name = sys.argv[1].encode()
            return compile(re.sub(rb"\b%s\b" % name, b"renamed_" + name, source), self.path, "exec")
        return super().get_code(fullname)

suffixes = (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES), (Loader, machinery.SOURCE_SUFFIXES)
sys.path_hooks.insert(0, machinery.FileFinder.path_hook(*suffixes))
sys.path_importer_cache.clear()

import numpy as np
import streamsvm.learners

exec(sys.argv[2])
print(eval(sys.argv[3]))
"""
LEARN = """
rng = np.random.default_rng(0)
X = rng.normal(size=(400, 2)).astype(np.float32)
y = (X[:, 0] > 0).tolist()
for x, label in zip(X[:300].tolist(), y, strict=False):
    model.learn_one(dict(enumerate(x)), label)
model.learn_many(X[:300], y[:300])
is_accurate = np.mean(model.predict_many(X[300:]) == y[300:]) > 0.9
"""
LINEAR = f"model = streamsvm.learners.OnlineLinearSVC(){LEARN}"
#: All experts, of which two are kernel machines with so few support vectors that their strategy is called.
ENSEMBLE = f"""
from streamsvm.learners import ensemble
ensemble.EXPERTS["normal"] = ensemble._make_classification_experts(20)
model = streamsvm.learners.SVMClassifier()
{LEARN}
"""
FULL = "is_accurate and [stores[0].views.header[0]['n_support'] for stores in model._store.stores[:2]] == [20, 20]"
#: A strategy alone, which a compiled function calls by its address.
REMOVAL = """
from numba import njit
from streamsvm.core.budget import Removal
from streamsvm.core.budget.strategy import maintain_budget, set_strategy
from streamsvm.core.memory.slots import append_vector
from streamsvm.core.memory.support_vectors import SupportVectorStore

store = SupportVectorStore(4, 2)
store.used = 2
for weight in range(5):
    append_vector(store.block, np.ones(2, np.float32), 1.0, 1.0 + weight)
    store.coefficients[0, weight] = 1.0 + abs(weight - 3)
set_strategy(store, Removal(), False)
n_merged = njit(lambda block, random: maintain_budget(block, random))(store.block, np.uint64(0))
"""
MERGING = f"model = streamsvm.learners.BSGDClassifier(20){LEARN}"
#: Scripts whose functions are called by address, each with a condition; before a release also a kernel machine that merges, and
#: the experts of an ensemble, which take long to compile.
CALLERS = {"strategy": (REMOVAL, "n_merged == 0 and sorted(store.views.weights[:4].tolist()) == [1.0, 2.0, 3.0, 5.0]")}
CALLERS |= {"merging": (MERGING, "is_accurate and model.n_support == 20"), "experts": (ENSEMBLE, FULL)} if OF_RELEASE else {}
#: Optimised less, as the speed of compiled functions does not matter here.
QUICKLY = {"NUMBA_OPT": "1", "NUMBA_LOOP_VECTORIZE": "0", "NUMBA_SLP_VECTORIZE": "0"}


def run(part, folder, script=LINEAR, condition="is_accurate"):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "STREAMSVM_MACHINE_CODE": "0", **QUICKLY}
    words = [sys.executable, "-c", RENAMED, part, script, condition]
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    assert done.stdout == "True\n"
    return done.stderr


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


def test_learner_works_if_numba_has_renamed_a_private_part(cache):
    [line] = run("get_executable", cache).splitlines()
    assert line.startswith("numba ")
    assert "get_executable" in line
    assert not list(cache.glob("streamsvm/*.code"))
    assert list(cache.glob("streamsvm/numba-*/**/*.nbc"))


@pytest.mark.parametrize("part", sample(4, PARTS))
def test_each_private_part_may_be_renamed(cache, part):
    """Four of them; before a release, each."""
    [line] = run(part, cache).splitlines()
    assert part in line


@pytest.mark.parametrize("caller", CALLERS)
def test_strategies_and_experts_are_called_by_address(cache, caller):
    """Before a release, learners that merge, and all experts of an ensemble, too."""
    assert len(run("_finalize_final_module", cache, *CALLERS[caller]).splitlines()) == 1
