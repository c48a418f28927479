"""Numbers in other notations, through each door: the results are those of plain numbers."""

import json
import random
import warnings
from datetime import date, timedelta

import pandas as pd
import pytest

from streamsvm import BSGDClassifier, BSGDRegressor, load, table_model
from streamsvm.batch.tables import TableRegressor
from streamsvm.learners.preprocessing import BoundedTargetScaler

FORMATS = ["csv", "jsonl", "parquet", "frame"]
rng = random.Random(3)
N = 90
VALUES = [rng.randrange(1, 900) for _ in range(N)]
OTHER = [rng.gauss(0.0, 1.0) for _ in range(N)]
Y = ["yes" if value > 400 else "no" for value in VALUES]
#: A function that writes a number, and the kind of the column that is inferred.
NOTATIONS = {
    "unit": (lambda value: f"{value} kg", "quantity=kg"),
    "decimal comma": (lambda value: f"{value},0 km/h", "quantity=,|km/h"),
    "flag": (lambda value: f"{value}*" if value % 5 == 0 else f"{value} e" if value % 7 == 0 else str(value), None),
    "hexadecimal": (lambda value: f"0x{value:04X}", "quantity"),
    "Fortran": (lambda value: f"{value / 100:.2f}D+02", "quantity"),
    "magnitude": (lambda value: f"{value / 1000}K", "quantity"),
    "duration": (lambda value: f"0 days 00:{value // 60:02d}:{value % 60:02d}", "duration"),
    "ISO 8601": (lambda value: f"PT{value // 60}M{value % 60}S", "duration"),
    "long dash": (lambda value: f"\u2013{value}", "quantity"),
    "full width": (lambda value: str(value).translate({ord(digit): 0xFEE0 + ord(digit) for digit in "0123456789"}), "quantity"),
    "lakhs": (lambda value: f"{value},00,000", None),
    "points between thousands": (lambda value: f"{500 + value:,} €".replace(",", "."), None),
    "no-break space": (lambda value: f"\u00a0{value}\u202f", None),
    "text": (str, None),
}
LEARNER = "bsgd,budget=20"


@pytest.fixture
def write(tmp_path):
    """Writes a table, given by its columns, in a format; returns its path, or the frame itself."""

    def write_table(form, name="rows", **columns):
        frame, path = pd.DataFrame(columns), tmp_path / f"{name}.{form}"
        if form == "frame":
            return frame
        if form == "parquet":
            frame.to_parquet(path)
        elif form == "csv":
            frame.to_csv(path, index=False)
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in frame.to_dict("records")))
        return path

    return write_table


@pytest.mark.parametrize("form", FORMATS[:3])
@pytest.mark.parametrize("notation", NOTATIONS)
def test_numbers_in_other_notations_are_numbers(write, call, tmp_path, notation, form):
    write_number, kind = NOTATIONS[notation]
    path = write(form, v=list(map(write_number, VALUES)), b=OTHER, y=Y)
    plain = write("jsonl", "plain", v=list(map(float, VALUES)), b=OTHER, y=Y)
    learn = ["--label", "y", "--learner", LEARNER, "--quiet"]
    assert call("learn", path, *learn, "--checkpoint", tmp_path / "m").end["metric"] == pytest.approx(
        call("learn", plain, *learn).end["metric"]
    )
    score = call("score", path, "--model", tmp_path / "m", "--json").stdout
    assert json.loads(score)["rows"] == N
    if kind is not None:
        assert load(tmp_path / "m")["TableEncoder"].columns == {"v": kind}


@pytest.mark.parametrize("form", FORMATS)
def test_limits_are_numbers_beyond_the_others(write, call, tmp_path, form):
    texts = ["<100" if value < 100 else ">800" if value > 800 else str(value) for value in VALUES]
    table = write(form, v=texts, b=OTHER, y=Y)
    if form == "frame":
        model = table_model(table, label="y", learner=BSGDClassifier(20))
        model.learn_many(table)
    else:
        call("learn", table, "--label", "y", "--learner", LEARNER, "--checkpoint", tmp_path / "m", says="with limits")
        model = load(tmp_path / "m")
    low, number, high = (model["TableEncoder"].transform_one({"v": text})["v"] for text in ("<100", "100", ">800"))
    assert number == 100.0
    assert high - 800.0 == 100.0 - low > 50.0


