"""examples/serve.py: predictions over HTTP with the newest model, and requests that are refused."""

import http.client
import json
import re
import runpy
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest

from patience import PATIENCE, until
from streamsvm import BSGDClassifier, load
from streamsvm.stream import CheckpointFolder

EXAMPLE = Path(__file__).parents[2] / "examples" / "serve.py"


def ask(port, body=None, path="/predict", **headers):
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as client:
        client.request("GET" if body is None else "POST", path, body, headers)
        response = client.getresponse()
        return response.status, json.loads(response.read())


def model_of(n):
    model = BSGDClassifier(budget=10)
    for i in range(n):
        model.learn_one({"a": i % 7 / 7, "b": i % 5 / 5}, "yes" if i % 7 > 3 else "no")
    return model


def save(folder, n):
    folder.save(model_of(n), None, rows=n, position={})


@contextmanager
def served(place, seconds=PATIENCE):
    """The port of a server within this process, which gives a client so long."""
    example = runpy.run_path(str(EXAMPLE))
    example["Handler"].setup.__globals__["TIMEOUT_SECONDS"] = seconds
    predictor = example["Predictor"](str(place))
    with example["Server"](("127.0.0.1", 0), predictor) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_address[1], example
        finally:
            server.shutdown()
            thread.join()
            predictor.close()


def test_server_replies_to_valid_and_invalid_requests(tmp_path):
    with CheckpointFolder(tmp_path / "state") as folder:
        save(folder, 200)
    good = {"a": 0.9, "b": 0.1}
    with served(tmp_path / "state") as (port, example):
        until(lambda: ask(port, path="/healthz")[0] == 200)
        assert ask(port, path="/healthz") == (200, {"ready": True, "version": 200})
        model = load(tmp_path / "state")
        status, reply = ask(port, json.dumps([good, {"a": 0.0, "c": 1.0}]))
        assert (status, reply["version"]) == (200, 200)
        first, second = reply["predictions"]
        assert first == {"label": "yes", "probability": max(model.predict_proba_one(good).values())}
        assert second["label"] == model.predict_one({"a": 0.0}) == "no"
        assert "'c'" in reply["notes"][0]
        many = [good] * (example["MAX_REQUEST_ROWS"] + 1)
        for body, status, words in (
            ([good, {"a": "x"}], 400, "row 2: feature 'a' is 'x', a str: features must be numbers"),
            ([{"a": 1e300}], 400, "row 1: feature 'a' is 1e+300"),
            ([[1.0]], 400, "row 1: a row must be a mapping"),
            ([None], 400, "row 1: a row must be a mapping"),
            ([], 400, "must be a list of rows"),
            (good, 400, "must be a list of rows"),
            ("[", 400, "the request is not JSON"),
            ("[" * 100_000, 400, "the request is not JSON"),
            (b"\xff\xff", 400, "the request is not JSON"),
            (many, 413, "more than 1,000 rows"),
            ("x" * (example["MAX_REQUEST_BYTES"] + 1), 413, "more than 1,048,576 bytes"),
        ):
            text = body if isinstance(body, str | bytes) else json.dumps(body)
            reply_status, facts = ask(port, text)
            assert reply_status == status, (text[:100], facts)
            assert words in facts["error"]
        assert ask(port, "[]", "/other")[0] == ask(port, path="/")[0] == 404
        assert ask(port, iter([b"[]"]))[0] == 411
        assert ask(port, json.dumps([good]))[1]["predictions"] == [first]


def test_missing_model_gives_503_and_slow_client_is_disconnected(tmp_path):
    with served(tmp_path / "state") as (port, _):
        assert ask(port, path="/healthz") == (503, {"ready": False, "version": -1})
        assert ask(port, '[{"a": 1.0}]') == (503, {"error": "there is no model yet"})
    with (
        served(tmp_path / "state", 0.1) as (port, _),
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as slow,
        suppress(ConnectionError),  # the connection may be closed before it sends
    ):
        slow.sendall(b"POST /predict HTTP/1.1\r\nContent-Length: 100\r\n\r\n[")
        assert slow.recv(100) == b""


@pytest.mark.thorough
def test_newer_models_are_served(tmp_path):
    state, error_path = tmp_path / "state", tmp_path / "errors"
    program = f"import serve; serve.TIMEOUT_SECONDS = {PATIENCE}; serve.main()"  # the machine may be busy
    command, row = [sys.executable, "-c", program, state, "--port", "0"], {"a": 0.5, "b": 0.2}
    process_options = {"stdout": subprocess.PIPE, "text": True, "cwd": EXAMPLE.parent}
    with error_path.open("w") as errors, subprocess.Popen(command, stderr=errors, **process_options) as server:
        try:
            port = int(re.search(r":(\d+)$", server.stdout.readline())[1])
            assert ask(port, path="/healthz")[0] == 503
            for n in (50, 400):
                with CheckpointFolder(state) as folder:
                    save(folder, n)
                until(lambda n=n: ask(port, path="/healthz")[1]["version"] == n)
                _, reply = ask(port, json.dumps([row]))
                (prediction,) = reply["predictions"]
                assert (reply["version"], prediction["label"]) == (n, model_of(n).predict_one(row))
            for path in state.glob("*.ckpt"):
                path.write_bytes(path.read_bytes()[:100])
            until(lambda: "the earlier model stays" in error_path.read_text())
            assert ask(port, json.dumps([row]))[1] == reply
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait(PATIENCE)
    assert server.returncode == 0
    assert "Traceback" not in error_path.read_text()
