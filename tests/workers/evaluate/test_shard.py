"""Shards of an evaluation in this process: what each asks, and what is collected of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from state.evaluation_array import ArrayDir, ShardDir, next_array
from tests.workers.test_evaluate_worker import heard, lines_of, scores_of, spec_of
from workers.evaluate import of_a_scheduler
from workers.evaluate.job import ask_share
from workers.line_contract import EvaluationSpec


def submitted(spec: EvaluationSpec) -> tuple[EvaluationSpec, ArrayDir]:
    """As the command does it: collect, then a directory for each shard."""
    begun = next(message for message in heard(spec) if message["type"] == "suite")
    spec = replace(spec, fingerprints={begun["suite"]: begun["fingerprint"]})
    array = next_array(Path(spec.folder))
    for number in range(spec.shards):
        array.shard(number).path.mkdir(parents=True)
    array.spec.write_bytes(msgspec.json.encode(spec))
    return spec, array


def asked(spec: EvaluationSpec, shard: ShardDir, restart: int = 0) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    ask_share(spec, shard, restart, lambda message: messages.append(msgspec.to_builtins(message)))
    return messages


def left_of(messages: list[dict[str, Any]]) -> list[int]:
    return next(message["counts"] for message in messages if message["type"] == "left")


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_shards_in_any_order_end_with_the_bytes_of_one_worker(tmp_path: Path, order: tuple[int, ...]) -> None:
    one = heard(spec_of(tmp_path / "one", samples=2, temperature=1.0, ks=(1, 2), batch_size=4))
    spec = spec_of(tmp_path / "three", samples=2, temperature=1.0, ks=(1, 2), batch_size=4, shards=3)
    assert left_of(heard(spec)) == [4, 4, 4]
    spec, array = submitted(spec)
    for number in order:
        asked(spec, array.shard(number))
        assert left_of(heard(spec))[number] == 0
    assert scores_of(heard(spec)) == scores_of(one)
    assert lines_of(tmp_path / "three") == lines_of(tmp_path / "one")
    (mine,), (theirs,) = (list((tmp_path / name).glob("*.jsonl")) for name in ("one", "three"))
    assert mine.read_bytes() == theirs.read_bytes()


def test_a_restart_and_another_array_ask_only_what_is_left(tmp_path: Path) -> None:
    spec, array = submitted(spec_of(tmp_path / "e", batch_size=1, shards=2))
    asked(spec, array.shard(0))
    (path,) = array.shard(0).answers(0).glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4]) + lines[4][:20])
    again = asked(spec, array.shard(0), restart=1)
    assert sum(len(message["rows"]) for message in again if message["type"] == "answers") == 2
    assert path.read_bytes() == b"".join(lines[:4]) + lines[4][:20], "only its own start writes a file"
    spec, array = submitted(spec)
    assert [message["type"] for message in asked(spec, array.shard(0))] == ["suite"], "no model is loaded"
    assert left_of(heard(spec)) == [0, 6]


def test_more_shards_than_batches_leave_some_without_work(tmp_path: Path) -> None:
    assert left_of(heard(spec_of(tmp_path / "e", batch_size=5, shards=8))) == [5, 5, 2, 0, 0, 0, 0, 0]


def test_a_node_with_other_questions_asks_none(tmp_path: Path) -> None:
    spec, array = submitted(spec_of(tmp_path / "e", shards=1))
    with pytest.raises(LonghaulError, match="pocket on this node differ") as told:
        asked(replace(spec, fingerprints={"pocket": "of another file"}), array.shard(0))
    assert told.value.exit_code == ExitCode.INPUT


def test_a_shard_that_another_copy_has_is_left_alone(tmp_path: Path) -> None:
    _, array = submitted(spec_of(tmp_path / "e", shards=1))
    shard = array.shard(0)
    shard.claim(1).touch()
    before = sorted(shard.path.iterdir())
    assert of_a_scheduler.work(shard, "t", restart=0) == ExitCode.OK
    assert sorted(shard.path.iterdir()) == before