@pytest.mark.parametrize("form", FORMATS[:3])
def test_numbers_sent_as_text_are_predicted(write, call, tmp_path, form):
    """A model of a CSV of numbers has no encoder, and JSON from a web form has texts."""
    plain = write("csv", v=VALUES, b=OTHER, y=Y)
    call("learn", plain, "--label", "y", "--learner", LEARNER, "--checkpoint", tmp_path / "m", "--quiet")
    table = write(form, "new", v=list(map(str, VALUES)), b=list(map(str, OTHER)), y=Y)

    def predict(path):
        call("predict", path, "--model", tmp_path / "m", "--to", tmp_path / f"{path.name}.out.jsonl")
        return [json.loads(line)["y_pred"] for line in (tmp_path / f"{path.name}.out.jsonl").read_text().splitlines()]

    first, second = (predict(path) for path in (plain, table))
    assert first == second
    assert len(first) == N
    bad = write("jsonl", "bad", v=["many"] * 30, b=OTHER[:30])
    call("predict", bad, "--model", tmp_path / "m", "--to", tmp_path / "out.jsonl", "--on-error", "stop", status=1, says="'many'")


TARGETS = {
    "currency": (lambda value: f"${1000 + value:,}", 1000.0),
    "unit": (lambda value: f"{value} kg", 0.0),
    "decimal comma": (lambda value: f"{value},00 €", 0.0),
    "unknown": (lambda value: "unknown" if value % 9 == 0 else f"{value}.0", 0.0),
    "duration": (lambda value: f"{value // 60}:{value % 60:02d}:00", 0.0),
    "points between thousands": (lambda value: f"{600 + value:,} €".replace(",", "."), 600.0),
    "only points between thousands": (lambda value: f"{600 + value:,}".replace(",", "."), 600.0),
    "decimal comma, beside points": (lambda value: f"{value},25", 0.25),
    "date": (lambda value: f"{date(1970, 1, 1) + timedelta(value)}", 0.0),
}
SCALES = {"duration": 60.0, "date": 86_400.0}


@pytest.mark.parametrize("form", FORMATS[:3])
@pytest.mark.parametrize("target", TARGETS)
def test_targets_in_other_notations_are_predicted(write, call, tmp_path, target, form):
    write_number, shift = TARGETS[target]
    texts = list(map(write_number, VALUES))
    path = write(form, v=VALUES, b=OTHER, y=texts)
    learn = ["--label", "y", "--regression", "--learner", LEARNER, "--quiet", "--checkpoint", tmp_path / "m"]
    labelled = [i for i, text in enumerate(texts) if text != "unknown"]
    counts = call("learn", path, *learn).end
    assert counts["learned"] == len(labelled)
    scale = SCALES.get(target, 1.0)
    plain = [scale * (VALUES[i] + shift) for i in labelled]
    plain_path = write("jsonl", "plain", v=[VALUES[i] for i in labelled], b=[OTHER[i] for i in labelled], y=plain)
    expected = call("learn", plain_path, *learn[:-2]).end["metric"]
    assert counts["metric"] == pytest.approx(expected)
    new = write(form, "new", v=VALUES, b=OTHER)  # without the target
    call("predict", new, "--model", tmp_path / "m", "--to", tmp_path / "out.jsonl")
    assert json.loads(call("score", path, "--model", tmp_path / "m", "--json").stdout)["rows"] == len(labelled)


