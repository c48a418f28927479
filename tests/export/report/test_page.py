"""The page in a real browser: nothing overlaps, nothing is wider than the screen, and names and labels remain text."""

import base64
import itertools
import json
import os
import random
import shutil
import subprocess
import tempfile
from contextlib import contextmanager

import pandas as pd
import pytest
from river import drift

import streamsvm
from lists import OF_RELEASE
from patience import PATIENCE, until
from streamsvm import BSGDClassifier, BSGDRegressor, OneClassBSGD, SVMClassifier
from streamsvm.export.report.contents import ReportRows, make_report
from streamsvm.stream import CheckpointFolder, DriftWatch, IterableSource, LearningLoop, PredictionLoop, Row, http_server
from streamsvm.stream.checkpoint import Checkpoint
from streamsvm.stream.monitor import Monitor
from streamsvm.stream.page import render_page

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "x" * 10_000,
    "\u202egnp.exe\u202c \x1b[2J",
    "\u0627\u0644\u062a\u0633\u0645\u064a\u0629 " * 40,
    "{{7*7}}&amp;'\"`",
]
TABLES = ["Accuracy", "LogLoss", "ClassificationReport", "ConfusionMatrix", "Calibration"]
NUMBERS = ["MAE", "RMSE", "R2"]

#: JavaScript that returns overlapping texts (neither inside the other), and texts outside of the page.
OVERLAPS = """(() => {
  const boxes = [...document.querySelectorAll("body *")].filter(each => !["SCRIPT", "STYLE", "NOSCRIPT"].includes(each.tagName)
    && [...each.childNodes].some(child => child.nodeType === 3 && child.data.trim())).flatMap(each => {
      const range = document.createRange();
      range.selectNodeContents(each);
      const within = each.closest(".scrolls")?.getBoundingClientRect();
      return [...range.getClientRects()].map(box => ({ each, left: box.left, top: box.top, bottom: box.bottom,
        right: within ? Math.min(box.right, within.right) : box.right })).filter(box => box.right - box.left > 1);
    });
  const found = [];
  for (const [i, a] of boxes.entries()) {
    if (a.right > document.documentElement.clientWidth + 1 || a.left < -1) found.push(["out", a.each.textContent.slice(0, 40)]);
    for (const b of boxes.slice(i + 1))
      if (!a.each.contains(b.each) && !b.each.contains(a.each) && Math.min(a.right, b.right) - Math.max(a.left, b.left) > 2
          && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4)
        found.push([a.each.textContent.slice(0, 40), b.each.textContent.slice(0, 40)]);
  }
  return found.slice(0, 5);
})()"""


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")
pytestmark = [pytest.mark.thorough, needs_browser]


