"""Inference of columns of texts: messages, reviews and titles, but neither names, addresses, lists nor categories."""

import itertools
import json
import time

import pandas as pd
import pyarrow as pa
import pytest

from streamsvm import OneClassBSGD, table_model
from streamsvm.stream.schema.column_inference import infer_column, make_kind_option
from streamsvm.stream.schema.labels import infer_label

TEXT, CATEGORY, DROPPED = (make_kind_option("c", kind) for kind in ("text", "category", "drop"))


def combine(*parts):
    """Return all combinations of one item of each part, with blanks between them."""
    return list(map(" ".join, itertools.product(*parts)))


WHO = ["Our postman", "The new lift", "My old neighbour", "A blue kettle", "Nobody here"]
MESSAGES = combine(WHO, ["left a note for you", "makes a strange noise at night", "was late, again", "ok", "costs 5 EUR, why?"])
TEXTS = {
    "messages": MESSAGES,
    "in capitals": [text.upper() for text in MESSAGES],
    "titles": combine(
        ["Rain", "Snow", "Fog", "Hail", "Wind"], ["Over the", "Under a"], ["Harbour", "Bridge"], ["of Glass", "At Dawn"]
    ),
    "tickets": combine(
        WHO, ["does not answer since update 4.2 (see https://a.example/7)", "shows error 0x1F in the log"], ["again", "."]
    ),
    "German": combine(
        ["Der Zug", "Das Paket", "Ein Brief", "Die Post", "Mein Rad"], ["ist noch", "war leider"], ["nicht da", "zu spät"]
    ),
    "Russian": combine(
        ["Поезд", "Пакет", "Письмо", "Ответ", "Заказ"], ["к нам ещё", "вчера опять"], ["не пришёл вовремя", "потерялся где-то"]
    ),
    "Hindi": combine(
        ["यह चाय", "वह किताब", "मेरी गाड़ी", "नई कुर्सी", "हमारी घड़ी"], ["मुझे बहुत अच्छी", "उसे बिल्कुल नहीं"], ["लगती है", "मिली थी"]
    ),
    "Chinese": [
        "".join(text.split())
        for text in combine(
            ["这家酒店", "那个房间", "我的早餐", "今天的茶", "他的行李"],
            ["非常干净而且", "一点也不好因为"],
            ["服务员特别热情周到", "等了很久都没有人来"],
        )
    ],
    "Japanese": [
        "".join(text.split())
        for text in combine(
            ["この部屋", "あの料理", "今朝の電車", "新しい本", "古い時計"],
            ["はとても静かで", "は少し高いけれど"],
            ["また利用したいと思います", "友達にはおすすめできません"],
        )
    ],
    "Thai": [
        "".join(text.split())
        for text in combine(
            ["โรงแรมนี้", "อาหารเช้า", "ห้องน้ำ", "พนักงาน", "ที่จอดรถ"],
            ["สะอาดมากและ", "ไม่ค่อยดีเพราะ"],
            ["บริการรวดเร็วประทับใจทุกอย่าง", "ต้องรอนานมากกว่าหนึ่งชั่วโมง"],
        )
    ],
    "HTML": [f"<p>{text}</p><br/>" for text in MESSAGES],
    "JSON": [json.dumps({"lang": "en", "body": text}) for text in MESSAGES],
    "with numbers": [*MESSAGES, 3.0, 17.0, 250.0],
    "with missing values": [*MESSAGES, *["n/a", "-", "none", ""] * 20],
}
FIRST, LAST = ["Ann", "Bo", "Cy", "Di", "Ed"], ["Almond", "Birch", "Cedar", "Dogwood", "Elm"]
NO_TEXTS = {
    "persons": combine(FIRST, LAST),
    "persons with titles": [f"{last}, Mr. {a} {b}" for last in LAST for a, b in itertools.pairwise(FIRST)]
    + [f"{a}, Mrs. {b} (Eve Hill)" for a, b in zip(LAST, FIRST, strict=True)],
    "lists of persons": [", ".join(combine(FIRST[:n], LAST[m:])) for n in range(1, 6) for m in range(5)],
    "addresses": [f"{i} North Old {tree} Street\nPort {name}, VT {5000 + i}" for i, tree in enumerate(LAST) for name in FIRST],
    "Chinese addresses": [f"浙江省杭州市{a}{b}路{i}号" for i, a in enumerate("春夏秋冬东") for b in "山水花鸟鱼"],
    "cars": combine(["volvo", "saab", "fiat", "audi", "opel"], ["city wagon", "sport"], ["2.0", "diesel 4x4", "gl"]),
    "jobs": combine(["Senior", "Deputy", "Night"], ["Crane", "Tram", "Ferry"], ["Operator", "Inspector", "Cleaner"]),
    "taxons": combine(
        ["Quercus", "Acer", "Tilia", "Ulmus", "Picea"], ["alba", "nigra", "minor", "rubra"], ["(L.) Mill.", "Vell."]
    ),
    "places": [f"{i}km NW of {tree} Creek, {name} County" for i, tree in enumerate(LAST) for name in FIRST],
    "lists": ["|".join(f"{tree} and {name}" for tree in LAST[m:]) for m in range(5) for name in FIRST],
    "URLs": [f"https://a.example/{text.replace(' ', '/')}" for text in MESSAGES],
    "paths": [f"/srv/data of {name}/{tree}/x.bin" for name in FIRST for tree in LAST],
    "browsers": [f"Mozilla/5.0 (X11; Linux x86_64; rv:{i}.0) Gecko/2010{i} Firefox/{i}.0 like Gecko" for i in range(60)],
    "ratings": [f"Rated {i / 10} out of 5 stars by {7 * i} of our customers" for i in range(50)],
    "answers of a survey": [text + ", and I would say so again" for text in MESSAGES[:5]] * 8,
    "JSON of codes": [json.dumps({"id": i, "tags": ["a b", "c"], "at": None}) for i in range(30)],
    "too few": MESSAGES[:19],
}


