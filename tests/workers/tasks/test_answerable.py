"""No task is stored that nobody can answer: its right answer survives the form that the prompt asks for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from profiles.errors import LonghaulError
from profiles.task_kinds import NAMES
from tests.workers.azr.small import CHATML, azr_profile, said, scripted_tools, triplet, write_tokenizer
from tests.workers.data.given import checker, line, merged, write
from workers.azr.buffers import Buffers
from workers.azr.proposing import Drawn, ProposerPrompt, rules_of, verify
from workers.data.data_set import read_data_set
from workers.data.tasks import read_tasks
from workers.pocket.evaluation import held_out_problems
from workers.rollout.engine import Rollout
from workers.sandbox import Limits, Sandbox
from workers.sandbox.literal import parse_value, render
from workers.tasks.answerable import is_answerable
from workers.tasks.entry import Entry, make_entry
from workers.tasks.items import Task
from workers.tasks.kinds.registry import kind_of
from workers.tasks.prompts.azr import AzrStyle
from workers.tasks.prompts.pocket import PocketStyle
from workers.tasks.prompts.style import PromptStyle, Proposal
from workers.tasks.seeds import seed_entries
from workers.tasks.styles import style_of
from workers.tasks.validate_proposals import Candidate, Rules, check

STYLES = (AzrStyle(), AzrStyle("azr-chat"), PocketStyle())
TICKS = "'`' * 3"


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox(Limits(cpu_s=1.0, allow_weak=True), jobs=1) as box:
        yield box


def task(kind: Task, program: str = "def f(a):\n    return a", input_: str = "1", output: str = "1") -> Entry:
    inputs = [input_] if kind != "ind" else [input_, "2"]
    return make_entry(kind, program, inputs, [output] * len(inputs), step=1, source="selfplay")


@pytest.mark.parametrize(
    ("entry", "can_be_said"),
    [
        pytest.param(task("ded", output="'</answer>'"), False, id="an output that ends the answer"),
        pytest.param(task("ded", output="['a', '```']"), False, id="an output that ends its fence"),
        pytest.param(task("ded", output="'``'"), True, id="two backticks end nothing"),
        pytest.param(task("ded", output="'<answer> </think> <think>'"), True, id="the other tags end nothing"),
        pytest.param(task("ded", input_="'</answer>'"), True, id="an input that is only shown"),
        pytest.param(task("abd", output="'```'"), True, id="an output that is only shown"),
        pytest.param(task("abd", input_="'</answer>'"), False, id="an input that ends the answer"),
        pytest.param(task("abd", input_="1, {'```': 2}"), False, id="an input that ends its fence"),
        pytest.param(task("ind", "def f(a):\n    return a.split('</answer>')"), False, id="a program ends the answer"),
        pytest.param(task("ind", "def f(a):\n    return a  # ```"), False, id="a program ends its fence"),
        pytest.param(task("ded", "def f(a):\n    return a  # ```"), True, id="a program that is only shown"),
        pytest.param(task("ind", "\n\ndef f(a):\n    return a\n\n"), True, id="lines around a program"),
    ],
)
def test_what_the_form_of_the_published_prompts_can_carry(entry: Entry, can_be_said: bool) -> None:
    assert is_answerable(AzrStyle(), entry) is is_answerable(AzrStyle("azr-chat"), entry) is can_be_said


@pytest.mark.parametrize(
    ("entry", "can_be_said"),
    [
        (task("ded", output="'uv'"), True), (task("ded", output="'u v'"), False), (task("ded", output="1"), False),
        (task("abd", input_="'uv'"), True), (task("abd", input_="'u', 'v'"), False), (task("ind"), True),
        (task("ind", "def g(a):\n    return a\ndef f(a):\n    return g(a)"), False),
    ],
)  # fmt: skip
def test_what_the_form_of_the_pocket_model_can_carry(entry: Entry, can_be_said: bool) -> None:
    assert is_answerable(PocketStyle(), entry) is can_be_said


_TEXT = st.lists(
    st.one_of(st.sampled_from(["`", "```", "</answer>", "<answer>", "</think>", "<think>", "\n", "'", '"', "\\",
                               "```output\n", "```python", "<eos>", "<work>", "<prog>", "=", "# Input:"]),
              st.text(max_size=3)),
    max_size=5,
).map("".join)  # fmt: skip
_LITERALS = st.recursive(
    st.one_of(_TEXT, _TEXT.map(lambda text: text.encode("utf-8", "replace")), st.integers(), st.none()),
    lambda one: st.one_of(st.lists(one, max_size=2), st.tuples(one), st.dictionaries(_TEXT, one, max_size=2)),
    max_leaves=3,
).map(render)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(STYLES), st.sampled_from(["abd", "ded", "ind"]), _LITERALS)
@example(STYLES[0], "ded", "'</answer>'")
@example(STYLES[0], "abd", "'```'")
@example(STYLES[0], "ind", "'```'")
def test_every_accepted_gold_is_found_in_the_answer_that_says_it(style: PromptStyle, kind: Task, literal: str) -> None:
    program = f"def f(a):\n    return {literal}" if kind == "ind" else "def f(a):\n    return a"
    entry = task(kind, program, "1" if kind != "abd" else literal, literal if kind == "ded" else "1")
    completion = style.render_answer(kind, kind_of(entry.task).gold(entry))
    found = style.parse_answer(kind, completion)
    if is_answerable(style, entry):
        assert style.is_well_formed(kind, completion) and found is not None
        if kind == "ind":
            assert make_entry(kind, found, entry.inputs, entry.outputs, step=1, source="selfplay").key == entry.key
        else:
            assert parse_value(f"[{found}]") == parse_value(f"[{kind_of(entry.task).gold(entry)}]")
    elif isinstance(style, AzrStyle):  # nothing is refused but what holds a mark of the form
        assert "```" in kind_of(entry.task).gold(entry) or "</answer>" in kind_of(entry.task).gold(entry)


def test_the_seeds_and_the_held_out_problems_can_be_answered() -> None:
    for style in STYLES:
        assert all(is_answerable(style, entry) for entry in seed_entries(NAMES, style.name))
    for problem in held_out_problems(50):
        item = problem.item
        inputs, outputs = ((item.input,), (item.output,)) if problem.task != "ind" else (item.inputs, item.outputs)  # type: ignore[union-attr]
        entry = make_entry(problem.task, item.program, inputs, outputs, step=0, source="seed")
        assert is_answerable(PocketStyle(), entry)


@pytest.mark.parametrize("style", ["azr", "azr-chat"])
@pytest.mark.parametrize("kind", ["ded", "abd"])
@pytest.mark.parametrize("value", ["'`' * 3", "'</ans' + 'wer>'"])
def test_a_proposal_whose_answer_cannot_be_written_is_counted_as_that(
    style: str, kind: Task, value: str, tmp_path: Path, sandbox: Sandbox
) -> None:
    """The output of deduction is computed; the input of abduction is a literal that is put together."""
    tools, _ = scripted_tools(tmp_path, sandbox, lambda prompt, seed: "", style=style)
    computed = f"def f(a):\n    return {value}"
    joined = "'`' '``'" if "`" in value else "'</ans' 'wer>'"
    text = triplet(computed, "1") if kind == "ded" else triplet("def f(a):\n    return len(a)", joined)
    ids = tools.tokenizer.encode(said(text))
    drawn = [Drawn(ProposerPrompt(kind, (1,), ""), 0, Rollout((1,), ids, (-1.0,) * len(ids), "length"))]
    reasons: Counter[str] = Counter()
    (proposed,) = verify(tools, Buffers(NAMES, 9), drawn, 1, reasons)
    assert proposed.checked.entry is None and reasons == {"unanswerable": 1}


def test_an_induction_task_about_a_program_with_a_mark_of_the_form_is_refused(tmp_path: Path, sandbox: Sandbox) -> None:
    tools, _ = scripted_tools(tmp_path, sandbox, lambda prompt, seed: "")
    program = "def f(a):\n    return [a, '```']"
    inputs = tuple(str(number) for number in range(10))
    found = check(
        [Candidate("ind", Proposal("", inputs), program)], sandbox, {"ind": ()}, step=1, rules=rules_of(tools)
    )
    assert [one.reason for one in found] == ["unanswerable"]


def test_an_import_asks_each_kind_of_task_for_its_own_answer(tmp_path: Path) -> None:
    """A triplet is run once for both kinds; `'```'` can be shown as the output of an abduction, and not be answered."""
    style = style_of(azr_profile(), write_tokenizer(tmp_path / "model", CHATML))
    source = write(
        tmp_path / "t.jsonl", *(line("def f(a):\n    return '`' * a", "3", task=kind) for kind in ("ded", "abd"))
    )
    with checker() as check_:
        report = merged(tmp_path / "set.jsonl", replace(check_, rules=with_style(check_.rules, style)), source)
    assert report.as_json()["invalid"] == {"unanswerable": 1}
    assert [one.task for one in read_data_set(tmp_path / "set.jsonl").records] == ["abd"]


def test_a_finite_source_with_such_a_task_is_refused_by_line(tmp_path: Path, sandbox: Sandbox) -> None:
    style = style_of(azr_profile(), write_tokenizer(tmp_path / "model", CHATML))
    path = write(tmp_path / "t.jsonl", line(), line("def f(a):\n    return '`' * a", "3"))
    with pytest.raises(LonghaulError, match="line 2: the answer cannot be written"):
        read_tasks(path, sandbox, NAMES, with_style(Rules(), style))


def with_style(rules: Rules, style: PromptStyle) -> Rules:
    return replace(rules, is_answerable=lambda entry: is_answerable(style, entry))
