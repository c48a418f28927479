"""Changes of a run between two commands: each continues with the model, or is refused with the flag that keeps it."""

import random
import re
from typing import NamedTuple

from saved import dumps

N, FIRST = 300, 150


class Change(NamedTuple):
    """The flags before and after a change, and the message about it."""

    then: str = ""
    now: str = ""
    says: str = ""
    """A pattern of the report; of the error if the change is refused."""
    remedy: str | None = None
    """The flags in place of ``now`` that keep the model of a refused change."""
    source: str = "rows"
    """The source after the change: ``rows``, or ``next`` with other rows."""
    rows: int = N
    is_same: bool = True
    """Whether the model is then that of a run without a change."""


CHANGES = {
    "another sink": Change("--to a.csv", "--to b.csv", r"b\.csv: predictions are written here from row 150 on; .* to a\.csv"),
    "a new sink": Change("", "--to a.jsonl", "written here from row 150 on"),
    "no sink": Change("--to a.csv", "", r"not written from row 150 on; until then they went to a\.csv"),
    "fields": Change(
        "--to a.jsonl",
        "--to a.jsonl --passthrough a",
        r"rows from 150 on have additional fields \['a'.*\], and had \[",
    ),
    "fields of CSV": Change("--to a.csv", "--to a.csv --passthrough a", "name another file", "--to b.csv --passthrough a"),
    "dead letters": Change("--on-error a.jsonl", "--on-error b.jsonl", r"b\.jsonl: refused rows are written here; .* a\.jsonl"),
    "no dead letters": Change("--on-error a.jsonl", "--on-error skip", "refused rows are not written here any more"),
    "one more metric": Change("", "--metric Accuracy,MicroF1 --window 1000", r"MicroF1\(window=1000\) is new, from row 150 on"),
    "another metric": Change(
        "--metric Accuracy", "--metric LogLoss", r"Accuracy\(window=1000\) is not computed any more, from row 150"
    ),
    "the window": Change("", "--window 50", r"Accuracy\(window=1000\) is now Accuracy\(window=50\)"),
    "the positive label": Change("--positive yes", "--positive no", r"F1\(window=1000, positive='no'\) is new"),
    "classes": Change("", "--labels-are yes,no"),
    "a drift detector": Change("", "--drift ADWIN", "drift is detected by ADWIN.* from row 150 on; until then by nothing$"),
    "another detector": Change("--drift ADWIN", "--drift KSWIN", "drift is detected by KSWIN"),
    "no detector": Change("--drift ADWIN", "--drift none", "drift is detected by nothing"),
    "the interval of checkpoints": Change("--checkpoint-every 10", "--checkpoint-every 60"),
    "limits of refused rows": Change("--on-error skip", "--on-error stop --error-limit 5"),
    "a larger budget": Change("", "--learner bsgd,budget=60", "BSGDClassifier budget: 30 -> 60", is_same=False),
    "a smaller budget": Change("", "--learner bsgd,budget=10", "BSGDClassifier budget: 30 -> 10", is_same=False),
    "the kernel": Change(
        "",
        "--learner bsgd,kernel=linear",
        "kernel: 'rbf' -> 'linear'. To continue with its model, leave --learner",
        "",
    ),
    "another learner": Change(
        "",
        "--learner linear",
        "BSGDClassifier -> .*OnlineLinearSVC. To continue with its model, leave --learner",
        "",
    ),
    "scaling": Change(
        "",
        "--scale none",
        "scaling: 'auto' -> None. To continue with its model, leave --learner",
        "",
    ),
    "costs": Change("", "--costs yes=5", "--bound, --threshold, --costs, --interval, --key-models out", ""),
    "another label": Change("", "--label a", "learned the column 'a', so it cannot be the label: leave --label out", "--label y"),
    "a weight": Change("", "--weight b", "not .b.: leave --weight out, for this column is a feature", ""),
    "the kind of a column": Change("", "--columns b:category", "contradicts the checkpoint.* Leave the flag out to keep", ""),
    "a regression": Change("", "--regression", "--regression predicts a number, .* leave it out", ""),
    "other rows": Change("", "", "--from earliest", "--from earliest", "next", N + FIRST, is_same=False),
}


def make_rows(seed):
    """Return rows of two columns, a label and another column that could be one."""
    generator = random.Random(seed)
    points = [(round(generator.gauss(0, 1), 3), round(generator.gauss(0, 1), 3)) for _ in range(N)]
    return [{"a": a, "b": b, "c": int(b > 0), "y": "yes" if a * b > 0 else "no"} for a, b in points]


def check_change(change, words, load, call, caplog):
    """Check a change between two commands. ``words`` returns the words of a command for a source, and ``load`` the model and the
    number of rows of its checkpoint. Return the bytes of the model.
    """
    learner = ["--label", "y", "--learner", "bsgd,budget=30"]
    call(*words("rows"), *learner, *change.then.split(), "--max-rows", FIRST)
    caplog.clear()
    if change.remedy is None:
        call(*words(change.source), *change.now.split())
        said = "\n".join(
            record.getMessage() for record in caplog.records if getattr(record, "fields", {}).get("event") == "changed"
        )
        assert re.search(change.says, said), said
        assert bool(said) == bool(change.says)
    else:
        before = dumps(load()[0])
        refusal = call(*words(change.source), *change.now.split(), status=None)
        assert refusal.status in (1, 2)
        assert re.search(change.says, refusal.last), refusal.last
        assert "scratch" not in refusal.last
        assert dumps(load()[0]) == before
        call(*words(change.source), *change.remedy.split())
    model, rows = load()
    assert rows == change.rows
    return dumps(model)
