"""The check of commit messages: what it reports, what it leaves to people, and when there is nothing to check."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import REPOSITORY

SCRIPT = REPOSITORY / "scripts/check_commits.py"
_spec = importlib.util.spec_from_file_location("check_commits", SCRIPT)
assert _spec is not None and _spec.loader is not None
check_commits = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(check_commits)
WHY = "\n\nIt was slow: 3 s for each cycle.\n"


@pytest.mark.parametrize(
    "message",
    [
        "fix(supervise): count a worker killed by the OOM killer as out of memory" + WHY,
        "feat!: drop Python 3.11" + WHY,
        "refactor(azr, grpo): process rows in one place" + WHY,
        "perf: bring `need` to the front" + WHY,
        "fix: speed up seeding" + WHY,
        "fix: embed focus and pass it on" + WHY,
        "docs: say it as everybody says it",
        "test(state): leave out of the pass as a user what no user changes",
        "style: sort imports",
        "fix: " + "use " + "a" * 63 + WHY,
        "Merge branch 'suites'",
        'Revert "fix: whatever was wrong."',
        "fixup! fix: add a rule",
    ],
)
def test_an_honest_message_passes(message: str) -> None:
    assert check_commits.problems_of(message) == []


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("fix: " + "use " + "a" * 64 + WHY, "the subject has 73 characters; the limit is 72"),
        ("fix: add a rule.\n\nwhy", "ends with a full stop"),
        ("Add a rule" + WHY, "does not have the form `type(scope): words`"),
        ("oops: add a rule" + WHY, "does not have the form"),
        ("fix:add a rule" + WHY, "does not have the form"),
        ("fix: added a rule" + WHY, "begins with 'added'"),
        ("fix: adds a rule" + WHY, "begins with 'adds'"),
        ("fix: Adding a rule" + WHY, "begins with 'adding'"),
        ("fix: the rule holds" + WHY, "begins with 'the'"),
        ("docs: add a page; test: read it", "two changes are two commits"),
        ("fix: add a rule\nwhy", "the second line is not blank"),
        ("fix: add a rule", "there is no body that says why"),
        ("fix: add a rule\n\nCo-authored-by: A <a@example.com>\n", "there is no body that says why"),
    ],
)
def test_what_is_against_the_rule_is_told(message: str, problem: str) -> None:
    (told,) = check_commits.problems_of(message)
    assert problem in told


def check(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(script), *words], capture_output=True, text=True, timeout=60)


def test_the_history_since_the_base_keeps_the_rule() -> None:
    done = check(SCRIPT)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("subject", "code"), [("fix: add a rule", 0), ("fix: added a rule", 1)])
def test_the_hook_reads_a_message_as_git_will_take_it(subject: str, code: int, tmp_path: Path) -> None:
    path = tmp_path / "COMMIT_EDITMSG"
    path.write_text(
        f"{subject}\n# Please enter the message.\n\nIt was needed.\n{check_commits._SCISSORS}\n# diff\nx; y.\n"
    )
    assert check(SCRIPT, str(path)).returncode == code


class Repository:
    """A repository with the script, whose base is its first commit."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "scripts").mkdir(parents=True)
        self.script = root / "scripts/check_commits.py"
        shutil.copyfile(SCRIPT, self.script)
        self.git("init", "-q")
        self.base = self.commit("whatever it was, before there was a rule.")
        self.script.write_text(SCRIPT.read_text().replace(check_commits.BASE, self.base))

    def git(self, *words: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *who, *words], cwd=self.root, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    def commit(self, message: str) -> str:
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.git("rev-parse", "HEAD")


def test_commits_after_the_base_are_checked_and_the_wrong_ones_named(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "r")
    repository.commit("fix: add a rule" + WHY)
    assert check(repository.script).returncode == 0
    wrong = repository.commit("fix: added another" + WHY)
    repository.commit("docs: tell of both")
    done = check(repository.script)
    assert done.returncode == 1
    assert done.stderr.startswith(f"{wrong[:7]}: the subject begins with 'added'")
    assert done.stderr.count("begins with") == 1 and "next:  git commit --amend" in done.stderr


def test_a_shallow_clone_and_a_tree_without_history_are_not_checked(tmp_path: Path) -> None:
    repository = Repository(tmp_path / "r")
    repository.commit("wrong.")
    subprocess.run(
        ["git", "clone", "-q", "--depth", "1", f"file://{tmp_path}/r", str(tmp_path / "shallow")], check=True
    )
    shutil.copytree(repository.root / "scripts", tmp_path / "shallow/scripts")
    shutil.copytree(repository.root / "scripts", tmp_path / "bare/scripts")
    for place in ("shallow", "bare"):
        done = check(tmp_path / place / "scripts/check_commits.py")
        assert done.returncode == 0
        assert done.stdout.startswith("commits are not checked: no history since")