class Browser:
    """A page of the browser, controlled by the DevTools protocol over two pipes."""

    def __init__(self, command_pipe, answer_pipe):
        self._to, self._answers, self._last = command_pipe, answer_pipe, 0
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = None
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        self.console = []
        """Messages of the console."""

    def _message(self):
        data = b""
        while not data.endswith(b"\0"):
            byte = os.read(self._answers, 1)
            assert byte, "the browser has gone"
            data += byte
        return json.loads(data[:-1])

    def _call(self, method, **parameters):
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if getattr(self, "_session", None) else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._last:
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening"):
                self.console.append(json.dumps(answer["params"]))
        assert "error" not in answer, answer
        return answer["result"]

    def show(self, url, width=1400, height=900, dark=False):
        """Open a page, and wait until it is drawn."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=url)
        script = "new Promise(done => { const look = () => document.querySelector('main')?.children.length ? "
        self.run(script + "requestAnimationFrame(() => setTimeout(done, 100)) : setTimeout(look, 20); look(); })")

    def run(self, script):
        """Return the value of an expression in the page."""
        result = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def picture(self, path):
        """Write a picture of the whole page."""
        screenshot = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(screenshot["data"]))


@contextmanager
def start_browser():
    """Start the browser; terminate it at the end."""
    command_end, command_pipe = os.pipe()
    answer_pipe, answer_end = os.pipe()

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
        ]
        script = f'exec "$@" 3<&{command_end} 4>&{answer_end}'  # the file descriptors that the browser uses
        pipes = {"pass_fds": (command_end, answer_end), "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(["bash", "-c", script, "bash", CHROMIUM, *flags], **pipes)
        os.close(command_end)
        os.close(answer_end)
        try:
            yield Browser(command_pipe, answer_pipe)
        finally:
            process.terminate()
            process.wait()
            os.close(command_pipe)
            os.close(answer_pipe)


@pytest.fixture(scope="module")
def chromium():
    with start_browser() as page:
        yield page


def run(model, rows, metric, folder, **options):
    with CheckpointFolder(folder) as checkpoints:
        LearningLoop(
            IterableSource(rows), model, metric, checkpoints=checkpoints, on_error="skip", error_share=1.0, **options
        ).run()
        return checkpoints.newest()


def score_rows(model, rows, metric):
    result = PredictionLoop(IterableSource(rows), model, metric=metric).run()
    return ReportRows(HOSTILE[2], [x for x, _ in rows], [y for _, y in rows], result.scored, result.scores, {"refused": 3}, 0.25)


def make_classification_report(labels, tmp_path, n=1500):
    rng = random.Random(0)
    rows = [({name[:200]: rng.random() for name in HOSTILE}, labels[i % len(labels)][:200]) for i in range(n)]
    for i, (x, _) in enumerate(rows):
        x[HOSTILE[0]] = (i % len(labels)) / len(labels)
        if i % 90 == 5:
            x[HOSTILE[1]] = "no number"
    checkpoint = run(BSGDClassifier(30), rows, TABLES, tmp_path, drift=DriftWatch(drift.ADWIN(delta=0.9)))
    return make_report(checkpoint, score_rows(checkpoint.model, rows[6:80], TABLES), 12345)


def make_table_report(tmp_path):
    rng = random.Random(0)
    texts = [{"text": f"{rng.choice(HOSTILE)} {word}"} for word in ("</td>", "z" * 90, "\U000e0001 \u05d0")]
    rows = [
        {"<b>": rng.choice(HOSTILE), "when": f"2026-0{1 + i % 9}-11", "size": "" if i % 3 else i, "y": i % 7 > 2} | texts[i % 3]
        for i in range(400)
    ]
    model = streamsvm.table_model(rows, label="y", columns="text:text,<b>:category")
    model.learn_many(pd.DataFrame(rows))
    return make_report(Checkpoint(model, None, {}), ReportRows("rows", rows[:200], [row["y"] for row in rows[:200]]))


def make_regression_report(tmp_path):
    rows = [({"a": i % 9, "b": i % 5}, 3.5 * (i % 9) + i % 5) for i in range(900)]
    checkpoint = run(BSGDRegressor(30), rows, NUMBERS, tmp_path)
    return make_report(checkpoint, score_rows(checkpoint.model, rows[:100], NUMBERS))


def make_anomaly_report(tmp_path):
    model = OneClassBSGD(20)
    rows = [{"a": i % 9 / 9, "b": i % 5 / 5} for i in range(300)]
    for x in rows:
        model.learn_one(x)
    return make_report(Checkpoint(model, None, {}), ReportRows("rows", rows, [None] * len(rows)))


def make_report_of_an_earlier_version(tmp_path):
    checkpoint = run(SVMClassifier("low"), [({"a": i % 9}, i % 9 > 4) for i in range(300)], "Accuracy", tmp_path)
    curve = checkpoint.header["curve"]
    header = checkpoint.header | {"curve": curve | {"points": [point[:3] for point in curve["points"]]}}
    header["scores"] = [{"name": "Accuracy", "value": 0.875}]
    return make_report(checkpoint._replace(header=header))


CASES = {
    "hostile labels": lambda path: make_classification_report(HOSTILE, path),
    "one label": lambda path: make_classification_report(["only"], path),
    "many labels": lambda path: make_classification_report([f"label {i}" for i in range(100)], path),
    "a table": make_table_report,
    "numbers": make_regression_report,
    "anomalies": make_anomaly_report,
    "earlier": make_report_of_an_earlier_version,
    "nothing": lambda _: make_report(Checkpoint(BSGDClassifier(), None, {})),
}


@pytest.mark.parametrize("case", CASES)
def test_pages_fit_every_screen_without_overlaps_or_scripts(case, chromium, tmp_path):
    """Light on a wide screen and dark on a narrow one; before a release, also the other way round."""
    path = tmp_path / "page.html"
    path.write_text(render_page(CASES[case](tmp_path)), "utf-8")
    chromium.console.clear()
    for width, is_dark in itertools.product((400, 1400), (False, True)) if OF_RELEASE else ((1400, False), (400, True)):
        chromium.show(path.as_uri(), width, dark=is_dark)
        assert chromium.run("document.documentElement.scrollWidth <= innerWidth")
        assert chromium.run(OVERLAPS) == []
        assert chromium.run("document.querySelectorAll('img, iframe, script:not([type]) ~ script').length") == 0
    assert chromium.run("getComputedStyle(document.body).backgroundColor") == "rgb(15, 19, 25)"
    assert chromium.console == []
    assert "undefined" not in (text := chromium.run("document.body.innerText"))
    assert "NaN" not in text


def test_the_page_of_a_run_is_updated(chromium, monkeypatch):
    monkeypatch.setattr(http_server, "_REQUEST_SECONDS", PATIENCE)
    monkeypatch.setattr(http_server.RequestHandler, "timeout", PATIENCE)
    rows = ([Row({"a": i % 7 / 7, "b": i % 5 / 5}, i % 7 > 3) for i in range(400)] for _ in itertools.count())
    loop = LearningLoop(IterableSource(itertools.chain.from_iterable(rows)), BSGDClassifier(10), TABLES)
    with Monitor(loop) as server:
        loop.run(400)
        chromium.console.clear()
        chromium.show(f"http://127.0.0.1:{server.port}/")
        assert "400 rows" in chromium.run("document.getElementById('lead').innerText")
        marker = chromium.run("(document.querySelector('main').children[2].kept = 7)")
        loop.run(500)
        until(lambda: "900 rows" in chromium.run("document.getElementById('lead').innerText"), every=0.1)
        assert chromium.run("document.querySelector('main').children.length") > 4
        for width in (400, 1400):
            chromium.show(f"http://127.0.0.1:{server.port}/", width)
            assert chromium.run(OVERLAPS) == []
            assert chromium.run("document.documentElement.scrollWidth <= innerWidth")
    assert marker == 7
    until(lambda: "no answer" in chromium.run("document.getElementById('gone').innerText"), every=0.1)
    assert not [text for text in chromium.console if "Refused to" in text or "violates" in text]
    assert json.loads(json.dumps(chromium.run("document.title"))).startswith("ended")
