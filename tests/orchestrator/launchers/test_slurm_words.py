"""Reading what Slurm's programs print, writing what they read, and what is left out where nodes have failed."""

from __future__ import annotations

import math
import shutil
import socket
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.launchers import slurm, slurm_script
from orchestrator.launchers.batch import Unanswered
from orchestrator.launchers.job_end import Seen
from orchestrator.launchers.slurm import Node, expanded, seen_in_accounts, seen_in_detail, seen_in_queue
from orchestrator.launchers.slurm_script import MARGIN_S, margin_s, options, script
from profiles.errors import ExitCode, LonghaulError
from profiles.launch import Launch
from profiles.schema import Profile, Run
from state.layout import AttemptDir
from tests.orchestrator.launchers import jobs_in_bash as bash
from workers.contract import HOSTS_VARIABLE

DETAIL = (
    "JobId=7 JobName=abc UserId=root(0) JobState=FAILED Reason=NonZeroExitCode Dependency=(null) Requeue=1 Restarts=0 "
    "ExitCode=143:0 RunTime=00:00:03 NodeList=n[1-2] BatchHost=n1 Command=/tmp/a b/job.sh"
)


def test_a_row_of_the_queue() -> None:
    assert seen_in_queue("7|RUNNING|None|n[1-2]") == Seen("RUNNING", reason="None", nodes=("n1", "n2"))
    assert seen_in_queue("7|PENDING|Resources|") == Seen("PENDING", reason="Resources")


def test_the_details_of_a_job() -> None:
    assert seen_in_detail(DETAIL) == Seen("FAILED", 143, reason="NonZeroExitCode", nodes=("n1", "n2"))
    assert seen_in_detail("JobId=8 JobState=FAILED Reason=JobLaunchFailure ExitCode=0:9 NodeList=n1").signal == 9


@pytest.mark.parametrize("rubbish", ["", "slurm_load_jobs: ???", "JobId=7", "<html>"])
def test_an_answer_that_is_none_is_no_end(rubbish: str) -> None:
    with pytest.raises(Unanswered):
        seen_in_detail(rubbish)


def test_a_row_of_the_accounts() -> None:
    assert seen_in_accounts("CANCELLED by 0|0:15|n1") == Seen("CANCELLED", 0, 15, nodes=("n1",))
    assert seen_in_accounts("|") == Seen("")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", ()),
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("n[01-03,07],gpu-a", ("n01", "n02", "n03", "n07", "gpu-a")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
    ],
)
def test_a_list_of_nodes(text: str, names: tuple[str, ...]) -> None:
    assert expanded(text) == names


@given(st.integers(0, 90), st.integers(1, 9), st.integers(1, 4))
def test_a_span_of_nodes_has_each_once_with_its_zeros(first: int, count: int, width: int) -> None:
    low, high = f"{first:0{width}d}", f"{first + count - 1:0{width}d}"
    names = expanded(f"n[{low}-{high}]")
    assert names[0] == f"n{low}" and names[-1].endswith(str(first + count - 1)) and len(set(names)) == count


def test_a_program_that_hangs_is_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "squeue"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o700)
    monkeypatch.setattr(slurm, "PATIENCE_S", 0.2)
    with pytest.raises(Unanswered, match="no answer within"):
        slurm.answer_of([str(program)])


def test_a_program_that_fails_is_no_answer_and_its_last_words_are_kept(tmp_path: Path) -> None:
    program = tmp_path / "squeue"
    program.write_text("#!/bin/sh\necho first >&2; echo 'Unable to contact slurm controller' >&2; exit 1\n")
    program.chmod(0o700)
    with pytest.raises(Unanswered, match=r"^Unable to contact slurm controller$"):
        slurm.answer_of([str(program)])


def test_an_answer_may_hold_bytes_that_are_not_utf_8(tmp_path: Path) -> None:
    program = tmp_path / "scontrol"
    program.write_bytes(b"#!/bin/sh\necho 'NodeName=n1 State=IDLE Reason=L\xfcfter'\n")
    program.chmod(0o700)
    assert slurm.fields_of(slurm.answer_of([str(program)]))["State"] == "IDLE"


