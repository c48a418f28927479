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

#: Loads numba's modules with one function renamed, then learns and prints whether the model is accurate.
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

rng = np.random.default_rng(0)
X = rng.normal(size=(400, 2)).astype(np.float32)
y = (X[:, 0] > 0).tolist()
exec(sys.argv[2])
for x, label in zip(X[:300].tolist(), y, strict=False):
    model.learn_one(dict(enumerate(x)), label)
model.learn_many(X[:300], y[:300])
print(np.mean(model.predict_many(X[300:]) == y[300:]) > 0.9 and eval(sys.argv[3]))
"""
LINEAR = "model = streamsvm.learners.OnlineLinearSVC()"
#: All experts, of which two are kernel machines with so few support vectors that their strategy is called.
ENSEMBLE = """
from streamsvm.learners import ensemble
ensemble.EXPERTS["normal"] = ensemble._make_classification_experts(20)
model = streamsvm.learners.SVMClassifier()
"""
FULL = "[stores[0].views.header[0]['n_support'] for stores in model._store.stores[:2]] == [20, 20]"
REMOVAL = """
from streamsvm.core.budget import Removal
model = streamsvm.learners.BSGDClassifier(80, maintenance=Removal())
"""
MERGING = "model = streamsvm.learners.BSGDClassifier(20)"
#: Models whose functions are called by address, each with a condition: the strategy of a kernel machine that is compiled fastest;
#: before a release also the default one, and the experts of an ensemble, which take four times as long to compile.
CALLERS = {"strategy": (REMOVAL, "model.n_support == 80")}
CALLERS |= {"merging": (MERGING, "model.n_support == 20"), "experts": (ENSEMBLE, FULL)} if OF_RELEASE else {}
#: Optimised less, as the speed of compiled functions does not matter here.
QUICKLY = {"NUMBA_OPT": "1", "NUMBA_LOOP_VECTORIZE": "0", "NUMBA_SLP_VECTORIZE": "0"}


def learn(part, folder, model=LINEAR, condition="True"):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder), "STREAMSVM_MACHINE_CODE": "0", **QUICKLY}
    words = [sys.executable, "-c", RENAMED, part, model, condition]
    done = subprocess.run(words, check=True, capture_output=True, text=True, env=environment)
    assert done.stdout == "True\n"
    return done.stderr


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("compiled")


def test_learner_works_if_numba_has_renamed_a_private_part(cache):
    [line] = learn("get_executable", cache).splitlines()
    assert line.startswith("numba ")
    assert "get_executable" in line
    assert not list(cache.glob("streamsvm/*.code"))
    assert list(cache.glob("streamsvm/numba-*/**/*.nbc"))


@pytest.mark.parametrize("part", sample(4, PARTS))
def test_each_private_part_may_be_renamed(cache, part):
    """Four of them; before a release, each."""
    [line] = learn(part, cache).splitlines()
    assert part in line


@pytest.mark.parametrize("caller", CALLERS)
def test_strategies_and_experts_are_called_by_address(cache, caller):
    """Before a release, merging and all experts of an ensemble, too."""
    assert len(learn("_finalize_final_module", cache, *CALLERS[caller]).splitlines()) == 1
