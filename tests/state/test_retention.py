from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.history import CheckpointFacts, num_unhashed
from state.retention import MIN_VERIFIED, Kept, Rule, to_delete


def line(count: int, **changes: object) -> list[Kept]:
    """A chain c1 <- c2 ... of verified checkpoints, one a cycle, each its cycle's end."""
    return [
        Kept(f"c{n}", f"c{n - 1}" if n > 1 else None, cycle=n, step=10 * n, verified=True, is_cycle_end=True, **changes)  # type: ignore[arg-type]
        for n in range(1, count + 1)
    ]


def changed(entries: list[Kept], name: str, **changes: object) -> list[Kept]:
    return [replace(e, **changes) if e.checkpoint_id == name else e for e in entries]  # type: ignore[arg-type]


RULE = Rule(keep_ancestors=2, keep_every=0)
SIX = line(6)


@pytest.mark.parametrize(
    ("entries", "rule", "head", "expected"),
    [
        pytest.param(SIX, RULE, "c6", "c1 c2 c3", id="the head and two ancestors stay"),
        pytest.param(line(3), RULE, "c3", "", id="of three, none goes"),
        pytest.param([], RULE, "c1", "", id="of none, none goes"),
        pytest.param(SIX, RULE, "nobody", "", id="without a known head nothing goes"),
        pytest.param(SIX, Rule(2, 2), "c6", "c1 c3", id="every second cycle's end stays"),
        pytest.param(changed(SIX, "c2", is_cycle_end=False), Rule(2, 2), "c6", "c1 c2 c3", id="but only its end"),
        pytest.param(changed(SIX, "c1", best_for=("heldout",)), RULE, "c6", "c2 c3", id="the best of a suite stays"),
        pytest.param(
            changed(SIX, "c6", verified=False), RULE, "c6", "c1 c2",
            id="until the head is verified its parent is treated as the head, with ancestors of its own",
        ),
        pytest.param(changed(SIX, "c6", verified=False), RULE, "c5", "c1 c2", id="what is newer than the head stays"),
        pytest.param(
            [replace(entry, verified=False) for entry in SIX], RULE, "c6", "", id="nothing goes while none is verified"
        ),
        pytest.param(
            changed(changed(SIX, "c5", verified=False), "c4", verified=False),
            RULE, "c6", "c1 c2", id="a second verified one stays though no rule names it",
        ),
        pytest.param(changed(SIX, "c5", parent="gone"), RULE, "c6", "c1 c2 c3 c4", id="a cut line ends there"),
        pytest.param(line(4), Rule(1, 0), "c4", "c1 c2", id="one ancestor, if the rule says so"),
    ],
)  # fmt: skip
def test_what_may_go(entries: list[Kept], rule: Rule, head: str, expected: str) -> None:
    assert [entry.checkpoint_id for entry in to_delete(entries, rule, head)] == expected.split()


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[Kept], Rule, str]:
    count = draw(st.integers(1, 12))
    entries = []
    for n in range(count):
        parent = draw(st.sampled_from([None, "gone", *(f"c{m}" for m in range(n))]))
        entries.append(
            Kept(
                f"c{n}", parent, draw(st.integers(0, 6)), draw(st.integers(0, 9)), 1, draw(st.booleans()),
                draw(st.sampled_from([(), ("a",)])), draw(st.booleans()),
            )
        )  # fmt: skip
    rule = Rule(draw(st.integers(0, 3)), draw(st.integers(0, 4)))
    return draw(st.permutations(entries)), rule, f"c{draw(st.integers(0, count - 1))}"


@given(histories())
def test_whatever_the_history_the_head_and_two_verified_remain_at_every_instant(
    history: tuple[list[Kept], Rule, str],
) -> None:
    entries, rule, head = history
    enough = min(MIN_VERIFIED, sum(entry.verified for entry in entries))
    left = list(entries)
    for entry in to_delete(entries, rule, head):
        left.remove(entry)
        assert sum(entry.verified for entry in left) >= enough
        assert head in {entry.checkpoint_id for entry in left}
    assert all(entry in left for entry in entries if entry.best_for)
    assert to_delete(left, rule, head) == []


@given(histories())
def test_what_could_be_fallen_back_to_stays_until_the_head_is_verified(history: tuple[list[Kept], Rule, str]) -> None:
    entries, rule, head = history
    by_id = {entry.checkpoint_id: entry for entry in entries}
    gone = {entry.checkpoint_id for entry in to_delete(entries, rule, head)}
    at: str | None = head
    while at in by_id and not by_id[at].verified:
        assert at not in gone
        at = by_id[at].parent
    assert at not in gone
    assert at in by_id or not gone


@given(histories())
def test_the_order_in_which_checkpoints_are_told_does_not_matter(history: tuple[list[Kept], Rule, str]) -> None:
    entries, rule, head = history
    assert to_delete(entries[::-1], rule, head) == to_delete(entries, rule, head)


@pytest.mark.parametrize(
    ("verified", "newest", "expected"),
    [
        ("", "a", 1),
        ("y", "a", 0),
        ("y", "b", 1),
        ("ynn", "c", 2),
        ("ynn", "d", 3),
        ("nny", "c", 0),
    ],
)
def test_how_many_wait_for_their_hash(verified: str, newest: str, expected: int) -> None:
    known = [
        CheckpointFacts("abc"[n], None, 1, n, f"c{n}", "d", 1, verified=mark == "y") for n, mark in enumerate(verified)
    ]
    quarantined = CheckpointFacts("q", None, 1, 9, "q", "d", 1, verified=True, state="quarantined")
    assert num_unhashed([*known, quarantined], newest) == expected


def test_an_older_ancestor_stays_in_the_place_of_one_that_was_damaged() -> None:
    without = [entry for entry in SIX if entry.checkpoint_id != "c5"]
    assert [entry.checkpoint_id for entry in to_delete(without, RULE, "c6", {"c5": "c4"})] == ["c1", "c2"]