@pytest.mark.parametrize(
    ("limit", "minutes"),
    [
        ("1:00:00", 60.0),
        ("30:00", 30.0),
        ("2-00:00:00", 2880.0),
        ("1-12:30:00", 2190.0),
        ("infinite", math.inf),
        ("n/a", math.inf),
    ],
)
def test_the_limit_of_a_partition(limit: str, minutes: float) -> None:
    assert Node("n1", "main", "idle", limit).limit_minutes == minutes


@pytest.mark.parametrize(
    ("state", "is_usable"),
    [("idle", True), ("alloc", True), ("mix", True), ("idle~", True), ("mix#", True)]
    + [(state, False) for state in ("down", "drain", "drng", "idle*", "down*", "maint", "fail", "unk")],
)
def test_a_node_that_is_down_drained_or_silent_takes_no_job(state: str, is_usable: bool) -> None:
    assert Node("n1", "main", state, "infinite").is_usable is is_usable


# --- the script --------------------------------------------------------------------------------------------------


def rendered(folder: Path, hosts: int = 1, **launch: object) -> str:
    profile = Profile(name="x", launch=msgspec.convert(launch, Launch))
    environment = {"PATH": "/usr/bin:/bin", "LONGHAUL_TOKEN": "t", "ODD": "a 'b' $c"}
    return script(profile, "t", ("/py thon", "-m", "workers"), environment, AttemptDir(folder), "/our code", hosts)


