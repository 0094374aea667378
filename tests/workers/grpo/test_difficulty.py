"""Rows 33 to 35 of the checklist: what is measured of a problem, the order that follows, and the file of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import ExitCode, LonghaulError
from workers.grpo.difficulty import Difficulty, Measured, Sample, difficulty, same_answer, semantic_entropy, stages
from workers.grpo.difficulty_cache import DifficultyCache, Same, open_cache
from workers.rng import stream
from workers.verifiers.symbolic import Symbolic
from workers.verifiers.verify import sameness

MEASURED = Measured(
    data="d", model="m", adapter="none", quantization="nf4", tokenizer="t", chat_template="c", prompt="1", samples=8,
    temperature=1.0, top_p=1.0, max_completion_tokens=512, seed=0, verifier="1",
)  # fmt: skip


@pytest.fixture(scope="module")
def symbolic() -> Iterator[Symbolic]:
    pytest.importorskip("math_verify")
    with Symbolic() as opened:
        yield opened


def of(problem: int, *answers: str | None, gold: str = "1", tokens: int = 10) -> Difficulty:
    return difficulty(problem, [Sample(answer, answer == gold, tokens) for answer in answers])


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        pytest.param(["1"] * 8, 0.0, id="33 (8)"),
        pytest.param(["1"] * 4 + ["2"] * 4, 0.6931, id="33 (4,4)"),
        pytest.param(["1"] * 7 + ["2"], 0.3768, id="33 (7,1)"),
        pytest.param(["1"] * 5 + ["2"] * 2 + ["3"], 0.9003, id="33 (5,2,1)"),
        pytest.param([None] * 8, 2.0794, id="33 8 without an answer"),
        pytest.param(["5 or 6"] * 8, 2.0794, id="33 8 unparsable"),
        pytest.param(["1", "1.0", "$1", "2/2", "1 egg", "x = 1", "1,0", "1%"], 0.3768, id="33 equal as numbers"),
    ],
)
def test_row_33_semantic_entropy(answers: list[str | None], expected: float) -> None:
    assert of(0, *answers).entropy == pytest.approx(expected, abs=5e-5)


def test_row_33_agreement_is_0_and_never_minus_0() -> None:
    assert str(semantic_entropy([8])) == "0.0"


def test_row_33_an_answer_that_cannot_be_read_is_alone_and_bad() -> None:
    found = of(0, *["5 or 6"] * 5, None, "1", "1.0")
    assert found.clusters == (*[("5 or 6", 1)] * 5, ("", 1), ("1", 2))
    assert found.bad == 6
    assert of(0, *["5 or 6"] * 8).bad == of(0, *[None] * 8).bad == 8


@pytest.mark.parametrize(
    ("gold", "answers", "entropy", "bad"),
    [
        pytest.param("2", ["2"] * 4 + [r"\sqrt{4}"] * 4, 0.0, 0, id="a number and an expression of it"),
        pytest.param("2", [r"\$2"] * 4 + [r"\sqrt{4}"] * 4, 0.0, 0, id="a price, too"),
        pytest.param("3", [r"\sqrt{4}"] * 4 + [r"\sqrt{9}"] * 4, 0.6931, 0, id="two expressions"),
        pytest.param("6", ["5 or 6"] * 8, 2.0794, 8, id="no expression"),
        pytest.param("123", ["12,3"] * 8, 2.0794, 8, id="a set where a number was asked for"),
        pytest.param("2", [r"\frac{1}{"] * 8, 2.0794, 8, id="a broken expression"),
        pytest.param("B", ["B"] * 4 + ["C"] * 4, 0.6931, 0, id="words where the gold is one"),
    ],
)
def test_row_33_clusters_are_those_of_the_verifier(
    gold: str, answers: list[str], entropy: float, bad: int, symbolic: Symbolic
) -> None:
    found = difficulty(0, [Sample(answer, False, 1) for answer in answers], sameness(gold, symbolic))
    assert (found.entropy, found.bad) == (pytest.approx(entropy, abs=5e-5), bad)


def test_row_33_with_exact_numbers_alone_an_expression_cannot_be_read() -> None:
    found = difficulty(0, [Sample(one, False, 1) for one in ["2"] * 4 + [r"\sqrt{4}"] * 4], sameness("2", None))
    assert (found.clusters, found.bad) == ((("2", 4), *[(r"\sqrt{4}", 1)] * 4), 4)


def test_a_sample_without_an_answer_is_alone_whatever_counts_as_the_same() -> None:
    samples = [Sample(answer, False, 1) for answer in (None, "1", None, "2")]
    assert difficulty(0, samples, lambda first, second: True).clusters == (("", 1), ("1", 2), ("", 1))


def test_what_is_noted_beside_it() -> None:
    found = of(3, "1", "2", "1", None, "1.0")
    assert (found.problem, found.accuracy, found.bad, found.mean_tokens, found.samples) == (3, 0.4, 1, 10.0, 5)
    assert found.clusters == (("1", 3), ("2", 1), ("", 1))


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=9).flatmap(
        lambda counts: st.tuples(st.just(counts), st.permutations(counts))
    )
)
def test_the_order_of_clusters_changes_no_bit(counts: tuple[list[int], list[int]]) -> None:
    assert semantic_entropy(counts[0]) == semantic_entropy(counts[1])


def test_the_order_goes_from_easy_to_hard() -> None:
    measured = [
        of(0, "1", "2", "3", "4"),
        of(1, "1", "1", "1", "2"),
        of(2, "1", "2", "2", "2"),
        of(3, None, None, None, "1"),
        of(4, "2", "2", "2", "2"),
        of(5, "1", "1", "1", "2", tokens=5),
        of(6, "1", "1", "1", "1"),
    ]
    # Agreement first; of equal entropies the more often solved, then the shorter; then mostly no answer; last the
    # agreement on what is wrong.
    assert stages(measured, 1, "keep") == [[6, 5, 1, 2, 0, 3, 4]]
    assert stages(measured[::-1], 1, "keep") == [[6, 5, 1, 2, 0, 3, 4]]


def test_what_mostly_gives_no_answer_goes_after_what_gives_another_each_time() -> None:
    noise, wild = of(0, *["1"] * 3, *[None] * 5), of(1, *map(str, range(8)))
    assert noise.entropy < wild.entropy
    assert stages([noise, wild], 1) == [[1, 0]]


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_stages_are_equal_parts(count: int) -> None:
    measured = [of(number, *(["1"] * number + ["2"] * (40 - number))) for number in range(1, 20)]
    parts = stages(measured, count)
    assert sorted(one for part in parts for one in part) == list(range(1, 20))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_wrong_agreement_is_in_the_last_stage_however_many_there_are() -> None:
    measured = [of(number, "2", "2") for number in range(9)] + [of(9, "1", "2"), of(10, "1", "2")]
    assert stages(measured, 2) == [[9], [10, *range(9)]]


@pytest.mark.parametrize(("saturated", "left"), [("keep", 1000), ("drop", 0), ("thin", 50)])
def test_of_problems_that_are_always_solved_a_twentieth_stays(saturated: Any, left: int) -> None:
    measured = [of(number, "1", "1") for number in range(1000)] + [of(1000, "1", "2")]
    found = {one for one in stages(measured, 1, saturated)[0] if one != 1000}
    assert len(found) == pytest.approx(left, abs=20 if saturated == "thin" else 0)
    assert found == {one for one in stages(measured[500:], 1, saturated)[0] if one != 1000} | {
        one for one in found if one < 500
    }  # decided for each by itself


def test_too_few_problems_are_refused() -> None:
    with pytest.raises(ValueError, match="1 problems do not fill 2 stages"):
        stages([of(0, "1", "2")], 2)


def samples_of(problem: int) -> Sequence[Sample]:
    """Answers that depend on the problem alone, as those of an engine do that seeds each problem's draws."""
    draws = stream(0, problem, "answers")
    return [Sample(str(draws.randrange(3)), draws.random() < 0.5, draws.randrange(99)) for _ in range(8)]


