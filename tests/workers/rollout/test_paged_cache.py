"""A paged cache: rows share pages of their prompts, wait for free ones, and are set back when they run out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.families import WINDOW, model_of
from tests.workers.models.test_families import BOUND, OWN, UNSAMPLED
from tests.workers.rollout.models import decode, direct_log_probs, tiny_model
from tests.workers.rollout.test_conversations import at_once
from workers.models import attention
from workers.rollout.engine import Request, Rollout, Sampling
from workers.rollout.graph import engine as graph_engine
from workers.rollout.graph.engine import GraphEngine
from workers.rollout.graph.pages import PAGE, TEAM, Pages, pages_of, saved_tokens, shared_pages, teams_of
from workers.rollout.graph.state import State
from workers.rollout.native import NativeEngine

MODEL = tiny_model()
LONG = Sampling(max_new_tokens=300)


def prompts_of(count: int, group: int, lengths: Sequence[int]) -> list[Request]:
    """Requests in groups with one prompt each."""
    draws = random.Random(count)
    prompts = [tuple(draws.randrange(2, 28) for _ in range(draws.choice(lengths))) for _ in range(-(-count // group))]
    return [Request(prompts[number // group], number) for number in range(count)]


def ids(rollouts: list[Rollout]) -> list[tuple[int, ...]]:
    return [one.completion_ids for one in rollouts]


@pytest.mark.parametrize("max_rows", [1, 2, 5])
@pytest.mark.parametrize("overcommit", [2.0, 7.5])
def test_rows_that_share_pages_and_are_set_back_get_what_they_would_get_alone(max_rows: int, overcommit: float) -> None:
    requests = prompts_of(24, 4, [1, 2, PAGE, PAGE + 1, 100, 2 * PAGE + 1])
    engine = GraphEngine(MODEL, decode, max_rows=max_rows, overcommit=overcommit)
    found = engine.generate(requests, LONG)
    assert ids(found) == ids(NativeEngine(MODEL).generate(requests, LONG))
    for one in found:
        expected = direct_log_probs(MODEL, one, 1.0)
        torch.testing.assert_close(torch.tensor(one.log_probs), expected, atol=BOUND, rtol=0)


def test_rows_of_full_length_end_although_most_are_set_back_and_their_entropies_stay() -> None:
    requests, sampling = prompts_of(12, 3, [70]), Sampling(max_new_tokens=200, ignore_stop=True, entropies=True)
    engine = GraphEngine(MODEL, decode, max_rows=2, overcommit=6.0)
    found = engine.generate(requests, sampling)
    assert engine.set_back_rows > 4
    for one, other in zip(found, NativeEngine(MODEL).generate(requests, sampling), strict=True):
        assert one.completion_ids == other.completion_ids and len(one.entropies) == 200
        torch.testing.assert_close(torch.tensor(one.entropies), torch.tensor(other.entropies), atol=1e-4, rtol=0)


def test_short_rows_decode_side_by_side_in_the_cache_of_a_few_of_full_length() -> None:
    engine, most = GraphEngine(MODEL, decode, max_rows=4, overcommit=4.0), list[int]()
    requests, sampling = prompts_of(32, 1, [5]), Sampling(max_new_tokens=4 * PAGE, stop=("A", "B", "C", "D"))
    steps = engine._prepared

    def counted(needed: Any) -> Any:
        state, made = steps(needed)

        def step(rows: int) -> Any:
            most.append(int(state.active.sum()))
            return made(rows)

        return state, step

    engine._prepared = counted  # type: ignore[method-assign]
    assert ids(engine.generate(requests, sampling)) == ids(NativeEngine(MODEL, decode).generate(requests, sampling))
    assert max(most) == 12 and engine.set_back_rows == 0  # of 24 pages, one for each, and one to grow
    wide = GraphEngine(MODEL, decode, max_rows=16)
    wide.generate(requests, sampling)
    assert engine.cache_bytes < 0.3 * wide.cache_bytes


def test_a_prompt_is_read_once_for_all_rows_that_run_at_one_time(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Counter[int]()
    engine = GraphEngine(MODEL, max_rows=4, overcommit=2.0)
    run_layers = engine._decoder.run_layers

    def counted(ids: torch.Tensor, *rest: Any) -> torch.Tensor:
        read["prompts"] += len(ids)
        return run_layers(ids, *rest)

    monkeypatch.setattr(engine._decoder, "run_layers", counted)
    engine.generate(prompts_of(32, 32, [100]), Sampling(max_new_tokens=30))
    assert engine.set_back_rows == 0 and read["prompts"] == 1


def test_what_is_drawn_does_not_depend_on_a_cache_that_was_kept() -> None:
    requests, sampling = prompts_of(12, 3, [70]), Sampling(max_new_tokens=200, ignore_stop=True)
    fresh, kept = (GraphEngine(MODEL, max_rows=2, overcommit=6.0) for _ in range(2))
    kept.generate(prompts_of(12, 3, [200]), LONG)
    kept.rest()
    before = kept.set_back_rows
    assert ids(fresh.generate(requests, sampling)) == ids(kept.generate(requests, sampling))
    assert fresh.set_back_rows == kept.set_back_rows - before > 0


def test_conversations_have_all_their_pages_from_the_start() -> None:
    requests, sampling = prompts_of(9, 3, [5, 66, 130]), Sampling(max_new_tokens=150, stop=("A", "B"))

    engine = GraphEngine(MODEL, decode, max_rows=2, overcommit=4.0)
    found = engine.converse(requests, sampling, at_once)
    assert engine.set_back_rows == 0
    expected = NativeEngine(MODEL, decode).converse(requests, sampling, at_once)
    assert ids(found) == ids(expected)


@pytest.mark.parametrize("name", sorted(OWN))
def test_every_family_is_decoded_over_pages_with_the_log_probs_of_plain_transformers(name: str) -> None:
    if name in UNSAMPLED:
        pytest.skip("transformers itself gives other numbers with a cache")
    if "longrope" in name:
        pytest.skip("a sequence beyond the original context has other angles; no engine draws one")
    model, other = model_of(name), model_of(name)
    other.set_attn_implementation("eager")
    attention.enable(model)
    draws = torch.Generator().manual_seed(1)
    prompts = [tuple(torch.randint(2, 250, (length,), generator=draws).tolist()) for length in (1, PAGE + 2, 90)]
    requests = [Request(prompt, seed) for seed, prompt in enumerate([*prompts, *prompts[1:]])]
    sampling = Sampling(max_new_tokens=PAGE + WINDOW, ignore_stop=True)
    engine = GraphEngine(model, max_rows=1, overcommit=5.0)
    for one in engine.generate(requests, sampling):
        truth = direct_log_probs(other, one, 1.0)
        assert float((torch.tensor(one.log_probs) - truth).abs().max()) < BOUND
    assert engine.set_back_rows > 0


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_no_page_has_two_owners_or_is_lost(data: st.DataObject) -> None:
    pages, tokens, shared = Pages(20), dict[int, int](), dict[int, int]()
    for _ in range(data.draw(st.integers(0, 40))):
        slot = data.draw(st.integers(0, 5))
        if slot not in tokens:
            other = data.draw(st.sampled_from([None, *tokens]))
            common = () if other is None else pages.of(other)[: data.draw(st.integers(0, 3))]
            pages.begin(slot, common)
            tokens[slot] = shared[slot] = len(common) * PAGE
        elif data.draw(st.booleans()):
            wanted = tokens[slot] + data.draw(st.integers(0, 200))
            before = list(pages.of(slot))
            if pages.grow(slot, wanted):
                tokens[slot] = max(tokens[slot], wanted)
                assert list(pages.of(slot))[: len(before)] == before
            else:
                assert pages.of(slot) == before
        elif data.draw(st.booleans()):
            pages.end(slot)
            del tokens[slot]
        elif empty := [one for one in range(6) if one not in tokens]:
            pages.move(slot, empty[0])
            tokens[empty[0]], shared[empty[0]] = tokens.pop(slot), shared.pop(slot)
        held = {slot: pages.of(slot) for slot in tokens}
        assert all(len(held[slot]) >= pages_of(tokens[slot]) for slot in tokens)
        assert len({page for each in held.values() for page in each}) + pages.free == 20
        own = Counter(page for slot, each in held.items() for page in each[shared[slot] // PAGE :])
        assert not own or max(own.values()) == 1
        assert 0 not in own


@pytest.mark.parametrize(
    ("tokens", "pages"), [(0, 0), (1, 0), (PAGE, 0), (PAGE + 1, 1), (2 * PAGE, 1), (2 * PAGE + 1, 2)]
)
def test_rows_share_pages_that_hold_nothing_but_their_prompt_without_its_last_token(tokens: int, pages: int) -> None:
    assert shared_pages(tokens) == pages


@pytest.mark.parametrize(("held", "counts", "teams"), [
    ([[1, 2, 3], [1, 2, 4]], [2, 2], [[0, 1], []]),
    ([[1, 2], [5], [1, 2, 9], []], [2, 0, 2, 0], [[0, 2], [], [], []]),
    ([[1, 2], [3, 2]], [0, 0], [[], []]),
    ([[1]] * (TEAM + 1), [1] * TEAM + [0], [list(range(TEAM)), *[[]] * TEAM]),
    ([], [], []),
])  # fmt: skip
def test_a_team_has_rows_whose_first_pages_are_the_same(
    held: list[list[int]], counts: list[int], teams: list[list[int]]
) -> None:
    assert teams_of(held) == (counts, teams)


def test_a_step_reads_a_shared_prompt_once_for_each_team() -> None:
    prompts = [(1,) * (3 * PAGE), (2,) * 10]
    assert saved_tokens([prompts[0]] * TEAM + [prompts[1]] * TEAM, 10) == 10 * (TEAM - 1) * 2 * PAGE / (2 * TEAM)
    assert saved_tokens([prompts[0]] * (TEAM + 1), TEAM + 1) == (TEAM - 1) * 2 * PAGE
    assert saved_tokens([(1, *prompts[0]), (2, *prompts[0])], 2) == 0


def test_teams_are_known_only_where_reading_together_saves_much(monkeypatch: pytest.MonkeyPatch) -> None:
    alike, sampling = prompts_of(12, 6, [3 * PAGE]), Sampling(max_new_tokens=20, ignore_stop=True)
    a_token = 2 * sum(MODEL.model.layers[0].self_attn.k_proj.weight.shape[:1]) * 4
    monkeypatch.setattr(graph_engine, "LEAST_SAVED", 10 * 2 * PAGE * a_token)
    engine, published = GraphEngine(MODEL, max_rows=12, overcommit=1.5), []
    set_pages = State.set_pages

    def noted(state: State, held: Sequence[Sequence[int]]) -> None:
        set_pages(state, held)
        assert state.together is not None and state.teams is not None
        published.append((state.reads_together, state.together.tolist(), state.teams.tolist()))

    monkeypatch.setattr(State, "set_pages", noted)
    found = engine.generate(alike, sampling)
    assert ids(found) == ids(NativeEngine(MODEL).generate(alike, sampling))
    first = [[*range(6), -1, -1], *[[-1] * TEAM] * 5, [*range(6, 12), -1, -1], *[[-1] * TEAM] * 5]
    assert published[0] == (True, [2 * PAGE] * 12, first)
    published.clear()
    engine.generate(prompts_of(12, 1, [3 * PAGE]), sampling)
    assert not any(is_together for is_together, *_ in published)
    few = prompts_of(12, 2, [2 * PAGE])
    for is_trial in (False, True):
        published.clear()
        with engine.trial() if is_trial else nullcontext():
            engine.generate(few, sampling)
        assert published[0][0] == is_trial
    assert engine.cache_bytes == 0
