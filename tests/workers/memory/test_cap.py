"""A large card capped to a smaller one: what the allocator may use besides everything else in the process."""

from __future__ import annotations

import sys

import pytest
import torch
from msgspec.structs import replace

from profiles.errors import ExitCode, LonghaulError
from profiles.footprint import GIB
from profiles.schema import Profile
from workers.memory import cap
from workers.memory.cap import Cap, allocator_share, context_bytes


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


def test_what_another_program_takes_is_taken_off_up_to_the_largest_context(card: dict[str, int]) -> None:
    card |= {"used": 9 * GIB, "reserved": 2 * GIB}
    cap.tighten()
    assert card["share"] == 3 * GIB - cap.AHEAD


def test_beside_a_pool_of_vllm_the_context_stays_what_it_was(
    card: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    cap.tighten()
    monkeypatch.setitem(sys.modules, "vllm", sys)
    card |= {"used": 9 * GIB, "reserved": 2 * GIB}
    cap.tighten()
    assert card["share"] == 3.5 * GIB - cap.AHEAD


def test_a_cap_that_is_too_tight_by_now_ends_no_phase(card: dict[str, int]) -> None:
    """The next allocation fails, and whoever catches that knows what to do."""
    cap.tighten()
    held = cap.held()
    assert held is not None
    held.whole = GIB // 2
    card |= {"used": 3 * GIB // 4}
    cap.tighten()
    assert card["share"] == 1


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


def test_others_that_leave_between_two_looks_leave_a_cap(card: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was killed may still be counted when the next one begins."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(cap, "_cap", None)
    monkeypatch.setattr(cap, "used_by_others", lambda: 12 * GIB)
    assert cap.limit(7.5) is cap.held()
    assert card["share"] == 7 * GIB - cap.AHEAD


def test_no_cap_after_one_is_all_there_is(card: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    cap.tighten()
    assert cap.limit(0.0) is None and cap.held() is None
    assert card["share"] == 100 * GIB