def by_number(problem: int) -> Same:
    return same_answer


def opened(path: Path, measured: Measured = MEASURED, on_stale: Any = "fail") -> DifficultyCache:
    cache = open_cache(path, measured, on_stale)
    assert cache is not None
    return cache


def test_row_34_a_measurement_that_was_interrupted_ends_with_the_same_file(tmp_path: Path) -> None:
    whole = opened(tmp_path / "whole.jsonl")
    whole.measure(range(10), samples_of, by_number)
    asked: list[int] = []

    def sample(problem: int) -> Sequence[Sample]:
        asked.append(problem)
        return samples_of(problem)

    path = tmp_path / "broken.jsonl"
    opened(path).measure(range(3), samples_of, by_number)
    path.write_bytes(path.read_bytes()[:-7])  # killed while the third line was written
    cache = opened(path)
    cache.measure(range(10), sample, by_number)
    cache.close()
    assert path.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert asked == list(range(2, 10))
    assert opened(path).done == whole.done


def test_row_34_nothing_is_measured_twice(tmp_path: Path) -> None:
    opened(tmp_path / "d.jsonl").measure(range(60), samples_of, by_number)
    again = opened(tmp_path / "d.jsonl")
    again.measure(range(60), lambda problem: pytest.fail(f"{problem} was measured again"), by_number)


def test_row_34_a_kill_in_the_header_begins_anew(tmp_path: Path) -> None:
    opened(tmp_path / "d.jsonl")
    (tmp_path / "d.jsonl").write_bytes((tmp_path / "d.jsonl").read_bytes()[:-9])
    assert opened(tmp_path / "d.jsonl").done == {}


OTHER: dict[str, Any] = {
    name: value + (1 if isinstance(value, int | float) else "x")
    for name, value in msgspec.structs.asdict(MEASURED).items()
}


@pytest.mark.parametrize("name", OTHER)
def test_row_35_where_one_setting_differs_the_file_is_never_used(tmp_path: Path, name: str) -> None:
    path = tmp_path / "d.jsonl"
    opened(path).measure(range(3), samples_of, by_number)
    before = path.read_bytes()
    other = msgspec.structs.replace(MEASURED, **{name: OTHER[name]})
    assert other.digest != MEASURED.digest
    with pytest.raises(LonghaulError, match=f"other settings: {name} was .* is ") as caught:
        open_cache(path, other, "fail")
    assert caught.value.exit_code == ExitCode.INPUT and "sent.on_stale=rebuild" in caught.value.next_command
    with pytest.raises(LonghaulError) as begun:
        open_cache(path, other, "fail", has_begun=True)
    assert "--run NEW-NAME" in begun.value.next_command  # nothing can be measured anew
    assert open_cache(path, other, "shuffle") is None
    assert path.read_bytes() == before
    assert opened(path, other, "rebuild").done == {}
    assert (tmp_path / f"d.jsonl.{MEASURED.digest[:8]}").read_bytes() == before  # an hour's work is not thrown away


def test_row_35_a_damaged_file_is_not_used_either(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    opened(path).measure(range(3), samples_of, by_number)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], b"{}\n", *lines[3:]]))
    with pytest.raises(LonghaulError, match="line 3: "):
        open_cache(path, MEASURED, "fail")
    assert opened(path, on_stale="rebuild").done == {}
