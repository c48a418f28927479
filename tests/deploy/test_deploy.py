"""Tests of the files in deploy/ that need neither containers nor root."""

import configparser
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from river import datasets, drift

from loops import make_model
from patience import PATIENCE
from streamsvm.cli.main import _make_parser
from streamsvm.stream import (
    CheckpointFolder,
    DelayedLabels,
    DelayedLearningLoop,
    DriftWatch,
    IterableSource,
    JoinedSource,
    LearningLoop,
    http_server,
    monitor,
)

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
UNITS = sorted(DEPLOY.glob("*.service"))


def parse_arguments(words):
    """Parse a command line of streamsvm. An unknown flag fails the test."""
    return _make_parser()[0].parse_args(words)


def read_command(unit):
    """Return program and arguments of a systemd unit, with the variables of rows.env replaced."""
    lines = [line for line in (DEPLOY / "rows.env").read_text().splitlines() if line and not line.startswith("#")]
    variables = dict(line.split("=", 1) for line in lines)
    words = shlex.split(re.search("ExecStart=(.*)", unit.read_text())[1].replace("%i", "rows"))
    return [part for word in words for part in (variables[word[1:]].split() if word.startswith("$") else [word])]


def read_instructions():
    """Return the instructions of the Dockerfile: pairs of keyword and arguments."""
    text = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [tuple(line.split(" ", 1)) for line in lines]


def test_dockerfile_is_consistent_with_the_project():
    instructions = read_instructions()
    words = [word for word, _ in instructions]
    for word, rest in instructions:
        for name in rest.split()[:-1] if word == "COPY" and "--from" not in rest else ():
            assert (ROOT / name).exists(), name
            ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
            assert f"!{name}" in ignored
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert json.loads(dict(instructions)["ENTRYPOINT"])[0] in scripts["scripts"]
    extras = re.search(r"'\.\[(.*)\]'", " ".join(rest for _, rest in instructions))[1].split(",")
    assert set(extras) <= scripts["optional-dependencies"].keys()
    user = words.index("USER")
    assert instructions[user][1] != "root"
    assert user < words.index("ENTRYPOINT")
    assert words.count("USER") == 1
    cache = re.search(r"NUMBA_CACHE_DIR=(\S+)", " ".join(rest for word, rest in instructions if word == "ENV"))[1]
    volumes = json.loads(dict(instructions)["VOLUME"])
    assert cache in volumes
    assert dict(instructions)["WORKDIR"] in volumes
    compile_position = instructions.index(("RUN", "streamsvm compile"))
    assert user < compile_position < words.index("VOLUME")  # files that are written after VOLUME are lost


def test_health_check_detects_a_failed_loop(monkeypatch):
    monkeypatch.setattr(http_server, "_REQUEST_SECONDS", PATIENCE)
    monkeypatch.setattr(http_server.RequestHandler, "timeout", PATIENCE)
    (check,) = (rest for word, rest in read_instructions() if word == "HEALTHCHECK")
    command = json.loads(check[check.index("[") :])
    loop = LearningLoop(IterableSource(datasets.Bananas().take(50)), make_model())
    loop.run()
    with monitor.Monitor(loop) as server:
        code = command[-1].replace(":9400/", f":{server.port}/").replace("timeout=4)", f"timeout={PATIENCE})")
        assert code != command[-1]
        check = [sys.executable, *command[1:-1], code]
        assert subprocess.run(check, check=False).returncode == 0
        loop._unusable_reason = "has failed"
        assert subprocess.run(check, capture_output=True, check=False).returncode != 0


def read_compose_file():
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


def test_compose_services_fit_together():
    instructions = read_compose_file()
    services, volumes = instructions["services"], instructions["volumes"]
    own_services = {name: service for name, service in services.items() if service["image"] == "streamsvm"}
    assert set(own_services) == {"learner-1", "learner-2", "merger", "follower"}
    for name, service in services.items():
        assert set(service.get("depends_on", {})) <= services.keys(), name
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert (DEPLOY / source).is_file() if source.startswith("./") else source in volumes, volume
    for service in own_services.values():
        arguments = parse_arguments(service["command"])
        assert service["read_only"] is True
        assert (DEPLOY.parent / service["build"]["dockerfile"]).is_file()
        assert arguments.log_format == "json"
        for folder in [arguments.checkpoint] if "checkpoint" in arguments else arguments.sources:
            assert not Path(folder).is_absolute()  # relative to the working folder, which is a volume
        assert (getattr(arguments, "metrics_port", None) is None) == (service.get("healthcheck") == {"disable": True})
    learner, merger, follower = (parse_arguments(own_services[name]["command"]) for name in ("learner-1", "merger", "follower"))
    assert (merger.sources, f"{merger.into}?name=merged") == ([learner.checkpoint], follower.model)
    topics = re.search(r"for topic in (.*?); do", services["topics"]["command"][-1])[1].split()
    used_topics = {url.rpartition("/")[2] for url in (learner.source, follower.source, follower.to)}
    assert set(topics) == used_topics
    job = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"][0]
    assert job["static_configs"][0]["targets"] == [
        f"{name}:{follower.metrics_port}" for name in ("learner-1", "learner-2", "follower")
    ]


