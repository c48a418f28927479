"""Labels that are read from text."""

import pytest

from reading import read
from streamsvm.stream.rows import parse_label


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("0", 0),
        ("-1", -1),
        ("2.5", 2.5),
        ("1.0", 1.0),
        ("TRUE", True),
        (" spam ", "spam"),
        ("007", "007"),
        ("1_000", "1_000"),
        ("+1", "+1"),
        ("1e3", "1e3"),
        ("-0", "-0"),
        ("inf", "inf"),
        ("123456789012345678", 123456789012345678),
        ("12345678901234567890", "12345678901234567890"),
        ("9" * 5000, "9" * 5000),
        ("", None),
    ],
)
def test_labels_of_text_print_as_they_were(text, label):
    found = parse_label(text)
    assert (found, type(found)) == (label, type(label))


def test_labels_of_libsvm_text_are_numbers(tmp_path):
    path = tmp_path / "rows.libsvm"
    path.write_text("".join(f"{label} 1:1\n" for label in ("+1", "-1", "1.0", "0.5", "spam", "nan")))
    assert repr([row.y for row in read(path, label=None)[0]]) == "[1, -1, 1, 0.5, 'spam', nan]"
    assert repr(parse_label("NaN")) == "nan"
