"""What is decided before anything is exchanged: who does what, what is said over the wire, who was lost."""

from __future__ import annotations

import gc
import socket
import threading
import weakref
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Profile, Run
from state.layout import AttemptDir
from workers.azr.replica import Apply as AzrApply
from workers.azr.replica import AzrReplica
from workers.failures import is_out_of_memory, phase_of
from workers.grpo.replica import Apply as GrpoApply
from workers.grpo.replica import GrpoReplica
from workers.rank_group import calls
from workers.rank_group.calls import Figures, Generate, Rest, TakeFigures
from workers.rank_group.follower import next_call
from workers.rank_group.hosts import Loss
from workers.rank_group.leader import Follower, RankGroup, lost, rank_of_cause
from workers.rank_group.replica import Handlers, Replica, highest
from workers.rank_group.spawn import RankProcess
from workers.rank_group.wire import Call, Gone, Reply, found_of, packed, receive, send
from workers.ranks.group import Group
from workers.ranks.own_work import OwnWork
from workers.rollout.engine import Request, Sampling
from workers.rollout.partition import partition_requests

PROMPTS = st.lists(st.integers(0, 5), min_size=1, max_size=6).map(tuple)


@given(st.lists(st.tuples(PROMPTS, st.integers(1, 9)), max_size=12), st.integers(1, 5))
def test_every_request_is_drawn_once_and_no_rank_has_much_more(groups: list[tuple], size: int) -> None:  # type: ignore[type-arg]
    requests = [Request(prompt, seed) for prompt, count in groups for seed in range(count)]
    shares = partition_requests(requests, size, max_new_tokens=100)
    assert len(shares) == size and sorted(number for share in shares for number in share) == list(range(len(requests)))
    # The last lot goes to the rank that has least, and no lot is larger than an even share.
    assert max(map(len, shares), default=0) <= 2 * -(-len(requests) // size)


@pytest.mark.parametrize(
    ("counts", "size", "expected"),
    [
        pytest.param([4, 4], 2, [4, 4], id="a prompt with all its rollouts to each"),
        pytest.param([8], 2, [4, 4], id="one prompt alone is divided"),
        pytest.param([1], 3, [1, 0, 0], id="fewer requests than ranks"),
        pytest.param([3, 3, 2], 2, [5, 3], id="whole groups as even as they go"),
    ],
)
def test_equal_prompts_stay_together_up_to_an_even_share(counts: list[int], size: int, expected: list[int]) -> None:
    requests = [Request((number,), seed) for number, count in enumerate(counts) for seed in range(count)]
    assert [len(share) for share in partition_requests(requests, size, 10)] == expected


def test_a_message_arrives_as_it_was_and_a_closed_end_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    asked = Generate([Request((1, 2), 2**63 - 1)], Sampling(stop=("end",), temperature=0.5))
    send(ours, asked)
    assert receive(theirs, Generate | Rest) == asked
    ours.close()
    with pytest.raises(Gone):
        receive(theirs, Generate | Rest)


KINDS = {AzrReplica: AzrApply, GrpoReplica: GrpoApply}


def handlers_of(kind: type[Replica]) -> Handlers:
    """The table of a replica that holds nothing."""
    bare = kind.__new__(kind)
    bare.engine = bare.memory = cast(Any, None)
    return bare.handlers


@pytest.mark.parametrize("kind", KINDS)
def test_every_call_of_the_protocol_has_one_handler(kind: type[Replica]) -> None:
    declared = {call for call in Call.__subclasses__() if call.__module__ == calls.__name__}
    assert len(declared) > 10
    assert set(handlers_of(kind)) == {*declared, KINDS[kind]}
    assert all(found_of(call) is not None for call in declared)


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_a_rank_has_no_handler_for_is_refused_by_its_name(kind: type[Replica]) -> None:
    class Dance(Call[None]):
        """Nobody does that."""

    ours, theirs = socket.socketpair()
    bare = kind.__new__(kind)
    bare.engine = bare.memory = cast(Any, None)
    send(ours, Rest())
    assert next_call(theirs, bare, 3) == Rest()
    send(ours, Dance())
    with pytest.raises(
        LonghaulError, match=r"rank 3 was asked for what it does not know \(Invalid value 'Dance'"
    ) as caught:
        next_call(theirs, bare, 3)
    assert caught.value.exit_code == ExitCode.VERSION
    with pytest.raises(KeyError):
        bare.do(Dance())
    ours.close()
    theirs.close()


@pytest.mark.parametrize(
    ("code", "exit_code", "how"),
    [(-9, ExitCode.RANK, "SIGKILL"), (70, ExitCode.RANK, "70"), (71, ExitCode.CUDA_OOM, "71"), (72, ExitCode.GPU, "72"),
     (None, ExitCode.RANK, "gone")],
)  # fmt: skip
def test_a_lost_rank_is_told_with_the_end_of_its_log(
    tmp_path: Path, code: int | None, exit_code: ExitCode, how: str
) -> None:
    (tmp_path / "rank-1.log").write_text("first\n\nlast words\n")
    process = RankProcess(cast(Any, None), -1, tmp_path / "rank-1.log")
    error = lost(Follower(1, cast(Any, None), process, "rank-1.log").loss(code))
    assert error.exit_code == exit_code and how in error.what and error.what.endswith("last words")
    assert error.next_command == "read rank-1.log in the attempt's directory"


def test_of_several_losses_the_first_cause_is_told() -> None:
    """A rank that a signal ended, a host that is gone, a rank that says what is the matter, one that lost its peers."""
    causes = [Loss("rank 1", -9, (), ""), Loss("host 1", None, (), ""), Loss("rank 2", 71, (), "")]
    assert sorted([Loss("rank 3", 70, (), ""), *reversed(causes)], key=rank_of_cause)[:3] == causes


def test_more_gpus_than_there_are_are_refused_before_anything_starts(tmp_path: Path) -> None:
    profile = Profile(name="x", run=Run(gpus=99, device="cuda"))
    attempt: Any = SimpleNamespace(profile=profile, dir=AttemptDir(tmp_path))
    with pytest.raises(LonghaulError, match=r"run\.gpus = 99, and \d+ usable GPUs were found") as caught:
        RankGroup(attempt).start(None)
    assert caught.value.exit_code == ExitCode.GPU and list(tmp_path.iterdir()) == []


class Scripted:
    """A rank_group whose one follower says what it is given, in order, and whose leader raises what it is given."""

    def __init__(self, folder: Path, replies: list[Reply], errors: list[str]) -> None:
        attempt: Any = SimpleNamespace(profile=Profile(name="x", run=Run(gpus=2)), dir=AttemptDir(folder))
        self.rank_group, self.errors = RankGroup(attempt), errors
        self.rank_group.replica = cast(Any, self)
        ours, theirs = socket.socketpair()
        self.rank_group._followers.append(Follower(1, ours, None, "rank-1.log"))

        def follow() -> None:
            for reply in replies:
                assert receive(theirs, TakeFigures) == TakeFigures()
                send(theirs, reply)

        self.thread = threading.Thread(target=follow)
        self.thread.start()

    def do(self, asked: TakeFigures) -> Figures:
        if text := self.errors.pop(0):
            raise RuntimeError(text)
        return Figures({"a": 1.0}, OwnWork())


def test_memory_that_ends_on_either_side_is_told_with_its_phase_and_the_next_call_is_understood(
    tmp_path: Path,
) -> None:
    well = Reply(packed(Figures({"a": 2.0}, OwnWork())))
    scripted = Scripted(
        tmp_path, [Reply(out_of_memory="CUDA out of memory", phase="rollout"), well, well], ["", "out of memory", ""]
    )
    with pytest.raises(RuntimeError, match="out of memory on rank 1: CUDA out of memory") as there:
        scripted.rank_group.call(TakeFigures())
    assert is_out_of_memory(there.value) and phase_of(there.value) == "rollout"
    with pytest.raises(RuntimeError, match=r"^out of memory$"):
        scripted.rank_group.call(TakeFigures())
    assert scripted.rank_group.take_figures() == {"a": 2.0}
    scripted.thread.join()


def test_an_attempt_after_memory_ended_begins_with_smaller_passes() -> None:
    asked = [
        Replica.micro_batch(SimpleNamespace(group=Group(0, size), _reductions=2), 12)  # type: ignore[arg-type]
        for size in (1, 2)
    ]
    assert asked == [12, 3]  # one GPU remembers its sizes in the checkpoint


@pytest.mark.parametrize("text", ["CUDA out of memory", "anything else"])
def test_work_that_fails_raises_its_own_error_and_keeps_no_tensor_alive(text: str) -> None:
    held = torch.zeros(3)
    watched = weakref.ref(held)

    def work(inside: torch.Tensor) -> None:
        with Group().agreed():
            raise RuntimeError(f"{text} {len(inside)}")

    with pytest.raises(RuntimeError, match=text):
        work(held)
    gc_was_on = gc.isenabled()
    gc.disable()  # a cycle through the traceback would need it, and the retry needs the room at once
    try:
        with suppress(RuntimeError):
            work(held)
        del held
        assert watched() is None
    finally:
        if gc_was_on:
            gc.enable()


def test_a_figure_of_all_ranks_is_the_highest_of_them() -> None:
    assert highest([{"a": 1.0, "b": 5.0}, {"a": 2.0}]) == {"a": 2.0, "b": 5.0}
