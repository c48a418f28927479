"""What the commands print: lines of progress without figures of nothing, and errors that say what to do."""

import json

import pytest

from streamsvm import BSGDClassifier
from streamsvm.stream.checkpoint import CheckpointFolder


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("a,b,y\n" + "".join(f"{i % 7},{i % 5},{i % 2}\n" for i in range(60)))
    return path


def test_no_figures_of_nothing(rows, tmp_path, call):
    words = ["learn", rows, "--label", "y", "--checkpoint", tmp_path / "state"]
    last = call(*words, "--max-rows", 1).stderr.splitlines()[-1]
    assert last.startswith("1 row  1 support vector")
    assert "Accuracy" in (last := call(*words).stderr.splitlines()[-1])
    assert " rows/s" in last
    done = call(*words)  # with nothing new
    assert done.stderr.splitlines()[-1].startswith("60 rows  Accuracy 0.")
    quiet = call("learn", rows, "--label", "y", "--max-rows", 1, "--quiet").stdout
    assert '"metric": null' in quiet


def test_a_source_without_rows_is_an_error(tmp_path, call):
    path = tmp_path / "rows.csv"
    path.write_text("a,b,y\n")
    done = call("learn", path, "--label", "y", "--checkpoint", tmp_path / "state", "--to", tmp_path / "out.csv")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == f"streamsvm: {path} has no rows: there is nothing to learn"
    assert not list((tmp_path / "state").glob("*.ckpt"))
    assert not (tmp_path / "out.csv").exists()


def test_nothing_is_said_to_start_before_an_error(rows, tmp_path, call):
    words = ["learn", rows, "--label", "y", "--checkpoint", tmp_path / "state"]
    assert "starting" in call(*words).stderr
    assert "starting" not in (said := call(*words).stderr)
    assert "continuing after row 60" in said
    for flags in (["--learner", "bsgd,budget=7"], ["--metric", "F1"], ["--to", tmp_path / "out.csv"]):
        done = call(*words, *flags)
        assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--learner", "bsgd,budget=7"], "it was learned with budget=500, and asked for is budget=7. Ask for the same"),
        (["--scale", "none"], 'it was learned with scaling="auto", and asked for is scaling=None. Ask for the same'),
        (
            ["--learner", "bsgd,l2=1e-5", "--bound", "9"],
            'scaling="auto", l2=0.0001, and asked for is Pipeline, BoundedScaler, deviations=9., ',
        ),
    ],
)
def test_only_what_differs_is_named(rows, tmp_path, call, flags, text):
    words = ["learn", rows, "--label", "y", "--checkpoint", tmp_path / "state"]
    assert call(*words).returncode == 0
    said = call(*words, *flags).stderr
    assert f"{tmp_path / 'state'} holds a model with other parameters: " in said
    assert text in said


@pytest.mark.parametrize(
    "words",
    [
        ["learn", "rows.csv"],
        ["learn", "rows.csv", "--label", "y", "--to", "rows.csv"],
        ["learn", "--config", "none.toml"],
        ["predict", "--config", "none.toml"],
        ["predict", "rows.csv", "--model", "state", "--to", "-", "--quiet"],
        ["inspect", "state", "--plot", "out.unknown"],
    ],
)
def test_a_mistake_shows_the_usage_of_its_command(call, words):
    done = call(*words)
    assert done.returncode == 2
    assert done.stderr.startswith(f"usage: streamsvm {words[0]} ")


def test_a_folder_of_another_command_in_a_file_of_flags(rows, tmp_path, call):
    config = tmp_path / "flags.toml"
    config.write_text(f"label = 'y'\ncheckpoint = '{tmp_path / 'state'}'\n")
    assert call("learn", rows, "--config", config).returncode == 0
    done = call("predict", rows, "--config", config, "--model", tmp_path / "state", "--to", tmp_path / "out.csv")
    assert (done.returncode, "each of [learn] and [predict] its own" in done.stderr) == (1, True)


def test_a_number_as_text_among_labels_may_be_one_to_predict(tmp_path, call):
    path = tmp_path / "prices.csv"
    path.write_text("a,price\n" + "".join(f"{i},{i}.5\n" for i in range(9)) + "9,959.00\n")
    done = call("learn", path, "--label", "price")
    assert "label '959.00' is a str" in done.stderr
    assert "If they are numbers to predict: --regression, or a regressor." in done.stderr
    path.write_text(path.read_text().replace("959.00", "many"))
    assert "--regression" not in call("learn", path, "--label", "price", "--quiet").stderr


WILD = "\x1b[2J\x07"


def test_what_a_file_names_is_printed_escaped(tmp_path, call):
    model = BSGDClassifier(budget=5)
    model.learn_one({f"a{WILD}": 1.0}, f"yes{WILD}")
    position = {"rows": 1, f"at{WILD}": WILD, "label": None}
    with CheckpointFolder(tmp_path / "state") as folder:
        folder.save(model, None, rows=1, position=position, source=f"rows{WILD}.csv", **{f"more{WILD}": f"one\n{WILD}"})
    shown = call("inspect", tmp_path / "state").stdout
    assert r"rows\x1b[2J\x07.csv" in shown
    assert r"more\x1b[2J\x07" in shown
    assert shown.replace("\n", "").isprintable()

    path = tmp_path / f"rows{WILD}.csv"
    path.write_text(f"a{WILD},b,y\n" + "".join(f"{i % 7},{WILD}{i % 3},{i % 2}\n" for i in range(60)))
    for words in (
        ["learn", path, "--label", f"z{WILD}"],
        ["learn", path, "--label", "y"],
        ["learn", path, "--label", "y", "--columns", "b:drop"],
        ["learn", path, "--label", "y", "--columns", "b:drop", "--to", path],
        ["predict", path, "--model", tmp_path / "state", "--to", f"{tmp_path / 'out'}{WILD}"],
        ["predict", path, "--model", tmp_path / f"none{WILD}", "--to", "-"],
    ):
        done = call(*words)
        assert r"\x1b[2J" in done.stderr
        assert done.stderr.replace("\n", "").isprintable()