@pytest.mark.parametrize("values", TEXTS.values(), ids=TEXTS)
def test_sentences_and_titles_are_texts(values):
    column = infer_column("c", values)
    assert (column.kind, column.required_options, column.alternative) == ("text", TEXT, CATEGORY)
    assert column.note.startswith("sentences or titles: ")


@pytest.mark.parametrize("values", NO_TEXTS.values(), ids=NO_TEXTS)
def test_names_lists_and_categories_are_no_texts(values):
    column = infer_column("c", values)
    assert column.kind == "string"
    assert column.required_options in (CATEGORY, DROPPED)


def test_the_note_gives_the_reason():
    column = infer_column("c", [*MESSAGES, *MESSAGES[:5]])
    assert column.note == "sentences or titles: 6 words per value, 83 % distinct; or a category"
    column = infer_column("c", NO_TEXTS["persons"])
    assert (column.note, column.required_options, column.alternative) == ("looks like an id, or short texts", DROPPED, TEXT)
    column = infer_column("c", [f"n{i}" for i in range(30)])
    assert (column.note, column.alternative) == ("looks like an id", None)


def test_errors_of_a_spreadsheet_are_missing_in_texts():
    assert infer_column("c", [*MESSAGES, "#N/A"]).required_options == TEXT | {"missing": ["#N/A"]}


def test_a_label_of_sentences_stays_a_label():
    label = infer_label("c", MESSAGES, False)
    assert (label.kind, label.note, label.required_options) == ("label", "", {})
    assert infer_label("c", [*map(float, range(30)), *MESSAGES], True).required_options == {}


def test_long_values_are_judged_in_linear_time():
    values = ["a" * 50_000, "( " * 25_000, "a." * 25_000, "茶" * 50_000, "," * 50_000] * 5
    started = time.perf_counter()
    infer_column("c", [f"{text}{chr(97 + i)}" for i, text in enumerate(values)])
    assert time.perf_counter() - started < 5.0


@pytest.fixture
def frame():
    n = len(MESSAGES)
    return pd.DataFrame({"body": MESSAGES, "city": (["Oslo", "New York City"] * n)[:n], "y": (["no", "yes", "no"] * n)[:n]})


FORMS = {
    "frame": lambda frame, path: frame,
    "categorical": lambda frame, path: frame.astype("category"),
    "Arrow": lambda frame, path: pa.Table.from_pandas(frame),
    "dicts": lambda frame, path: frame.to_dict("records"),
    "iterator": lambda frame, path: iter(frame.to_dict("records")),
    "CSV": lambda frame, path: frame.to_csv(path / "rows.csv", index=False) or path / "rows.csv",
    "JSON lines": lambda frame, path: frame.to_json(path / "rows.jsonl", orient="records", lines=True) or path / "rows.jsonl",
    "Parquet": lambda frame, path: frame.to_parquet(path / "rows.parquet") or path / "rows.parquet",
}


@pytest.mark.parametrize("convert", FORMS.values(), ids=FORMS)
def test_all_forms_of_a_table_have_the_same_texts(convert, frame, tmp_path):
    schema = table_model(convert(frame, tmp_path), label="y").schema
    assert schema.options["columns"] == {"body": "text", "city": "category"}
    assert next(column for column in schema.columns if column.name == "body").kind == "text"


def test_fields_of_objects_are_texts(frame):
    rows = [{"y": row["y"], "m": {"body": row["body"]}} for row in frame.to_dict("records")]
    assert table_model(rows, label="y").schema.options["columns"] == {"m.body": "text"}


def test_the_kind_of_the_user_comes_first(frame):
    for kind in ("category", "drop"):
        assert table_model(frame, label="y", columns=f"body:{kind}").schema.options["columns"]["body"] == kind
    assert table_model(frame, label="y", columns="city:text").schema.options["columns"] == {"city": "text", "body": "text"}
    assert table_model(frame, label="body").schema.options["columns"] == {"city": "category", "y": "category"}


def test_texts_of_a_detector_have_a_number_of_words(frame):
    """Without labels, a text cannot be learned by its words."""
    model = table_model(frame[["body"]], learner=OneClassBSGD())
    assert model.schema.options["columns"] == {"body": "text"}
    model.learn_many(frame[["body"]])
    assert list(model["TableEncoder"].transform_one({"body": "one two three"})) == ["body~words"]
