"""Rows of messages, read with the flags about tables."""

from streamsvm.cli.main import main
from streamsvm.stream import Row
from streamsvm_kafka import EmbeddedBroker, JSONCodec, publish


def test_names_and_dates_of_messages(tmp_path, capfd):
    rows = [Row({"id": f"n{i}", "city": ("Oslo", "Paris")[i % 2], "at": f"2024-01-{1 + i % 28:02d}"}, i % 2) for i in range(200)]
    with EmbeddedBroker() as broker:
        publish(rows, broker.bootstrap, "rows", JSONCodec(label="y"), client=broker.client)
        command = ["learn", broker.url("rows"), "--label", "y", "--stop-at-end", "--quiet", "--checkpoint", str(tmp_path)]
        assert main(command) == 1
        assert "Try: --columns id:category,city:category,at:date" in capfd.readouterr().err
        answers = ["--columns", "id:drop,city:category,at:date"]
        assert main([*command, *answers, "--max-rows", "100"]) == 0
        assert main(command) == 0
        assert '"rows": 200' in capfd.readouterr().out.splitlines()[-1]
        assert main([*command, "--columns", "at:category"]) == 1
        assert "contradicts the checkpoint" in capfd.readouterr().err
        assert main(["predict", broker.url("rows"), "--label", "y", "--stop-at-end", "--model", str(tmp_path), "--to", "-"]) == 0
        assert capfd.readouterr().out.count('"y_pred": 1, "y_true": 1') >= 99
