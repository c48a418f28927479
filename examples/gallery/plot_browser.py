"""A learner in the browser
========================

A model that was trained in Python keeps learning in this page. ``examples/browser/build.py`` writes the model as C99,
compiles it to WebAssembly, and puts it into a single page of 32 KB that needs no server. The picture shows the
model after 300 rows in Python:
"""

import html
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt

import streamsvm
from streamsvm.export.plots import draw_boundary

folder = Path(tempfile.mkdtemp())
subprocess.run([sys.executable, "../browser/build.py", "--out", folder], stdout=subprocess.DEVNULL, check=True)
figure, axis = plt.subplots(figsize=(5.5, 5.5), layout="constrained")
draw_boundary(axis, streamsvm.load(folder / "model.safetensors"))
handles = axis.get_legend().legend_handles
axis.get_legend().remove()
figure.legend(handles, ["Label False", "Label True", "Support vectors"], loc="outside lower center", ncols=3)
axis.set(xlim=(0, 1), ylim=(0.97, 0), aspect="equal", xlabel="Feature 0", ylabel="Feature 1")
axis.set_title("The model before its first row in the browser")

# %%
# Rows are True in a ring, shown in blue, and False inside and outside the ring. After only 300 rows, the boundary is
# still rough.
#
# Below is the page itself, with the same model. Press *Start the stream*, and the boundary becomes a smooth ring
# within a second. Then switch the stream to *bars*. The accuracy falls and rises again, with no more than 60 support
# vectors and the same number of bytes. Click on the map to teach the model a row of your own.


class Frame:
    """An embedded page."""

    def _repr_html_(self):
        page = (folder / "index.html").read_text("utf-8")
        return f'<iframe class="embedded" title="The learner" srcdoc="{html.escape(page)}"></iframe>'


Frame()