def test_targets_of_frames_in_other_notations_are_predicted():
    frame = pd.DataFrame({"v": VALUES, "b": OTHER})
    texts = [f"${1000 + value:,}" for value in VALUES]
    learner = BoundedTargetScaler(BSGDRegressor(20))
    model = table_model(frame.assign(y=texts), label="y", learner=learner.clone(), regression=True)
    model.learn_many(frame.assign(y=texts))
    plain = table_model(frame.assign(y=1000.0 + frame["v"]), label="y", learner=learner.clone(), regression=True)
    plain.learn_many(frame.assign(y=1000.0 + frame["v"]))
    assert list(model.predict_many(frame)) == list(plain.predict_many(frame))
    estimator = TableRegressor(learner, shuffle=False).fit(frame, texts)
    assert estimator.predict(frame).tolist() == pytest.approx(list(plain.predict_many(frame)))


NO_NUMBERS = {
    "currencies": lambda i: f"{5 + i % 15} {('USD', 'JPY', 'EUR')[i % 3]}",
    "symbols": lambda i: f"{'$€'[i % 2]}{5 + i % 20}",
    "per cent": lambda i: f"{5 + i % 20}%" if i % 2 else f"${5 + i % 20}",
    "houses": lambda i: f"{5 + i % 8}{('A', 'B', 'C', '')[i % 13 % 4]}",
    "engines": lambda i: ("1.6L", "2.0L", "2.5L V6", "3.0L")[i % 4],
    "stages": lambda i: f"{1 + i % 3}{'B' if i % 4 == 0 else ''}",
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kind", NO_NUMBERS)
def test_amounts_in_several_units_and_letters_after_numbers_are_categories(write, call, tmp_path, kind, form):
    texts = list(map(NO_NUMBERS[kind], range(N)))
    table = write(form, v=texts, b=OTHER, y=Y)
    if form == "frame":
        assert table_model(table, label="y").schema.options["columns"] == {"v": "category"}
        with pytest.raises(ValueError, match="v"):  # as a target
            table_model(table, label="v", regression=True).learn_many(table)
        return
    call("learn", table, "--label", "y", "--learner", LEARNER, "--checkpoint", tmp_path / "m")
    encoder = load(tmp_path / "m")["TableEncoder"]
    assert (encoder.columns, encoder.missing) == ({"v": "category"}, [])
    call("learn", table, "--label", "v", "--regression", "--learner", LEARNER, "--quiet", status=1)


def test_many_counts_as_labels_are_pointed_out(write, call):
    counts = [max(0, round(rng.gauss(40, 12))) for _ in range(600)]
    path = write("csv", v=[rng.gauss(0, 1) for _ in counts], y=counts)
    learn = ["learn", path, "--label", "y", "--learner", LEARNER]
    with warnings.catch_warnings(action="default"):
        call(*learn, says="numbers in y are learned as labels. To predict a number: --regression")
    call(*learn, "--regression")  # the advice
    with pytest.warns(UserWarning, match="numbers in y are learned as labels"):
        table_model(pd.read_csv(path), label="y")


@pytest.mark.parametrize("form", FORMATS[:3])
def test_an_error_on_too_many_numbers_as_labels_names_the_flag(write, call, form):
    path = write(form, v=OTHER, y=[i % 7 for i in range(N)])
    learn = ["learn", path, "--label", "y", "--learner"]
    call(*learn, "bsgd,max_classes=3", status=1, says="or use a regressor (--regression) if the labels are numbers to predict")
    call(*learn, "bsgd,budget=5", "--regression", "--quiet")


@pytest.mark.parametrize("form", FORMATS[:3])
def test_a_missing_label_is_no_number_to_predict(write, call, form):
    """0, 1 and NaN are two labels and a missing one, and not fractions."""
    path = write(form, v=OTHER, y=[float("nan") if i % 9 == 3 else float(value > 0) for i, value in enumerate(OTHER)])
    end = call("learn", path, "--label", "y", "--learner", LEARNER, "--quiet", "--on-error", "skip").end
    assert end["learned"] == sum(i % 9 != 3 for i in range(N))
    assert 0.7 < end["metric"] <= 1.0


def test_the_kind_of_the_label_is_checked(write, call):
    path = write("csv", v=VALUES, y=VALUES)
    call("learn", path, "--label", "y", "--columns", "y:category", status=2, says="y is the label: leave it out, or give")
    call("learn", path, "--label", "y", "--columns", "v:duration=s", status=2, says="duration")
