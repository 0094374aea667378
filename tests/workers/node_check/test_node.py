"""What a node says of itself, and the lines in which it arrives."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.sandbox.server.served import served
from workers.node_check import node
from workers.node_check.reduction import partner, rings
from workers.node_contract import MARKER, Gpu, NodeFacts, lines_of, reports_in

SMI = """\
0, GPU-a, 00000000:1B:00.0, NVIDIA H200, 143771, 4, 570.86.15, 0
1, GPU-b, 00000000:43:00.0, X, 24576, 9, 570, [N/A]
"""


def test_a_gpu_of_the_driver_s_list() -> None:
    first, second = node.parsed(SMI)
    assert first == Gpu("0", "GPU-a", "00000000:1B:00.0", "NVIDIA H200", 143771, 4, "570.86.15", 0)
    assert second.ecc == -1, "not counted is not zero"


def test_the_directory_is_the_master_s_own(tmp_path: Path) -> None:
    assert node.directory_error(tmp_path / "nowhere", "t") == "is not there"
    assert "not in it" in node.directory_error(tmp_path, "t")
    (tmp_path / MARKER).write_text("another")
    assert "other contents" in node.directory_error(tmp_path, "t")
    (tmp_path / MARKER).write_text("t")
    assert node.directory_error(tmp_path, "t") == ""


def test_a_directory_that_takes_no_file_says_why() -> None:
    assert node.write_error(Path("/proc/self/written"))


def test_a_code_server_gives_a_right_and_a_wrong_test_their_verdicts() -> None:
    pytest.importorskip("starlette", reason='the extra is not installed: pip install "longhaul[server]"')
    with served("--jobs", "1") as server:
        assert node.fault_of_server(server.url) == ""
        assert "does not judge programs" in node.fault_of_server(f"{server.url}x"), "a wrong secret"


def test_versions_are_known_without_an_import() -> None:
    assert {"python", "torch", "transformers"} <= set(node.versions())


@given(st.lists(st.tuples(st.integers(0, 4), st.text(max_size=2000)), min_size=1, max_size=6), st.randoms())
def test_reports_survive_any_mixture_of_their_lines(told: list[tuple[int, str]], order: object) -> None:
    reports = [NodeFacts(host, "n", gpu_error=text) for host, text in told]
    lines = [line for number, one in enumerate(reports, 1) for line in lines_of(one, number)]
    assert max(map(len, lines)) < 1000
    order.shuffle(lines)  # type: ignore[attr-defined]
    assert reports_in(["noise", *lines, "NODE 1 2 x"]) == {one.host: one for one in reports}


def test_a_report_with_a_line_missing_leaves_the_one_before() -> None:
    first, second = NodeFacts(0, "n"), NodeFacts(0, "n", gpu_error="x" * 5000)
    lines = [*lines_of(first, 1), *list(lines_of(second, 2))[:-1]]
    assert reports_in(lines) == {0: first}


@pytest.mark.parametrize("size", range(2, 10))
def test_each_neighbour_is_met_once_and_nobody_has_two_partners_at_a_time(size: int) -> None:
    ring = [10 * number for number in range(size)]
    met = set()
    for turn in range(3):
        partners = {rank: partner(ring, rank, turn) for rank in ring}
        for rank, other in partners.items():
            if other is not None:
                assert partners[other] == rank
                met.add(frozenset((rank, other)))
    assert met == {frozenset(pair) for pair in itertools.pairwise([*ring, ring[0]])}


def test_rings_are_of_one_host_or_of_one_place_on_all_hosts() -> None:
    assert rings(2, 3) == ([[0, 1, 2], [3, 4, 5]], [[0, 3], [1, 4], [2, 5]])
    assert partner([7], 7, 0) is None
