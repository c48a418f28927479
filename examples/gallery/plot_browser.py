"""A learner in the browser
========================

A model that was trained in Python goes on learning in this page: ``examples/browser/build.py`` writes it as C99,
compiles that to WebAssembly, and puts it into one page of 32 KB, which needs no server. Here is what Python has
taught it, from 300 rows:
"""

import html
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import streamsvm
from streamsvm.plots import draw_boundary

folder = Path(tempfile.mkdtemp())
subprocess.run([sys.executable, "../browser/build.py", "--out", folder], stdout=subprocess.DEVNULL, check=True)
figure, axis = plt.subplots(figsize=(5.5, 5), layout="constrained")
draw_boundary(axis, streamsvm.load(folder / "model.safetensors"))
axis.set(xlim=(0, 1), ylim=(1, 0), aspect="equal", title="Before its first row in the browser")

# %%
# The rows are True in a ring, blue here, and False inside and outside of it. The boundary is rough, for 300 rows are
# few.
#
# Below is the page itself, with the same model. Press *Start the stream*: it becomes a smooth ring within a second.
# Then let the stream be about bars, and see the accuracy fall and rise again, with no more than 60 support vectors
# and the same number of bytes. A click on the map teaches it a row of yours.


class Frame:
    """A page inside this one."""

    def _repr_html_(self):
        page = (folder / "index.html").read_text("utf-8")
        return f'<iframe class="embedded" title="The learner" srcdoc="{html.escape(page)}"></iframe>'


Frame()