def test_a_sink_spoils_neither_model_nor_config(tmp_path, call):
    rows, state = tmp_path / "rows.csv", tmp_path / "state"
    rows.write_text("a,y\n" + "".join(f"{i % 7},{i % 2}\n" for i in range(60)))
    assert call("learn", rows, "--label", "y", "--checkpoint", state).returncode == 0
    (model,) = state.glob("*.ckpt")
    before = model.read_bytes()
    config = tmp_path / "flags.toml"
    config.write_text("label = 'y'\n")
    words = ["predict", rows, "--label", "y"]
    for more in (
        ["--model", model, "--to", model],
        ["--model", model, "--to", tmp_path / "out.csv", "--on-error", model],
        ["--model", state, "--to", state / "checkpoint-000000099999.ckpt"],
        ["--model", model, "--to", config, "--config", config],
        ["--model", model, "--to", tmp_path / "p" / "out.csv", "--checkpoint", tmp_path / "p"],
    ):
        done = call(*words, *more)
        assert done.returncode == 2
        assert "would write into" in done.stderr or "would overwrite" in done.stderr
    assert model.read_bytes() == before
    assert config.read_text() == "label = 'y'\n"


@pytest.mark.parametrize("label", ['["yes"]', '{"yes": 1}'])
def test_a_label_that_is_no_value_costs_its_row(tmp_path, call, label):
    path = tmp_path / "rows.jsonl"
    good = [f'{{"a": {i % 5}, "y": {i % 2}}}' for i in range(40)]
    path.write_text("\n".join([*good[:20], f'{{"a": 1, "y": {label}}}', *good[20:]]) + "\n")
    done = call("learn", path, "--label", "y", "--on-error", "skip", "--quiet")
    assert done.returncode == 0, done.stderr
    end = json.loads(done.stdout.splitlines()[-1])
    assert (end["learned"], end["refused"]) == (40, {"label": 1})


def test_a_few_different_texts_among_numbers_cost_their_rows(tmp_path, call):
    path = tmp_path / "rows.csv"
    path.write_text("a,y\n" + "".join(f"{f'x{i}' if i % 50 == 7 else i % 9},{i % 2}\n" for i in range(200)))
    done = call("learn", path, "--label", "y", "--on-error", "skip")
    assert done.returncode == 0, done.stderr
    assert "not a number in 4 rows" in done.stderr
    assert "4 not a number" in done.stderr
    assert call("learn", path, "--label", "y").returncode == 1


@pytest.mark.parametrize("texts", [["$6.73", "$12.00", "$1,024.50"], ["97%", "12.5%", "3 %"]])
def test_numbers_with_marks_are_told(tmp_path, call, texts):
    path = tmp_path / "rows.csv"
    path.write_text("a;b;y\n" + "".join(f"{texts[i % 3]};{i};{i % 2}\n" for i in range(60)))
    done = call("learn", path, "--label", "y", "--delimiter", ";")
    assert "numbers with commas, currencies or %: to learn them, write them as 1234.5" in done.stderr
    assert "category" not in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--columns", "a:date", "--cycles", "moon"], "--cycles must be of day, week, year"),
        (["--metric", "F1(cm=1)"], "--metric F1(cm=1): "),
        (["--metric", "FBeta(beta=1e308)"], "--metric FBeta(beta=1e308): "),
    ],
)
def test_words_that_have_no_meaning_are_told_in_one_line(tmp_path, call, words, text):
    path = tmp_path / "rows.csv"
    path.write_text("a,y\n2024-01-01,1\n")
    done = call("learn", path, "--label", "y", *words)
    assert done.returncode == 2
    assert text in done.stderr.splitlines()[-1]


def test_a_config_that_is_none(tmp_path, call):
    config = tmp_path / "flags.toml"
    for text in ("label = " + "[" * 5000, "budget = " + "9" * 5000):
        config.write_text(text)
        done = call("learn", "rows.csv", "--config", config)
        assert (done.returncode, "not TOML" in done.stderr) == (2, True)


def test_more_features_than_columns_names_the_flags(tmp_path, call):
    path = tmp_path / "rows.libsvm"
    path.write_text("".join(f"{i % 2} {3 * i + 1}:1 {3 * i + 2}:2 {3 * i + 3}:1\n" for i in range(100)))
    words = ["learn", path, "--learner"]
    said = call(*words, "bsgd,l2=0.1").stderr.splitlines()[-1]
    advice = "In --learner bsgd, give max_features=N, overflow=hash or overflow=ignore."
    assert f"max_features=256 names are known. {advice}" in said
    assert call(*words, "bsgd,max_features=400").returncode == 0
    assert call(*words, "bsgd,overflow=ignore").returncode == 0
