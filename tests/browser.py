"""A real browser for tests of pages: Chromium, which is told over a pipe what to do. Without one, such tests are skipped."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")


class Browser:
    """One page of the browser."""

    def __init__(self, to, answers):
        self._to, self._answers, self._last = to, answers, 0
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        self._session = None
        self._session = self._call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._call(f"{domain}.enable")
        self.said = []
        """What the console has said."""

    def _message(self):
        data = b""
        while not data.endswith(b"\0"):
            part = os.read(self._answers, 1)
            assert part, "the browser has gone"
            data += part
        return json.loads(data[:-1])

    def _call(self, method, **parameters):
        self._last += 1
        message = {"id": self._last, "method": method, "params": parameters}
        message |= {"sessionId": self._session} if getattr(self, "_session", None) else {}
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._message()).get("id") != self._last:
            if answer.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Page.javascriptDialogOpening"):
                self.said.append(json.dumps(answer["params"]))
        assert "error" not in answer, answer
        return answer["result"]

    def show(self, url, width=1400, height=900, dark=False):
        """Open a page, and wait until it has drawn itself."""
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call("Page.navigate", url=url)
        script = "new Promise(done => { const look = () => document.querySelector('main')?.children.length ? "
        self.run(script + "requestAnimationFrame(() => setTimeout(done, 100)) : setTimeout(look, 20); look(); })")

    def run(self, script):
        """Return the value of an expression in the page."""
        found = self._call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def picture(self, path):
        """Write a picture of the whole page."""
        found = self._call("Page.captureScreenshot", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))


@contextmanager
def browser():
    """Start the browser, and end it."""
    out, to = os.pipe()
    answers, back = os.pipe()

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        words = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
        ]
        script = f'exec "$@" 3<&{out} 4>&{back}'  # where the browser looks for them
        pipes = {"pass_fds": (out, back), "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(["bash", "-c", script, "bash", CHROMIUM, *words], **pipes)
        os.close(out)
        os.close(back)
        try:
            yield Browser(to, answers)
        finally:
            process.terminate()
            process.wait()
            os.close(to)
            os.close(answers)
