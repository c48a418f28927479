import subprocess
import sys

import pytest

IMPORTS = """
import sys
import streamsvm
assert "river.metrics" not in sys.modules and callable(streamsvm.load)
import streamsvm.cli.learn, streamsvm.cli.predict, streamsvm.learners.thresholds
import streamsvm.cli.score, streamsvm.cli.export, streamsvm.cli.understand
from streamsvm.files.river_metrics import metrics
assert not {"scipy.stats", "scipy.integrate", "sklearn", "river.preprocessing"} & {*sys.modules}
mean = metrics.GeometricMean()
for y, predicted in ((True, True), (True, False), (False, False)):
    mean.update(y, predicted)
assert abs(mean.get() - 0.5**0.5) < 1e-12
area = metrics.ROCAUC()
for y, probability in ((True, 0.9), (False, 0.1), (True, 0.8)):
    area.update(y, {True: probability})
assert area.get() > 0.9
from scipy import integrate, stats
assert stats is sys.modules["scipy.stats"] and integrate is sys.modules["scipy.integrate"]
"""


@pytest.mark.thorough
def test_scipy_stats_is_imported_lazily():
    done = subprocess.run([sys.executable, "-W", "error", "-c", IMPORTS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
