"""Messages about missing optional packages name the extra that installs them."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from fake_registry import PREFIX, LocalRegistry
from streamsvm.files.messages import MissingPackageError, missing_package_error
from streamsvm.linear import write_blocks
from streamsvm_kafka import ArrowCodec, EmbeddedBroker, RegistryCodec

ROOT = Path(__file__).parents[1]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]


def packages(extra):
    """Return the packages that an extra installs, including those of the extras that it refers to."""
    for needed in EXTRAS[extra]:
        name, referred_extras = re.match(r"([\w-]+)(?:\[([\w,]+)\])?", needed).groups()
        if name == "streamsvm":
            for extra_name in referred_extras.split(","):
                yield from packages(extra_name)
        else:
            yield name


def calls():
    """Return the packages and extras that calls of `missing_package_error` name."""
    for path in [*ROOT.glob("streamsvm/**/*.py"), *ROOT.glob("connectors/**/*.py")]:
        source = path.read_text()
        for node in ast.walk(ast.parse(source)) if "missing_package_error(" in source else ():
            if isinstance(node, ast.Call) and getattr(node.func, "id", None) == "missing_package_error":
                _, needs, extra, _ = node.args
                yield pytest.param(needs.value, extra.value, id=f"{path.parent.name}/{path.name}")


@pytest.mark.parametrize(("needs", "extra"), list(calls()))
def test_the_extra_has_what_is_needed(needs, extra):
    # pip installs scipy with scikit-learn.
    assert set(re.split(", | and ", needs)) <= {*packages(extra), *(["scipy"] if extra == "batch" else [])}


@pytest.mark.thorough
def test_nothing_but_the_base_is_there():
    command = [sys.executable, "-W", "error", str(ROOT / "tests" / "without_extras.py"), "--block"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("times what is missing is said\n")


def read_schema(kind):
    answer = {"schema": '{"type": "record", "name": "R", "fields": []}', "schemaType": kind}
    RegistryCodec("y", LocalRegistry({"schemas/ids/1": answer})).decode(PREFIX)


@pytest.mark.parametrize(
    ("module", "use", "said"),
    [
        ("pyarrow", lambda path: ArrowCodec("y"), 'an Arrow message needs pyarrow: pip install "streamsvm[files]"'),
        (
            "fastavro",
            lambda path: read_schema("AVRO"),
            'an Avro message needs fastavro: pip install "streamsvm[avro]"',
        ),
        (
            "google.protobuf.descriptor_pb2",
            lambda path: read_schema("PROTOBUF"),
            'a Protobuf message needs protobuf: pip install "streamsvm[protobuf]"',
        ),
        ("confluent_kafka", lambda path: EmbeddedBroker(), 'EmbeddedBroker needs confluent-kafka: pip install "streamsvm[demo]"'),
        (
            "pyarrow",
            lambda path: write_blocks(path / "rows.parquet", path / "blocks", target="y"),
            'a Parquet or Arrow file needs pyarrow: pip install "streamsvm[files]"',
        ),
    ],
)
def test_one_package_is_missing(monkeypatch, tmp_path, module, use, said):
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    monkeypatch.setitem(sys.modules, module, None)
    for name in ("avro", "protobuf"):
        monkeypatch.delitem(sys.modules, f"streamsvm_kafka.codecs.{name}", raising=False)
    with pytest.raises(ModuleNotFoundError, match=re.escape(said) + "$") as caught:
        use(tmp_path)
    assert caught.value.name == module


PARTS = {
    ("scipy", "streamsvm.batch.hss"): 'streamsvm.batch needs scikit-learn: pip install "streamsvm[batch]"',
    ("orjson", "streamsvm_kafka"): 'streamsvm_kafka needs kafka-python and orjson: pip install "streamsvm[kafka]"',
}
IMPORT = """
import importlib, river.base, sys
for package, module in zip(sys.argv[1::2], sys.argv[2::2]):
    sys.modules[package] = None
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        print(f"{type(error).__name__}: {error}")
    del sys.modules[package]
"""


@pytest.mark.thorough
def test_a_part_is_imported():
    words = [word for part in PARTS for word in part]
    done = subprocess.run([sys.executable, "-c", IMPORT, *words], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"MissingPackageError: {said}" for said in PARTS.values()]


def test_a_package_that_is_there_and_fails_says_why():
    error = missing_package_error(
        "drawing", "matplotlib", "plot", ImportError("libfreetype.so.6:\ncannot open", name="matplotlib.ft2font")
    )
    assert isinstance(error, MissingPackageError)
    assert str(error) == (
        'drawing needs matplotlib, and the import fails (libfreetype.so.6: cannot open): pip install "streamsvm[plot]"'
    )
