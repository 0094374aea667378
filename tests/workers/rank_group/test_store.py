"""torch's store as another rank sees it: what it says is what the leader's own would say."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import torch.distributed as dist

from tests import REPOSITORY
from workers.rank_group.store import AnyAsked, LeadersStore, answer
from workers.rank_group.wire import Gone, receive, send


@pytest.fixture
def stores() -> Iterator[tuple[LeadersStore, dist.HashStore]]:
    """One seen through a connection, and the leader's."""
    ours, theirs = socket.socketpair()
    leaders = dist.HashStore()

    def serve() -> None:
        try:
            while True:
                send(theirs, answer(leaders, receive(theirs, AnyAsked)))  # type: ignore[arg-type]
        except Gone:
            theirs.close()

    thread = threading.Thread(target=serve)
    thread.start()
    yield LeadersStore(ours, timedelta(seconds=5)), leaders
    ours.close()
    thread.join()


def test_what_one_sets_the_other_gets_and_sums_are_of_both(stores: tuple[LeadersStore, dist.HashStore]) -> None:
    rank, leader = stores
    rank.set("a", b"\x00\xff")
    leader.set("b", "text")
    assert leader.get("a") == b"\x00\xff" and rank.get("b") == b"text"
    assert leader.add("n", 2) == 2 and rank.add("n", 3) == 5
    assert rank.check(["a", "b"]) and not rank.check(["a", "c"])
    assert rank.compare_set("a", b"\x00\xff", b"new") == b"new" == leader.get("a")
    assert rank.num_keys() == leader.num_keys()
    assert rank.delete_key("a") and not leader.check(["a"])


def test_what_is_waited_for_comes_when_it_is_set_or_is_missed_when_the_time_is_over(
    stores: tuple[LeadersStore, dist.HashStore],
) -> None:
    rank, leader = stores
    timer = threading.Timer(0.1, leader.set, ("late", "here"))
    timer.start()
    assert rank.get("late") == b"here"
    with pytest.raises(dist.DistStoreError, match="never"):
        rank.wait(["never"], timedelta(seconds=0.05))


JOINS = """
import sys, torch, torch.distributed as dist
from pathlib import Path
from profiles.errors import LonghaulError
from workers.ranks.group import Way, by_file, join
from torch.distributed import distributed_c10d

def refused(*args, **kwargs):
    raise SystemExit("pickled")

distributed_c10d._object_to_tensor = distributed_c10d._tensor_to_object = refused
path, rank, key = sys.argv[1:]
try:
    group = join(Way(by_file(Path(path), 2).store, "lo", key.encode()), int(rank), 2, torch.device("cpu"))
    from torch.distributed.device_mesh import init_device_mesh
    mesh = init_device_mesh("cpu", (2,))
    assert mesh.get_group() is dist.group.WORLD  # no connections but those that were proved
    print(group.total([1.0]))
except LonghaulError as error:
    print(error.what)
"""


@pytest.mark.parametrize(
    ("keys", "said"),
    [(("same", "same"), ["[2.0]", "[2.0]"]),
     (("ours", "theirs"), [f"what answers for rank {rank} does not know the key of this attempt" for rank in (1, 0)])],
)  # fmt: skip
def test_ranks_prove_to_each_other_that_they_know_the_key_and_unpickle_nothing(
    tmp_path: Path, keys: tuple[str, str], said: list[str]
) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", JOINS, str(tmp_path / "store"), str(rank), key],
            cwd=REPOSITORY, stdout=subprocess.PIPE, text=True,
        )
        for rank, key in enumerate(keys)
    ]  # fmt: skip
    assert [one.communicate(timeout=100)[0].strip() for one in started] == said
