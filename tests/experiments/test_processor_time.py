"""Records are added up once, whatever their form."""

from __future__ import annotations

import json
from pathlib import Path

from experiments.__main__ import main
from experiments.processor_time import seconds_of
from hmcvi.internal.storage import save_json


def test_sums_stand_for_what_is_beside_them() -> None:
    assert seconds_of({"cpu_seconds": 5.0, "methods": {"a": {"cpu_seconds": 3.0}}}) == 5
    assert seconds_of({"cpu_seconds": None, "runs": [{"seconds": 2.0, "warmup_seconds": 1.0}, 7, "9"]}) == 3
    assert seconds_of({"a": {"seconds": 2.0, "parameters": {"seconds": 1.0}}, "b": {"cpu_seconds": 1}}) == 3


def test_folders_are_listed_with_those_that_say_nothing(tmp_path: Path) -> None:
    records = {"one/a": {"cpu_seconds": 2.0}, "one/b": {"cpu_seconds": 3.0}, "two/c": {"x": 1}}
    for name, content in records.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        save_json(content, tmp_path / f"{name}.json")
    out = tmp_path / "sum"
    for _ in range(2):  # its own result is not one of them
        assert main(["processor-time", "--results", str(tmp_path), "--out", str(out)]) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["cpu_seconds_of_folders"] == {"one": 5.0, "two": 0.0}
    assert result["total"] == 5.0 and result["without"] == ["two/c.json"]
