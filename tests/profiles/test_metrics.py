"""The table of metrics: one meaning for each name, and nobody reads what is not in it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from profiles.metrics import METRICS, NODE_SECONDS, by_node, metric_of, of_node, reference
from tests import REPOSITORY


def test_every_metric_has_one_name_a_unit_and_a_meaning() -> None:
    assert len({one.name for one in METRICS}) == len(METRICS)
    assert all(one.unit and one.meaning for one in METRICS)


@pytest.mark.parametrize(
    ("name", "declared"),
    [
        ("loss", "loss"),
        ("reward/solve_abd", "reward/ROLE_TASK"),
        ("reward/correct", "reward/correct"),
        ("reward/format_v2", "reward/NAME"),
        ("reward/even/last digit", "reward/NAME/PART"),
        ("memory/train/allocated", "memory/PHASE/allocated"),
        ("seconds/validate_proposals", "seconds/STAGE"),
        ("invalid/held_out", "invalid/REASON"),
        ("node/gpu-a01.cluster/seconds", "node/NODE/seconds"),
    ],
)
def test_a_reported_name_is_found_in_its_family(name: str, declared: str) -> None:
    assert metric_of(name).name == declared


@pytest.mark.parametrize("name", ["lost", "reward/a.b", "memory/train", "buffer/", "invalid/a/x"])
def test_a_name_that_is_not_declared_is_refused(name: str) -> None:
    with pytest.raises(KeyError, match=r"is not a metric of profiles/metrics\.py"):
        metric_of(name)


DISTINCT = {one.name for one in METRICS if "_" in one.name and not one.family}
PLAIN = {one.name for one in METRICS if "_" not in one.name and not one.family}
FAMILIES = tuple({f"{one.name.partition('/')[0]}/" for one in METRICS if one.family})
OF_STEPS = {"StepFacts", "STEP", "steps"}


def functions_of(tree: ast.Module) -> Iterator[ast.stmt]:
    """Statements of a module and of its classes, whole."""
    for one in tree.body:
        yield from one.body if isinstance(one, ast.ClassDef) else [one]


def reads_in(tree: ast.AST) -> Iterator[ast.expr]:
    """What is looked up in mappings: `x[HERE]`, `x.get(HERE)`, `HERE in x`."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(slice=key):
                yield key
            case ast.Call(func=ast.Attribute(attr="get"), args=[key, *_]):
                yield key
            case ast.Compare(left=key, ops=[ast.In() | ast.NotIn()]):
                yield key


def literal_metrics(tree: ast.Module) -> Iterator[int]:
    """Lines with a metric's name as a text. A name that is also a word counts where it is looked up in a step."""
    for part in functions_of(tree):
        texts = [node for node in ast.walk(part) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
        yield from (one.lineno for one in texts if one.value in DISTINCT or one.value.startswith(FAMILIES))
        if any(getattr(node, name, "") in OF_STEPS for node in ast.walk(part) for name in ("id", "attr", "arg")):
            yield from (key.lineno for key in reads_in(part) if isinstance(key, ast.Constant) and key.value in PLAIN)


def test_nobody_who_reads_a_metric_spells_its_name() -> None:
    own = (
        "profiles/metrics.py",
        "profiles/goal.py",  # read at every start, for which metrics.py is slow to import; test_suites.py compares
        "orchestrator/data_sets/render.py",  # a data set counts programs too
        "orchestrator/open_instruct/as_profile.py",  # names of options
    )
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line}"
        for folder in ("profiles", "state", "orchestrator")
        for path in sorted((REPOSITORY / folder).rglob("*.py"))
        if str(path.relative_to(REPOSITORY)) not in own
        for line in literal_metrics(ast.parse(path.read_text(encoding="utf-8")))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "is_refused"),
    [
        ('SHARES = ("accuracy", "skipped_share")', True),
        ('by_task(facts, "reward/solve_")', True),
        ('def f(steps: Sequence[StepFacts]):\n    return steps[-1].metrics["loss"]', True),
        ('def f(steps):\n    return steps[-1].metrics.get("kl", 0)', True),
        ('def f(steps):\n    return "accuracy" in steps[-1].metrics', True),
        ('def f(steps):\n    return {"problems": len(steps)}', False),
        ('def f(facts):\n    return facts["problems"]', False),
    ],
)
def test_the_search_for_names_of_metrics_finds_them(text: str, is_refused: bool) -> None:
    assert bool(list(literal_metrics(ast.parse(text)))) == is_refused


def test_the_document_is_what_the_table_says() -> None:
    written = (REPOSITORY / "docs/metrics.md").read_text(encoding="utf-8")
    assert written == reference(), "run: .venv/bin/python -m profiles.metrics > docs/metrics.md"


def test_the_metrics_of_a_node_are_found_by_its_name() -> None:
    metrics = {of_node("n1", "seconds"): 1.0, of_node("n1", "read"): 7.0, of_node("n2", "seconds"): 2.0, "seconds": 9.0}
    assert by_node(metrics) == {"n1": {"seconds": 1.0, "read": 7.0}, "n2": {"seconds": 2.0}}
    assert metric_of(of_node("n1", "seconds")) is NODE_SECONDS
