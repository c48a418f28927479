"""``streamsvm report``: the page agrees with `score`, `explain` and the checkpoint."""

import base64
import hashlib
import html.parser
import json
import re
from statistics import median

import pytest

import streamsvm
from streamsvm import OneClassBSGD
from streamsvm.stream.page import render_page

WILD = "</script><script>alert('\u202e')//"


def table(n, seed=0):
    for i in range(n):
        city = ("Oslo", "Paris", WILD)[(i // 2 + seed) % 3]
        yield f"{i},{city},{'' if i % 10 == 3 else i % 9},{'yes' if (city == 'Oslo') ^ (i % 5 == 0) else 'no'}"


@pytest.fixture
def state(file, tmp_path, call):
    path = file("rows.csv", "id,city,size,y", *table(250), "500,Oslo,1,", "501,Oslo", *list(table(500))[250:])
    words = ["--learner", "bsgd,budget=30", "--on-error", "skip", "--drift", "ADWIN"]
    call("learn", path, "--label", "y", "--checkpoint", tmp_path / "state", "--quiet", *words)
    return tmp_path / "state"


def facts(path):
    """Return the figures in a page, and check that it contains only its own scripts."""
    text = path.read_text("utf-8")
    scripts = []

    class Parser(html.parser.HTMLParser):
        def handle_starttag(self, tag, attributes):
            if tag == "script":
                scripts.append(dict(attributes))

    Parser().feed(text)
    assert scripts == [{"type": "application/json", "id": "facts"}, {}]
    return json.loads(re.search(r'id="facts">(.*?)</script>', text, re.DOTALL)[1])


def test_scores_are_those_of_score_and_importance_that_of_explain(state, file, tmp_path, call):
    rows = file("new.csv", "id,city,size,y", *table(200, 1), "200,Oslo", "201,Oslo,2,", "202,Oslo,big,no")
    assert call("report", state, rows, "--to", tmp_path / "out.html").stdout.startswith(f"{tmp_path / 'out.html'}: ")
    report_facts = facts(tmp_path / "out.html")
    due = json.loads(call("score", rows, "--model", state, "--json").stdout)
    scores = {score["name"]: score for score in due["scores"]}
    assert report_facts["score"]["value"] == pytest.approx(scores["Accuracy"]["value"], rel=1e-5)
    assert report_facts["score"]["guesses"][0][1] == pytest.approx(next(iter(scores["Accuracy"]["baselines"].values())), rel=1e-5)
    assert "On 200 rows of" in report_facts["score"]["sentence"]
    assert report_facts["confusion"]["table"] == scores["ConfusionMatrix"]["table"]
    assert sum(rows for _, _, rows in report_facts["calibration"]["bins"]) == 200
    assert "Not scored of" in " ".join(report_facts["notes"])
    why = json.loads(call("explain", state, file("some.csv", "id,city,size,y", *table(200, 1)), "--json").stdout)
    assert {name for name, _, _ in report_facts["importance"]["columns"]} == why["mean_contributions"].keys() == {"city", "size"}
    assert [row["parts"][0][0] for row in report_facts["explained"]["rows"]] == [
        next(iter(row["contributions"])) for row in why["explained"]
    ]
    assert dict(report_facts["tiles"])["a row"].endswith(" µs")


@pytest.mark.filterwarnings("default")
def test_labels_of_another_stream_are_scored(state, file, tmp_path, call):
    bare = file("bare.csv", "id,city,size,t", *(f"{line.rpartition(',')[0]},{i}" for i, line in enumerate(table(100, 1))))
    labels = file("labels.csv", "id,y,t", *(f"{i},{line.rpartition(',')[2]},{i + 9}" for i, line in enumerate(table(90, 1))))
    both_file = file("both.csv", "id,city,size,y", *table(90, 1))
    call("report", state, both_file, "--to", tmp_path / "due.html")
    words, joined = ["--label", "y", "--to", tmp_path / "out.html", "--overwrite", "--labels"], f"{labels}?key=id&time=t"
    call("report", state, bare, *words, f"{joined}&expired=dead-letter", status=2, says="leave expired=dead-letter out")
    for flag in (["--labels", joined], ["--positive", "yes"], ["--label", "y"], ["--format", "csv"]):
        call(
            "report",
            state,
            "--to",
            tmp_path / "out.html",
            *flag,
            status=2,
            says=f"{' '.join(flag)} is about ROWS: name them, too",
        )
    call("report", state, both_file, *words, joined, status=1, says="line 2: the row contains its label, and labels come from")
    call("report", state, bare, *words, joined)
    due, report_facts = facts(tmp_path / "due.html"), facts(tmp_path / "out.html")
    assert (report_facts["score"]["value"], report_facts["confusion"]) == (due["score"]["value"], due["confusion"])
    assert "10 wait for a label" in " ".join(report_facts["notes"])
    other_labels = file("others.csv", "id,y,t", "-1,yes,0")
    call(
        "report",
        state,
        bare,
        *words,
        f"{other_labels}?key=id&time=t",
        status=1,
        says="was joined with a label: 100 wait for a label",
    )


def test_report_without_rows_shows_recorded_scores(state, tmp_path, call):
    call("report", state, "--to", tmp_path / "out.html")
    report_facts, header = facts(tmp_path / "out.html"), json.loads(call("inspect", state, "--json").stdout)
    assert report_facts["title"] == "A model that predicts y"
    assert report_facts["score"]["value"] == pytest.approx(header["scores"][0]["value"], rel=1e-5)
    assert report_facts["score"]["guesses"][0][0].startswith("always '")
    assert sum(sum(row[1:]) for row in report_facts["confusion"]["table"][1:]) == 499  # the first row is not predicted
    assert [point[0] for point in report_facts["curve"]["points"]] == [point[0] for point in header["curve"]["points"]]
    assert report_facts["curve"]["points"][-1][4:6] == [1, 0]
    columns = {row["name"]: row for row in report_facts["columns"]["rows"]}
    assert [columns[name]["kind"] for name in ("id", "city", "size", "y")] == ["dropped", "category", "number", "label"]
    assert columns["size"]["missing"] == pytest.approx(0.1, abs=0.01)
    assert WILD[:9] in columns["city"]["values"]
    assert "importance" not in report_facts
    assert "report STATE ROWS" in " ".join(report_facts["notes"])


def test_report_overwrites_only_own_files(state, file, tmp_path, call):
    path = tmp_path / "out.html"
    call("report", state, "--to", path)
    call("report", state, "--to", path)
    path.write_text("<p>mine</p>")
    call("report", state, "--to", path, status=2, says="streamsvm did not write it")
    call("report", state, "--to", path, "--overwrite")
    call("report", state, "--to", tmp_path / "out.md", status=2, says="the report is a page: name an .html file")
    rows = file("rows.html", "id,city,size,y", *table(9))
    call("report", state, rows, "--format", "csv", "--to", rows, status=2, says="would overwrite ROWS")
    call("report", state, file("none.csv", "id,city,size,y"), "--to", path, status=1, says="has no rows")
    call("report", state, "--to", tmp_path / "no" / "out.html", status=1, says="No such file or directory")


def test_rows_without_labels_and_models_of_anomalies(state, file, tmp_path, call):
    path = tmp_path / "out.html"
    call("report", state, file("bare.csv", "id,city,size", "1,Oslo,3", "2,Paris,4"), "--to", path)
    report_facts = facts(path)
    assert "so scores are those of the run" in " ".join(report_facts["notes"])
    assert "moves a decision" in report_facts["importance"]["sentence"]
    model = OneClassBSGD(10)
    for i in range(50):
        model.learn_one({"a": i % 7 / 7})
    streamsvm.save(model, tmp_path / "odd")
    call("report", tmp_path / "odd", file("a.csv", "a", "0.1", "0.9"), "--to", path)
    assert facts(path)["score"]["what"].startswith("It detects anomalies")


def test_the_page_runs_its_own_script_alone():
    text = render_page({"title": WILD})
    (digest,) = re.findall(r"script-src 'sha256-([^']+)'", text)
    script = text.rpartition("<script>")[2].partition("</script>")[0]
    assert base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() == digest
    assert "connect-src 'none'" in text
    assert "connect-src 'self'" in render_page()
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.findall(r"<(?:link|img|iframe|object)|\bsrc=|@import|url\((?!#)", text)


@pytest.mark.parametrize("regression", [False, True])
def test_errors_of_keys(file, tmp_path, call, regression):
    """They are those of single predictions, with the key and with one that the model does not know."""
    lines = [
        f"d{i * i % 11 % 5},{i % 7},{(i * i % 11 % 5 + (i % 7 == 3) * 0.5) if regression else 'ab'[i * i % 3]}"
        for i in range(400)
    ]
    rows = [dict(zip(("device", "size", "y"), line.split(","), strict=True)) for line in lines]
    rows[20] |= {"device": ""}
    path = file("rows.csv", "device,size,y", *(",".join(row.values()) for row in rows), "d1,3,")
    words = "--label", "y", "--columns", "device:key", "--learner", "bsgd,budget=20", "--checkpoint", tmp_path / "state"
    call("learn", path, *words, *["--regression"] * regression, "--quiet")
    call("report", tmp_path / "state", path, "--to", tmp_path / "out.html")
    part, model, losses = facts(tmp_path / "out.html")["keys"], streamsvm.load(tmp_path / "state"), {}
    for row in (row for row in rows if row["device"]):
        for x in (row, {**row, "device": "of nobody"}):
            y, predicted = row["y"], model.predict_one({"device": x["device"], "size": float(x["size"])})
            loss = abs(float(y) - predicted) if regression else y != predicted
            losses.setdefault(row["device"], []).append(loss)
    means = {key: [sum(some[i::2]) / len(some[::2]) for i in range(2)] for key, some in losses.items()}
    expected = {
        key: [str(len(losses[key]) // 2), *(f"{e:.4g}" if regression else f"{100 * e:.1f} %" for e in means[key])]
        for key in means
    }
    assert {key: cells for key, *cells in part["table"][1:]} == expected
    errors = [means[key][0] for key, *_ in part["table"][1:]]
    assert errors == sorted(errors, reverse=True)
    helped = sum(with_key < without for with_key, without in means.values())
    counts = sorted(len(some) // 2 for some in losses.values())
    assert part["sentence"].startswith(
        f"399 rows of {len(means)} keys (device): {median(counts):g} of a key in the median, and {counts[-1]} of the"
    )
    assert f"smaller for {helped} keys" in part["sentence"]
    assert [name for name, _, _ in facts(tmp_path / "out.html")["importance"]["columns"]] == ["device", "size"]
    call("report", tmp_path / "state", file("new.csv", "device,size", "d1,2"), "--to", tmp_path / "out.html", "--overwrite")
    assert "keys" not in facts(tmp_path / "out.html")
