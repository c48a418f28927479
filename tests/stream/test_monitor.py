"""The monitor: metrics, health checks and the live page of a running loop, over HTTP."""

import json
import math
import socket
import threading
import time
from contextlib import ExitStack
from types import SimpleNamespace
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from prometheus_client import Histogram
from prometheus_client.parser import text_string_to_metric_families
from river import drift, metrics

from patience import PATIENCE, until
from streamsvm import BSGDClassifier, BSGDRegressor
from streamsvm.stream import (
    CheckpointFolder,
    DelayedLabels,
    DelayedLearningLoop,
    DriftWatch,
    IterableSource,
    JoinedSource,
    LearningLoop,
    PredictionLoop,
    StreamError,
    http_server,
    monitor,
)
from streamsvm.stream.monitor import Monitor, MonitorError
from streamsvm.stream.page import render_page
from streamsvm.stream.sinks import FileSink


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Do not disconnect clients because the machine is slow."""
    monkeypatch.setattr(http_server, "_REQUEST_SECONDS", PATIENCE)


def rows(n=300, before=lambda i: None):
    for i in range(n):
        before(i)
        yield {"a": i % 7 / 7, "b": i % 5 / 5}, None if i % 50 == 49 else i % 2


def got(monitor, path):
    with urlopen(f"http://127.0.0.1:{monitor.port}{path}") as answer:
        return answer.read().decode()


def status(monitor, path):
    try:
        with urlopen(f"http://127.0.0.1:{monitor.port}{path}") as answer:
            return answer.status
    except HTTPError as error:
        error.close()
        return error.code


def samples(monitor):
    values = {}
    for family in text_string_to_metric_families(got(monitor, "/metrics")):
        assert family.documentation
        for sample in family.samples:
            values[sample.name, *sorted(sample.labels.items())] = sample.value
    return values


def run(loop):
    """Run a loop with a monitor, and return its progress and the metrics at the end."""
    with Monitor(loop) as server:
        return loop.run(), samples(server)


def loop_of(source, **options):
    return LearningLoop(IterableSource(source), BSGDClassifier(budget=10), **options)


def test_figures_are_those_of_the_loop():
    bad = [({"a": "x"}, 0), "no row"]
    loop = loop_of([*rows(), *bad], metric=["F1", "LogLoss", "ConfusionMatrix"], on_error="skip", window=50)
    progress, figures = run(loop)
    assert figures["streamsvm_rows_total",] == progress.rows == 302
    assert figures["streamsvm_learned_rows_total",] == progress.learned == 294
    assert figures["streamsvm_unlabelled_rows_total",] == 6
    refused = {labels[0][1]: value for (name, *labels), value in figures.items() if name == "streamsvm_refused_rows_total"}
    assert refused == loop.refused == {"not a number": 1, "malformed": 1}
    for score in progress.scores[:2]:
        assert figures["streamsvm_metric", ("name", score.name), ("window", "all")] == score.value
        assert figures["streamsvm_metric", ("name", score.name), ("window", "50")] == score.windowed
    assert len([name for name, *_ in figures if name == "streamsvm_metric"]) == 4
    assert figures["streamsvm_support_vectors",] == loop.model.n_support
    assert figures["streamsvm_merges_total",] == loop.model.n_merges
    assert figures["streamsvm_predict_seconds_count",] == 300
    assert figures["streamsvm_learn_seconds_count",] == 294
    assert figures["streamsvm_learn_seconds_bucket", ("le", "+Inf")] == 294
    assert ("streamsvm_consumer_lag",) not in figures


def test_regression_and_prediction(tmp_path):
    model = BSGDRegressor(budget=10, scaling=None)
    numbers = IterableSource((x, float(i)) for i, (x, _) in enumerate(rows(50)))
    _, figures = run(LearningLoop(numbers, model, metrics.RMSE()))
    assert figures["streamsvm_learn_seconds_count",] == 50
    assert figures["streamsvm_metric", ("name", "RMSE"), ("window", "all")] > 0.0
    with FileSink(tmp_path / "out.csv") as sink:
        predicting = PredictionLoop(IterableSource(rows(20)), model, sink)
        with Monitor(predicting) as server:
            predicting.run()
            figures = samples(server)
            state = server.make_state()
    assert figures["streamsvm_predicted_rows_total",] == 20
    assert figures["streamsvm_predict_seconds_count",] == 20
    assert figures["streamsvm_metric", ("name", "MAE"), ("window", "all")] >= 0.0  # the rows have labels
    assert not any(name.startswith("streamsvm_learn") for name, *_ in figures)
    assert state["metric"] is None


class AwaySource(IterableSource):
    """A source whose broker goes away, and that knows the time of its rows."""

    is_connected = True
    event_time = 1.7e9

    def lag(self):
        return {0: 5}


def test_the_lag_is_unknown_and_the_run_is_not_ready_while_no_broker_responds(tmp_path):
    source = AwaySource(rows(50))
    with CheckpointFolder(tmp_path / "state") as folder:
        loop = LearningLoop(source, BSGDClassifier(budget=10), checkpoints=folder)
        with Monitor(loop) as server:
            before = samples(server)
            loop.run_step(20)
            loop._running = True
            assert server.make_response("/readyz")[::2] == (200, b"running\n")
            start = time.time()
            loop.write_checkpoint()
            loop.schema.changes["new", "\ud800"] += 1  # JSON may have such a key
            figures = samples(server)
            source.is_connected = False
            assert server.make_response("/readyz")[::2] == (503, b"no broker responds\n")
            assert server.make_response("/healthz")[0] == 200
            assert server.make_state()["points"][-1]["lag"] is None
            away = samples(server)
    assert figures["streamsvm_connected",] == 1.0
    assert figures["streamsvm_schema_changes_total", ("column", r"\ud800"), ("kind", "new")] == 1.0
    assert figures["streamsvm_consumer_lag", ("partition", "0")] == 5.0
    assert figures["streamsvm_event_timestamp_seconds",] == 1.7e9
    assert figures["streamsvm_model_version",] == figures["streamsvm_checkpoint_rows",] == 20.0
    for name in ("streamsvm_model_timestamp_seconds", "streamsvm_checkpoint_timestamp_seconds"):
        assert start <= figures[name,] <= time.time()
        assert (name,) not in before
    assert away["streamsvm_connected",] == 0.0
    assert ("streamsvm_consumer_lag", ("partition", "0")) not in away


def test_health_and_the_page_during_a_run(monkeypatch):
    monkeypatch.setattr(monitor, "_FIRST_INTERVAL_SECONDS", 0.001)
    ready = threading.Event()

    def waits(i):  # wait in the middle for the checks below, and later for further points
        if i == 50:
            ready.wait()
        elif i > 50 and i % 10 == 0:
            n = len(server.make_state()["points"])
            until(lambda: len(server.make_state()["points"]) > n, every=0.001)

    loop = loop_of(rows(200, waits))
    with Monitor(loop) as server:
        assert (status(server, "/healthz"), status(server, "/readyz")) == (200, 503)
        thread = threading.Thread(target=loop.run)
        thread.start()
        until(lambda: loop.rows >= 20)
        assert (status(server, "/healthz"), status(server, "/readyz")) == (200, 200)
        ready.set()
        while thread.is_alive():
            samples(server)
            json.loads(got(server, "/state.json"), parse_constant=pytest.fail)
        points = json.loads(got(server, "/state.json"))["points"]
        assert status(server, "/readyz") == 503
        assert "<!doctype html>" in got(server, "/")
        assert status(server, "/etc/passwd") == 404
    assert points == sorted(points, key=lambda point: point["rows"])
    assert points[-1]["rows"] == 200
    assert len(points) > 10


def test_the_page_has_the_contents_of_a_report(tmp_path):
    source = [*rows(), ({"a": "x"}, 1), *rows(1700)]
    metric = ["Accuracy", "LogLoss", "ConfusionMatrix", "Calibration"]
    with CheckpointFolder(tmp_path) as folder:
        loop = loop_of(source, metric=metric, on_error="skip", checkpoints=folder, drift=DriftWatch(drift.ADWIN()))
        with Monitor(loop) as server:
            progress = loop.run()
            state = json.loads(got(server, "/state.json"))
            content = got(server, "/")
    assert content == render_page()
    assert "Content-Security-Policy" in content
    assert state["score"]["value"] == pytest.approx(progress.metric, rel=1e-5)
    assert state["score"]["guesses"][0][1] == pytest.approx(progress.scores[0].baselines[0][1], rel=1e-5)
    assert [point[:2] for point in state["curve"]["points"]] == [list(point[:2]) for point in loop.curve.points]
    assert state["confusion"]["table"][1:] == [[str(label), *counts] for label, *counts in progress.scores[2].table[1:]]
    assert sum(rows for *_, rows in state["calibration"]["bins"]) == progress.scores[3].table[-1][-1]
    tiles, facts = dict(state["tiles"]), dict(state["facts"])
    assert (tiles["rows"], tiles["refused"], tiles["drifts"]) == ("2,001", "1", "0")
    assert tiles["last 1,000 rows"] == f"{100.0 * progress.windowed:.1f} %"
    assert facts["model"].startswith("after 2,001 rows, saved for ")
    assert facts["memory"] == f"{loop.model.nbytes:,} bytes"
    assert facts["to predict a row"].startswith("half within ")


def test_the_page_of_several_loops_and_of_a_prediction_loop(tmp_path):
    group = SimpleNamespace(name="topic", state="running", timings=None, lag=lambda: {0: 3, 1: 4}, loops={}, is_connected=True)
    for partition in range(2):
        group.loops[partition] = loop_of(rows(), on_error="skip", window=50)
        group.loops[partition].run()
    with Monitor(group) as server:
        state = server.make_state()
    assert state["curve"] is None
    assert state["score"]["value"] == pytest.approx(group.loops[0].metric.get(), rel=1e-5)
    assert dict(state["tiles"])["unread rows"] == "7"
    assert [name for name, _ in state["facts"]] == ["memory of partition 0", "memory of partition 1"]
    with FileSink(tmp_path / "out.csv") as sink:
        loop = PredictionLoop(IterableSource([({"z": 1.0, "a": 0.5}, None)]), group.loops[0].model, sink, version=300)
        with Monitor(loop) as server:
            loop.run()
            state = server.make_state()
    assert state["score"] is None
    assert state["lead"] == ["1 row", "1 predicted"]
    assert dict(state["facts"])["model"].startswith("after 300 rows, in use for ")
    assert any("z" in note for note in state["notes"])


def test_a_loop_that_fails_is_not_healthy():
    loop = loop_of([({"a": 1.0}, 0), ({"a": "x"}, 1)])
    with Monitor(loop) as server:
        with pytest.raises(StreamError):
            loop.run()
        assert (status(server, "/healthz"), status(server, "/readyz")) == (503, 503)


def test_the_history_is_limited(monkeypatch):
    monkeypatch.setattr(monitor, "_FIRST_INTERVAL_SECONDS", 0.001)
    monkeypatch.setattr(monitor, "_MAX_POINTS", 16)
    loop = loop_of(rows())
    with Monitor(loop) as server:
        loop.run()
        until(lambda: server._interval >= 0.004)
        assert len(server.make_state()["points"]) <= 17


def test_a_silent_client_does_not_block_others():
    loop = loop_of(rows())
    with Monitor(loop) as server, socket.create_connection(("127.0.0.1", server.port)), socket.socket() as second:
        second.connect(("127.0.0.1", server.port))
        second.sendall(b"\xff\xfe" * 10)
        assert status(server, "/healthz") == 200


@pytest.mark.thorough
def test_a_probe_gets_a_response_beside_many_clients(monkeypatch, capfd):
    """Many clients send nothing, or half a request, and reconnect as soon as they are disconnected."""
    monkeypatch.setattr(http_server, "_MAX_CLIENTS", 60)
    done = threading.Event()

    def crowd(address):
        clients = [socket.create_connection(address) for _ in range(30)]
        while not done.is_set():
            for i, client in enumerate(clients):
                client.settimeout(0.001)
                try:
                    client.sendall(b"G")  # never a whole line
                    gone = client.recv(1) == b""
                except TimeoutError:
                    gone = False
                except OSError:
                    gone = True
                if gone:
                    client.close()
                    clients[i] = socket.create_connection(address)
        for client in clients:
            client.close()

    with Monitor(loop_of(rows())) as server:
        threads = [threading.Thread(target=crowd, args=[("127.0.0.1", server.port)]) for _ in range(3)]
        for thread in threads:
            thread.start()
        try:
            until(lambda: len(server._server.clients) == 60)
            for _ in range(5):
                with urlopen(f"http://127.0.0.1:{server.port}/healthz", timeout=PATIENCE) as answer:
                    assert answer.status == 200
            assert len(server._server.clients) <= 60
        finally:
            done.set()
            for thread in threads:
                thread.join()
    assert capfd.readouterr() == ("", "")


def test_a_failed_request_does_not_stop_the_server(monkeypatch, caplog):
    with Monitor(loop_of(rows())) as server:
        monkeypatch.setattr(server, "make_state", lambda: 1 / 0)
        assert (status(server, "/state.json"), status(server, "/healthz")) == (500, 200)
    assert "ZeroDivisionError" in caplog.text


def test_slow_clients_are_disconnected(monkeypatch, capfd):
    monkeypatch.setattr(http_server, "_REQUEST_SECONDS", 1.0)
    with Monitor(loop_of(rows())) as server, ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(3)]
        gone: set[int] = set()

        def all_gone():
            for i, client in enumerate(clients):
                try:
                    client.sendall(b"x")  # a byte now and then, so that no read times out
                    client.settimeout(0.01)
                    if client.recv(1) == b"":
                        gone.add(i)
                except TimeoutError:
                    pass
                except OSError:
                    gone.add(i)
            return len(gone) == len(clients)

        until(all_gone, every=0.05)
        until(lambda: not server._server.clients)
        monkeypatch.setattr(http_server, "_REQUEST_SECONDS", PATIENCE)
        assert status(server, "/healthz") == 200
    assert capfd.readouterr() == ("", "")


#: Accepted Host headers: addresses, names without a dot, allowed names, and none (HTTP/1.0, which browsers do not send).
OWN = ["127.0.0.1:9400", "[::1]:9400", "10.2.3.4", "localhost:9400", "learner-1:9400", "Metrics.Example.org.", None]
STRANGE = ["evil.example", "evil.example:9400", "127.0.0.1.evil.example", "metrics.example.org.evil.example"]
STRANGE += ["[evil.example]", "127.1"]


def test_requests_with_a_foreign_host_name_are_rejected(caplog):
    with Monitor(loop_of(rows()), names=["metrics.example.ORG"]) as server:
        for host in (*OWN, *STRANGE):
            caplog.clear()
            with socket.create_connection(("127.0.0.1", server.port)) as client:
                named = b"" if host is None else f"Host: {host}\r\n".encode()
                client.sendall(b"GET /state.json HTTP/1.0\r\n" + named + b"\r\n")
                answer = client.makefile("rb").read()
            served = host in OWN
            assert answer.startswith(b"HTTP/1.0 200" if served else b"HTTP/1.0 421"), host
            assert ("was rejected: --metrics-names allows it" in caplog.text) == (host == STRANGE[0])  # one warning
            assert (b"--metrics-names" in answer, b'"source"' in answer) == (not served, served)


def test_a_port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(MonitorError, match=f"cannot listen at 127.0.0.1:{port}: Address already in use. Give another port"):
            Monitor(loop_of(rows()), port)


def test_quantiles_are_bounds_of_buckets():
    histogram = Histogram("seconds", "Times", registry=None, buckets=monitor.BUCKETS)
    assert math.isnan(monitor.find_quantile(histogram, 0.5))
    for seconds in (1e-6, 3e-6, 0.5, 7.0):
        histogram.observe(seconds)
    assert [monitor.find_quantile(histogram, part) for part in (0.0, 0.25, 0.5, 0.75, 1.0)] == [1e-6, 1e-6, 5e-6, 0.5, math.inf]


def test_figures_of_delayed_labels():
    streams = [IterableSource([({"id": i, "t": float(i), "a": 1.0}, None) for i in range(9)])]
    streams.append(IterableSource([({"id": i, "t": i + 2.5}, i % 2) for i in (-1, 0, 0, 1, 2)]))
    source = JoinedSource(*streams, key="id", time="t")
    loop = DelayedLearningLoop(source, BSGDClassifier(budget=10), delayed=DelayedLabels(max_age=4.0))
    _, figures = run(loop)
    expected = {"labels_total": 5, "joined_rows_total": 3, "pending_rows": 5, "early_labels": 0, "expired_labels_total": 1}
    expected |= {"duplicate_labels_total": 1, "late_labels_total": 0, "duplicate_rows_total": 0, "learned_rows_total": 3}
    assert {name: figures[f"streamsvm_{name}",] for name in expected} == expected
    assert [figures["streamsvm_expired_rows_total", ("reason", reason)] for reason in ("age", "count", "bytes")] == [1, 0, 0]
