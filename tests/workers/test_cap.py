"""A smaller card on a larger one: what the allocator may have, beside all else that a process holds."""

from __future__ import annotations

import pytest
import torch
from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import GIB
from profiles.schema import Profile
from workers import cap
from workers.cap import Cap, allocator_share, context_bytes


@pytest.mark.parametrize(
    ("cap_gib", "context_gib", "total_gib", "share"),
    [(7.6, 0.45, 139.8, 0.0507), (15.4, 0.45, 139.8, 0.1065), (200, 0.45, 139.8, 1.0)],
    ids=["an 8 GB card on one of 140", "a 16 GB card", "more than there is"],
)
def test_a_cap_is_the_card_s_memory_without_the_context_and_what_may_yet_be_loaded(
    cap_gib: float, context_gib: float, total_gib: float, share: float
) -> None:
    found = allocator_share(Cap(int(cap_gib * GIB), 0, int(context_gib * GIB)), int(total_gib * GIB))
    assert found == pytest.approx(share, abs=5e-5)


def test_a_cap_that_holds_no_more_than_a_context_is_refused() -> None:
    with pytest.raises(LonghaulError, match=r"cap_gib = 0\.3 leaves nothing") as caught:
        allocator_share(Cap(int(0.3 * GIB), 0, GIB // 2), 80 * GIB)
    assert caught.value.exit_code == ExitCode.GPU


def test_a_context_is_what_neither_others_nor_the_allocator_hold() -> None:
    assert context_bytes(in_use=900, foreign=300, reserved=100) == 500
    assert context_bytes(in_use=100, foreign=300, reserved=0) == 0  # somebody else has left meanwhile
    assert context_bytes(in_use=60 * GIB, foreign=0, reserved=0) == cap.MOST_CONTEXT


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_a_cap_binds_nothing() -> None:
    profile = Profile(name="x")
    cap.limit(4.0)
    cap.tighten()
    assert cap.share_of_cap(replace(profile, memory=replace(profile.memory, cap_gib=4.0))) == 1.0


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """One of 100 GiB under a cap of 4 GiB; GiB of it that are in use, and reserved by the allocator."""
    found = {"used": 1 * GIB // 2, "reserved": 0, "share": 0, "emptied": 0}
    monkeypatch.setattr(cap, "_cap", Cap(4 * GIB, foreign=0))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (100 * GIB - found["used"], 100 * GIB))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: found["reserved"])
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.update(emptied=found["emptied"] + 1))
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share: found.update(share=round(share * 100 * GIB))
    )
    return found


def test_what_is_loaded_later_is_taken_off_what_the_allocator_may_have(card: dict[str, int]) -> None:
    cap.tighten()
    assert card["share"] == 3.5 * GIB - cap.AHEAD
    card |= {"used": 11 * GIB // 4, "reserved": 2 * GIB}  # libraries took a quarter of a GiB
    cap.tighten()
    assert card["share"] == 3.25 * GIB - cap.AHEAD
    card |= {"used": 5 * GIB // 2}  # and may be needed again
    cap.tighten()
    assert card["share"] == 3.25 * GIB - cap.AHEAD
    assert card["emptied"] == 0


def test_what_the_allocator_holds_beyond_its_new_share_is_given_back(card: dict[str, int]) -> None:
    card |= {"used": 4 * GIB - cap.AHEAD, "reserved": 13 * GIB // 4 - cap.AHEAD}
    cap.tighten()
    assert card["share"] == 3.25 * GIB - cap.AHEAD and card["emptied"] == 0
    card |= {"used": 33 * GIB // 8 - cap.AHEAD}
    cap.tighten()
    assert card["share"] == 3.125 * GIB - cap.AHEAD and card["emptied"] == 1


def test_what_is_more_than_a_context_belongs_to_others(card: dict[str, int]) -> None:
    cap.tighten()
    card |= {"used": 9 * GIB, "reserved": 2 * GIB}  # vLLM took its pool
    cap.tighten()
    assert card["share"] == 3.5 * GIB - cap.AHEAD
    card |= {"used": 11 * GIB // 4}  # it sleeps
    cap.tighten()
    assert card["share"] == 13 * GIB // 4 - cap.AHEAD


def test_the_same_cap_again_keeps_what_is_known_of_others(
    card: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A benchmark sets it before the session that it measures does; by then this process is in use itself."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cap, "used_by_others", lambda: card["used"])
    first = cap.limit(4.0)
    assert first is not None and first is cap.limit(4.0)
    assert first.allocator == card["share"] == 3.5 * GIB - cap.AHEAD
    assert cap.limit(3.0) is not first and card["share"] == 2.5 * GIB - cap.AHEAD