class TopicLikeSource(IterableSource):
    """A source with a lag and with times of its rows, as a topic has."""

    event_time = 1.7e9

    def lag(self):
        return {0: 1}


def test_the_dashboard_shows_metrics_that_loops_have(tmp_path):
    join = JoinedSource(IterableSource([]), IterableSource([]), key="id", time="at")
    with CheckpointFolder(tmp_path / "state") as folder:
        options = {"checkpoints": folder, "drift": DriftWatch(drift.ADWIN()), "on_error": "skip"}
        rows = [*datasets.Bananas().take(50), ({"1": "text"}, True)]
        learning = LearningLoop(TopicLikeSource(rows), make_model(), **options)
        labels: dict[str, set[str]] = {}
        for loop in (learning, DelayedLearningLoop(join, make_model(), delayed=DelayedLabels())):
            with monitor.Monitor(loop) as server:
                if loop is learning:
                    loop.run()
                for family in text_string_to_metric_families(server.make_response("/metrics")[2].decode()):
                    for sample in family.samples:
                        labels.setdefault(sample.name, set()).update(sample.labels)
    dashboard = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    targets = [target for panel in dashboard["panels"] for target in panel["targets"]]
    for target in targets:
        (name,) = re.findall(r"streamsvm_\w+", target["expr"])
        used = set(re.findall(r"[{,](\w+)(?:=~|!=|=)", target["expr"])) | set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert used <= labels[name] | {"instance", "partition"}, target  # workers of a group have partitions
    assert len(targets) > 10
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    (query,) = (v["query"] for v in dashboard["templating"]["list"] if v["type"] == "query")
    assert re.fullmatch(r"label_values\((\w+), instance\)", query)[1] in labels


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_units_have_valid_settings(unit):
    parser = configparser.ConfigParser(interpolation=None, strict=False)  # EnvironmentFile comes twice
    parser.optionxform = str
    parser.read_string(unit.read_text())
    service = parser["Service"]
    program, *words = read_command(unit)
    assert Path(program).name == "streamsvm"
    arguments = parse_arguments(words)
    folders = [f"/var/lib/{service['StateDirectory']}", f"/var/cache/{service['CacheDirectory']}"]
    assert str(arguments.checkpoint).startswith(f"{folders[0]}/rows")
    assert service["Environment"] == f"NUMBA_CACHE_DIR={folders[1]}"
    assert arguments.log_format == "json"
    assert (service["ProtectSystem"], service["DynamicUser"], service["Restart"]) == ("strict", "yes", "on-failure")
    assert "130" in service["SuccessExitStatus"].split()
    assert "MemoryDenyWriteExecute" not in service


def test_follower_unit_reads_the_checkpoint_of_the_learner_unit():
    learn, predict = (parse_arguments(read_command(unit)[1:]) for unit in UNITS)
    assert (learn.command, predict.command) == ("learn", "predict")
    assert predict.model == learn.checkpoint
    assert predict.checkpoint != learn.checkpoint
    assert predict.metrics_port != learn.metrics_port


def test_systemd_accepts_the_units(tmp_path):
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze on this machine; the units are parsed by another test")
    files = []
    for unit in UNITS:
        files.append(tmp_path / unit.name.replace("@", "@rows"))
        program = shlex.split(re.search("ExecStart=(.*)", unit.read_text())[1])[0]
        files[-1].write_text(unit.read_text().replace(program, sys.executable))
    result = subprocess.run(["systemd-analyze", "verify", "--man=no", *files], capture_output=True, text=True, check=False)
    lines = [line for line in result.stderr.splitlines() if "streamsvm" in line]
    assert (result.returncode, lines) == (0, [])
