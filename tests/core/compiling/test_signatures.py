"""Argument types, written as text."""

import pytest
from entries import format_type

from refused import refused
from streamsvm.core.compiling.signatures import ArrayType, NumberType, TupleType, parse_signature, to_numba_types

TEXTS = [
    "f8",
    "i8 u8 f4 b1",
    "u1:1 f4:2 i8:1r",
    "(f8 i8) f8",
    "streamsvm.core.kernels:Kernel(i8 f8 f8 i8) f8:2",
    "((f8 f8) i8:1) u4:1",
]


def test_signatures_are_parsed():
    assert parse_signature("f8 u1:1r") == (NumberType("f8"), ArrayType("u1", 1, True))
    assert parse_signature("a.b:C(f8 (i8))") == (TupleType("a.b:C", (NumberType("f8"), TupleType("", (NumberType("i8"),)))),)
    assert parse_signature("-") == ()


@pytest.mark.parametrize("text", TEXTS)
def test_types_are_formatted_as_they_were_parsed(text):
    assert " ".join(map(format_type, to_numba_types(text))) == text


@pytest.mark.parametrize("text", ["f", "f8:", "float64", "f8;f8", "(f8", "f8)"])
def test_invalid_signatures_are_refused(text):
    refused("invalid signature", parse_signature, text)