@pytest.mark.parametrize("hosts", [1, 3])
def test_the_script_is_one_that_bash_and_shellcheck_take(hosts: int, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(rendered(tmp_path / "a folder; with $signs", hosts, setup=["module load cuda || true"]))
    subprocess.run(["bash", "-n", path], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run(["shellcheck", "--severity=warning", path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("wrong", ["set -e", "0.0.0.0", "/home/", "exit 0\n[ "])
def test_the_script_has_none_of_the_traps(wrong: str, tmp_path: Path) -> None:
    """`set -e` before the worker's exit code is read ends the script, so that nothing after it ever happens."""
    assert wrong not in "\n".join(line for line in rendered(tmp_path).splitlines() if not line.startswith("#"))


def test_a_check_starts_the_same_command_on_each_host_and_no_output_needs_the_directory(tmp_path: Path) -> None:
    profile = Profile(name="x")
    text = script(profile, "t", ("python", "check"), {}, AttemptDir(tmp_path), "/", 3, is_on_each_host=True)
    assert "exec python check" in text
    assert "workers.follower" not in text and f">> {tmp_path}" not in text
    assert f"{HOSTS_VARIABLE}=3" in text and 'LONGHAUL_HOST="${SLURM_PROCID:-0}"' in text


def test_the_script_keeps_what_the_shell_would_take_apart(tmp_path: Path) -> None:
    text = rendered(tmp_path)
    assert """ODD='a '"'"'b'"'"' $c'""" in text
    assert "'/py thon' -m workers" in text
    assert "cd '/our code' || exit 66" in text


def test_setup_changes_what_the_worker_gets_and_not_whose_attempt_it_has(tmp_path: Path) -> None:
    profile = Profile(name="x", launch=Launch(setup=(bash.CHANGED,)))
    text = script(profile, "t", bash.SHOWN, bash.environment(tmp_path), AttemptDir(tmp_path), "/")
    assert bash.ran(text, tmp_path).stdout == "/opt/cuda/bin /opt/cuda t\n"


def test_setup_may_read_variables_that_are_not_set(tmp_path: Path) -> None:
    profile = Profile(name="x", launch=Launch(setup=('echo "prompt: $PS1"',)))
    text = script(profile, "t", ("echo", "done"), bash.environment(tmp_path), AttemptDir(tmp_path), "/")
    assert bash.ran(text, tmp_path).stdout == "prompt: \ndone\n"


def test_setup_finds_the_functions_of_the_site_s_profile(tmp_path: Path) -> None:
    before = bash.with_site_profile(tmp_path, 'PATH=/site; unset_on_purpose="$PS1"; module() { echo "module $*"; }\n')
    profile = Profile(name="x", launch=Launch(setup=("module load cuda/12.8",)))
    text = script(profile, "t", ("echo", "done"), bash.environment(tmp_path), AttemptDir(tmp_path), "/")
    assert bash.ran(text, tmp_path, before=before).stdout == "module load cuda/12.8\ndone\n"


@pytest.fixture
def at_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], int]:
    """Runs, as its Nth restart, a job whose limit comes while no master is there. Returns its exit code."""
    monkeypatch.setattr(slurm_script, "MASTER_S", 0)
    variables = bash.environment(tmp_path)
    bash.program(tmp_path, "sleep", "#!/bin/sh\n")
    bash.program(tmp_path, "scontrol", f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n')
    profile = Profile(name="x", launch=Launch(requeues=2))
    saving = f"kill -USR1 $PPID; until [ -e {tmp_path}/stop ]; do /bin/sleep 0.1; done; /bin/sleep 0.5"
    worker = ("/bin/bash", "-c", saving)
    text = script(profile, "t", worker, variables, AttemptDir(tmp_path), "/")
    started = {"SLURM_JOB_ID": "7"}
    return lambda restart: bash.ran(text, tmp_path, {**started, "SLURM_RESTART_COUNT": str(restart)}).returncode


def test_a_job_puts_itself_back_so_often_and_then_ends_with_84(
    at_its_limit: Callable[[int], int], tmp_path: Path
) -> None:
    assert [at_its_limit(restart) for restart in range(3)] == [0, 0, ExitCode.REQUEUES]
    assert (tmp_path / "asked").read_text() == "requeue 7\n" * 2
    assert (tmp_path / "job.exit").read_text() == "84\n"


def test_slurm_s_own_restarts_do_not_count_as_requeues(at_its_limit: Callable[[int], int], tmp_path: Path) -> None:
    assert [at_its_limit(restart) for restart in (5, 9)] == [0, 0]
    assert (tmp_path / "asked").read_text() == "requeue 7\n" * 2


def test_a_restart_does_not_find_the_wish_of_a_start_that_was_killed_as_it_saved(tmp_path: Path) -> None:
    directory = AttemptDir(tmp_path)
    directory.stop.touch()
    text = script(Profile(name="x"), "t", ("ls", str(tmp_path)), bash.environment(tmp_path), directory, "/")
    assert directory.stop.name not in bash.ran(text, tmp_path, {"SLURM_RESTART_COUNT": "1"}).stdout.split()


def test_two_copies_of_a_start_count_as_one_requeue(at_its_limit: Callable[[int], int]) -> None:
    assert [at_its_limit(restart) for restart in (0, 0, 1, 2)] == [0, 0, 0, ExitCode.REQUEUES]


def test_the_options_name_the_job_so_that_it_is_found_again_and_runs_once(tmp_path: Path) -> None:
    profile = Profile(name="x", run=Run(gpus=4, device="cuda"), launch=Launch(time_limit_minutes=90))
    given_options = options(profile, "t", AttemptDir(tmp_path), ["n3"], 120, 2)
    for wanted in ("--job-name=t", "--dependency=singleton", "--nodes=2", "--gpus-per-node=4", "--time=90",
                   "--signal=B:USR1@120", "--exclude=n3", "--requeue", "--open-mode=append"):  # fmt: skip
        assert wanted in given_options


def test_the_gpu_that_draws_rollouts_is_asked_for_too(tmp_path: Path) -> None:
    run = Run(device="cuda", worker="grpo", overlap=1, sampler_device="cuda:1")
    assert "--gpus-per-node=2" in options(Profile(name="x", run=run), "t", AttemptDir(tmp_path), [], 120)


def test_the_master_s_own_environment_does_not_enter_the_job_by_itself(tmp_path: Path) -> None:
    assert "--export=NIL" in options(Profile(name="x"), "t", AttemptDir(tmp_path), [], 120)


def test_a_short_limit_has_a_short_margin() -> None:
    assert (margin_s(1), margin_s(60), margin_s(0)) == (12, MARGIN_S, MARGIN_S)


@pytest.mark.parametrize(
    ("minutes", "ending_s", "margin"),
    [
        pytest.param(240, 45, MARGIN_S, id="it has the time within the usual margin"),
        pytest.param(240, 190.5, 251, id="a step that takes longer than the usual margin, and a minute more"),
        pytest.param(0, 190.5, 251, id="the partition's own limit"),
        pytest.param(1, 0.5, 12, id="quick steps under a short limit"),
        pytest.param(5, 300, 150, id="never more than half of the limit"),
    ],
)
def test_a_job_is_told_to_end_as_early_as_its_steps_need(minutes: int, ending_s: float, margin: int) -> None:
    assert margin_s(minutes, ending_s) == margin


# --- the nodes that are left out ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failed", "slow", "hosts", "left_out"),
    [
        pytest.param((), ("n1", "n2", "n3"), 1, ["n8", "n1", "n2"], id="slow ones, the newest first, within a quarter"),
        pytest.param(("n4",), ("n1", "n2"), 1, ["n8", "n4", "n1"], id="failed ones first"),
        pytest.param(("n4", "n5"), ("n1",), 1, ["n8", "n4", "n5"], id="no room: the run goes on with the slow one"),
        pytest.param((), ("n1", "n2"), 6, ["n8", "n1"], id="six hosts and the excluded one leave room for one"),
        pytest.param((), ("n1",), 7, ["n8"], id="a job that needs all the others"),
        pytest.param((), ("gone", "n8"), 1, ["n8"], id="no longer there, or excluded anyway"),
    ],
)
def test_slow_nodes_are_left_out_as_far_as_there_is_room(
    failed: tuple[str, ...],
    slow: tuple[str, ...],
    hosts: int,
    left_out: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher = of_eight_nodes(tmp_path, monkeypatch)
    assert launcher._excluded(failed, slow, hosts) == left_out


def test_more_failed_nodes_than_the_quarter_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LonghaulError, match="3 of the 8 nodes have failed within a week") as caught:
        of_eight_nodes(tmp_path, monkeypatch)._excluded(("n1", "n2", "n3"), ("n4",), 1)
    assert caught.value.exit_code == ExitCode.NODE


def of_eight_nodes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> slurm.Slurm:
    """A launcher on a partition of eight, of which the profile excludes one."""
    program = folder / "sinfo"
    program.write_text("#!/bin/sh\nfor n in 1 2 3 4 5 6 7 8; do echo n$n 'main*' idle 1:00:00; done\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return slurm.Slurm(Profile(name="x", launch=Launch(exclude=("n8",))))


# --- nodes whose daemon does not answer ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listening", "asked", "lost"),
    [
        pytest.param({"n1", "n2", "n3"}, ("n1", "n2"), (), id="all answer"),
        pytest.param({"n1", "n3"}, ("n1", "n2"), ("n2",), id="one of a job's nodes does not"),
        pytest.param({"n3"}, ("n1", "n2"), ("n1", "n2"), id="none of them does, but another node"),
        pytest.param(set(), ("n1", "n2"), (), id="no node at all does: this host reaches none"),
    ],
)
def test_a_node_is_lost_if_its_daemon_does_not_answer_and_some_other_does(
    listening: set[str], asked: tuple[str, ...], lost: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ExitStack() as stack:
        sockets = {name: stack.enter_context(socket.socket()) for name in ("n1", "n2", "n3")}
        for name, one in sockets.items():
            one.bind(("127.0.0.1", 0))
            if name in listening:
                one.listen()
        ports = {name: one.getsockname()[1] for name, one in sockets.items()}
        program = tmp_path / "scontrol"
        lines = [f"NodeName={name} NodeAddr=127.0.0.1 Port={port} State=ALLOCATED" for name, port in ports.items()]
        text = "\n".join(lines)
        program.write_text(
            f"#!/bin/sh\ntext='{text}'\n"
            'if [ -z "$4" ]; then echo "$text"; else echo "$text" | grep -E "NodeName=($(echo $4 | tr , \'|\')) "; fi\n'
        )
        program.chmod(0o700)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        launcher = slurm.Slurm(Profile(name="x"))
        assert launcher.silent(asked) == lost
        assert launcher.failed(asked) == lost and launcher.failed(()) == ()
