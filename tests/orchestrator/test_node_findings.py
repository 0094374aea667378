"""What facts of nodes mean: each fault is named with its node, its remedy, and the exit code of a run that meets it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace as changed

import pytest
from msgspec.structs import replace

from orchestrator.doctor import Finding
from orchestrator.node_findings import Answers, code_server, judge
from profiles.errors import ExitCode
from profiles.load import load_profile
from profiles.schema import Profile
from workers.node_contract import EXCLUSIVE_FILES, Gpu, NodeFacts, Pong, RankFacts

NODES = ("n1", "n2", "n3")
GIB_MB = 1024


def profile_of(**knobs: object) -> Profile:
    """Three hosts with two GPUs each."""
    settings = {"run.hosts": 3, "run.gpus": 2, "launch.launcher": "slurm", "launch.interface": "ib0"}
    settings |= {"optimizer.kind": "adamw", **knobs}
    return load_profile("azr-0.5b", [f"{name}={value}" for name, value in settings.items()]).profile


PROFILE = profile_of()
VERSIONS = {"python": "3.12.1", "torch": "2.13.0+cu128", "nccl": "2.27.3"}


def node(host: int) -> NodeFacts:
    """A node with nothing wrong."""
    return NodeFacts(
        host=host,
        node=NODES[host],
        nodes="n[1-3]",
        stage="done",
        versions=dict(VERSIONS),
        gpus=[Gpu(str(i), f"GPU-{host}{i}", f"0000:0{i}:00.0", "H200", 140 * GIB_MB, 4, "570.1", 0) for i in (0, 1)],
        cards=["0", "1"],
        free_bytes=1 << 40,
        present=[0, 1, 2],
        pongs=[Pong(1, 0.02, 0.001), Pong(2, 0.03, -0.002)] if host == 0 else [],
        reads=0 if host == 0 else 500,
        won=[number for number in range(EXCLUSIVE_FILES) if number % 3 == host],
        locks={} if host == 0 else {"flock": "excluded", "fcntl": "excluded"},
        ranks=[RankFacts(rank, 0, 200.0, 300.0, 40.0) for rank in range(6)] if host == 0 else [],
    )


def found(answers: Answers, profile: Profile = PROFILE) -> list[Finding]:
    return [finding for finding in judge(profile, answers) if finding.state != "ok"]


def all_well() -> Answers:
    return Answers({host: node(host) for host in range(3)}, 3, NODES, place="/shared/runs", log="/shared/runs/x.log")


def with_node(host: int, **facts: object) -> Answers:
    answers = all_well()
    return changed(answers, reports={**answers.reports, host: replace(answers.reports[host], **facts)})


def second_gpu(host: int, **facts: object) -> Answers:
    first, second = node(host).gpus
    return with_node(host, gpus=[first, replace(second, **facts)])


def rank(number: int, **facts: object) -> Answers:
    ranks = list(node(0).ranks)
    ranks[number] = replace(ranks[number], **facts)
    return with_node(0, ranks=ranks)


def silent(host: int, **facts: object) -> Answers:
    answers = all_well()
    return changed(answers, reports={one: facts for one, facts in answers.reports.items() if one != host}, **facts)


def test_healthy_nodes_have_no_finding_but_what_is_well() -> None:
    findings = list(judge(PROFILE, all_well()))
    assert [one for one in findings if one.state != "ok"] == []
    files = {"directory", "renames", "O_EXCL", "node locks", "clocks"}
    assert {"nodes", "versions", "gpus", "all-reduce"} | files <= {one.check for one in findings}


FAULTS: dict[str, tuple[Callable[[], Answers], str, str, ExitCode, tuple[str, ...]]] = {
    "a missing shard": (
        lambda: with_node(1, model_fault="/m/model-2.safetensors is missing"),
        "model", "fail", ExitCode.INPUT, ("n2", "model-2.safetensors is missing"),
    ),
    "a truncated shard": (
        lambda: with_node(2, model_fault="/m/a.safetensors is torn: 5 bytes, and its header says 9"),
        "model", "fail", ExitCode.INPUT, ("n3", "5 bytes"),
    ),
    "a full disk": (
        lambda: with_node(1, write_error="No space left on device", stage="started"),
        "directory", "fail", ExitCode.DISK, ("n2", "No space left"),
    ),
    "little disk": (
        lambda: with_node(1, free_bytes=100 << 20), "directory", "warn", ExitCode.OK, ("n2", "100 MiB"),
    ),
    "another torch": (
        lambda: with_node(2, versions={**VERSIONS, "torch": "2.13.0+cu126"}),
        "versions", "fail", ExitCode.INPUT, ("n3", "2.13.0+cu126", "2.13.0+cu128"),
    ),
    "no NCCL": (
        lambda: with_node(2, versions={key: one for key, one in VERSIONS.items() if key != "nccl"}),
        "versions", "fail", ExitCode.INPUT, ("nccl is not installed on n3",),
    ),
    "another driver": (
        lambda: with_node(1, gpus=[replace(gpu, driver="535.2") for gpu in node(1).gpus]),
        "versions", "fail", ExitCode.INPUT, ("driver is 535.2 on n2",),
    ),
    "a rename that is not atomic": (
        lambda: with_node(1, torn=3), "renames", "fail", ExitCode.DISK, ("n2", "500 times", "3 times"),
    ),
    "a rename that is seen late": (
        lambda: with_node(0, pongs=[Pong(1, 0.02, 0.0), Pong(2, 9.0, 0.0)]),
        "renames", "fail", ExitCode.DISK, ("n1", "n3", "9.0 s"),
    ),
    "a rename that is not seen": (
        lambda: with_node(0, pongs=[Pong(1, 0.02, 0.0)]), "renames", "fail", ExitCode.DISK, ("n3",),
    ),
    "another directory of the same name": (
        lambda: with_node(1, present=[1]), "renames", "fail", ExitCode.DISK, ("n2 never saw", "n1, n3"),
    ),
    "two winners": (
        lambda: with_node(1, won=list(range(EXCLUSIVE_FILES))),
        "O_EXCL", "fail", ExitCode.LOCKED, ("67 were created by two",),
    ),
    "no winner": (
        lambda: with_node(1, won=[]), "O_EXCL", "fail", ExitCode.LOCKED, ("33 by none",),
    ),
    "a lock that excludes nobody": (
        lambda: with_node(2, locks={"flock": "granted", "fcntl": "excluded"}),
        "node locks", "fail", ExitCode.LOCKED, ("n3", "flock", "n1 held"),
    ),
    "no locks": (
        lambda: with_node(2, locks={"flock": "Function not implemented", "fcntl": "excluded"}),
        "node locks", "warn", ExitCode.OK, ("n3", "Function not implemented"),
    ),
    "clock skew": (
        lambda: with_node(0, pongs=[Pong(1, 0.02, 0.0), Pong(2, 0.02, -12.0)]),
        "clocks", "warn", ExitCode.OK, ("n3 is 12.00 s behind n1",),
    ),
    "one GPU for two ranks": (
        lambda: with_node(1, cards=["0", "0"]), "gpus", "fail", ExitCode.GPU, ("ranks 0 and 1 of n2", "same GPU"),
    ),
    "equal PCI ids": (
        lambda: second_gpu(1, pci="0000:00:00.0"), "gpus", "fail", ExitCode.GPU, ("n2", "one PCI id", "0000:00:00.0"),
    ),
    "one GPU on two nodes": (
        lambda: second_gpu(2, uuid="GPU-00"), "gpus", "fail", ExitCode.GPU, ("n1 and n3", "GPU-00"),
    ),
    "too few GPUs": (
        lambda: with_node(2, gpus=node(2).gpus[:1], cards=["0"]),
        "gpus", "fail", ExitCode.GPU, ("n3 has 1 of 2",),
    ),
    "memory errors": (
        lambda: second_gpu(1, ecc=7), "gpus", "fail", ExitCode.GPU, ("GPU 1 of n2", "7 uncorrected"),
    ),
    "another program": (
        lambda: second_gpu(1, used_mb=30 * GIB_MB), "gpus", "warn", ExitCode.OK, ("30.0 GiB", "GPU 1 of n2"),
    ),
    "an Xid": (
        lambda: with_node(1, xids=["NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."]),
        "gpus", "warn", ExitCode.OK, ("n2", "Xid", "fallen off"),
    ),
    "small GPUs": (
        lambda: with_node(1, gpus=[replace(gpu, total_mb=4 * GIB_MB) for gpu in node(1).gpus]),
        "gpu memory", "fail", ExitCode.CUDA_OOM, ("n2: ", "GiB"),
    ),
    "a wrong sum": (
        lambda: rank(3, wrong=12), "all-reduce", "fail", ExitCode.RANK, ("rank 3 on n2", "12 places"),
    ),
    "a slow rank": (
        lambda: rank(4, between=15.0), "all-reduce", "warn", ExitCode.OK, ("rank 4 on n3", "15 GB/s", "median 40"),
    ),
    "a slow link inside a host": (
        lambda: rank(1, inside=20.0), "all-reduce", "warn", ExitCode.OK, ("rank 1 on n1", "20 GB/s", "median 300"),
    ),
    "ranks that never met": (
        lambda: changed(with_node(0, ranks=[]), ranks_error="of 3 hosts, these did not come within 120 s: 2"),
        "all-reduce", "fail", ExitCode.RANK, ("did not come",),
    ),
    "a node without the directory": (
        lambda: with_node(1, directory_error="is not there", stage="started"),
        "directory", "fail", ExitCode.DISK, ("/shared/runs on n2", "is not there"),
    ),
    "a node that may not write": (
        lambda: with_node(1, write_error="Permission denied", stage="started"),
        "directory", "fail", ExitCode.PERMISSION, ("n2 cannot write", "Permission denied"),
    ),
    "a node that does not answer": (
        lambda: silent(2, said={"n3": "task 2: Exited with exit code 2"}),
        "nodes", "fail", ExitCode.NODE, ("n3 did not answer", "exit code 2"),
    ),
    "a job that hangs": (
        lambda: changed(with_node(1, stage="node"), end="the check did not end within 420 s"),
        "nodes", "fail", ExitCode.NODE, ("420 s", "n2 after `node`"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_one_finding_with_node_remedy_and_exit_code(name: str) -> None:
    make, check, state, code, said = FAULTS[name]
    findings = found(make())
    (finding,) = [one for one in findings if one.check == check]
    assert (finding.state, finding.exit_code) == (state, code)
    assert [part for part in said if part not in finding.detail] == []
    assert finding.fix
    assert {one.check for one in findings} == {check}, "a fault has one name"


def test_no_node_at_all_is_named_by_the_scheduler_s_list() -> None:
    findings = found(Answers({}, 3, NODES, end="the job 7 did not start within 900 s: pending (Priority)"))
    assert [one.detail.split(" ")[0] for one in findings] == list(NODES)
    assert all("pending (Priority)" in one.detail and one.exit_code == ExitCode.NODE for one in findings)


def test_two_ranks_are_too_few_to_call_one_slow() -> None:
    two = profile_of(**{"run.hosts": 2, "run.gpus": 1})
    reports = {host: replace(node(host), gpus=node(host).gpus[:1], cards=["0"], present=[0, 1]) for host in (0, 1)}
    won = {0: list(range(50)), 1: list(range(50, 100))}
    reports = {host: replace(one, won=won[host]) for host, one in reports.items()}
    ranks = [RankFacts(0, 0, 10.0, 0.0, 40.0), RankFacts(1, 0, 10.0, 0.0, 1.0)]
    reports[0] = replace(reports[0], ranks=ranks, pongs=[Pong(1, 0.02, 0.0)])
    assert found(Answers(reports, 2, NODES[:2]), two) == []


def test_on_a_cpu_no_gpu_is_missed() -> None:
    reports = {host: replace(node(host), gpus=[], gpu_error="no nvidia-smi") for host in range(3)}
    answers = changed(all_well(), reports=reports)
    assert found(answers, profile_of(**{"run.device": "cpu", "model.dtype": "float32"})) == []
    assert {one.check for one in found(answers, profile_of(**{"run.device": "cuda"}))} == {"gpus"}


def test_a_code_server_that_a_node_does_not_reach_is_named() -> None:
    with_server = profile_of(**{"verl.code_server": "http://10.0.0.1:8123/s"})
    (finding,) = found(with_node(2, server_fault="http://10.0.0.1:8123/s gives no verdict: timed out"), with_server)
    assert (finding.check, finding.exit_code) == ("code server", ExitCode.CODE_SERVER)
    assert "n3" in finding.detail and "curl http://10.0.0.1:8123/s/health" in finding.fix


def test_nothing_is_said_of_a_code_server_that_the_worker_starts_for_itself() -> None:
    assert not list(code_server(profile_of(**{"verl.code_server": "start"}), [node(0)]))


def test_the_planner_refuses_a_job_of_another_engine_on_the_cards_that_were_found() -> None:
    verl = load_profile("grpo-32b-math", ["launch.launcher=local"]).profile
    small = [Gpu(str(i), f"GPU-{i}", f"0000:{i:02}:00.0", "small", 40 * GIB_MB, 4, "570.1", 0) for i in range(4)]
    facts = replace(node(0), gpus=small, cards=["0", "1", "2", "3"], present=[], ranks=[])
    refused = {one.detail.partition(":")[0]: one.exit_code for one in found(Answers({0: facts}, 1), verl)}
    assert refused == {"cache": ExitCode.CUDA_OOM}


def test_without_a_scheduler_no_remedy_asks_one() -> None:
    gpus = [replace(gpu, ecc=3) for gpu in node(0).gpus]
    alone = replace(node(0), nodes="", gpus=gpus, model_fault="/m is no directory here", write_error="Disk full")
    alone = replace(alone, ranks=[RankFacts(0, 7, 1.0), RankFacts(1, 0, 1.0)], stage="started")
    findings = found(Answers({0: alone}, 1), profile_of(**{"run.hosts": 1, "launch.launcher": "local"}))
    assert len(findings) == 5
    assert not [one.fix for one in findings if "srun" in one.fix or "launch.exclude" in one.fix]
