"""Checks commit messages against CONTRIBUTING.md: those since BASE, or the one in a file (the hook commit-msg).

    python scripts/check_commits.py [MESSAGE_FILE]

Checks the subject's form, length and mood, the blank line after it, and that there is a body; reviewers judge what the
body says. Without history (an archive, a shallow clone), checks nothing.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BASE = "a9c55c72c766"
"""Commits after this one are checked; earlier ones predate the check."""
LONGEST = 72
TYPES = ("bench", "build", "ci", "docs", "feat", "fix", "perf", "profiles", "refactor", "revert", "style", "test")
WITHOUT_BODY = ("docs", "style", "test")
"""Types that need no body."""
BY_GIT = ("Merge ", 'Revert "', "fixup! ", "squash! ", "amend! ")
"""Subjects that git itself writes."""
NO_VERBS = tuple("a an the this these that it its we i our no some more new".split())  # noqa: SIM905
VERBS = frozenset({"alias", "bias", "canvas", "embed", "unembed"})
"""Imperatives that match _ANOTHER_FORM."""
_SUBJECT = re.compile(rf"({'|'.join(TYPES)})(\([\w.,/ -]+\))?!?: (\S.*)")
_ANOTHER_FORM = re.compile(r"\w*[aeiouy]\w*(?:ing|[^e]ed)|\w*[^siu]s")
"""`adding`, `added`, `adds`; not `bring`, `need`, `pass`, `focus`."""
_TRAILER = re.compile(r"[A-Za-z][A-Za-z-]*: \S.*")
_SCISSORS = "# ------------------------ >8 ------------------------"


def problems_of(message: str) -> list[str]:
    """The problems of a whole message; empty if there are none. (pure)"""
    subject, *rest = message.rstrip("\n").split("\n")
    if subject.startswith(BY_GIT):
        return []
    found = []
    if len(subject) > LONGEST:
        found.append(f"the subject has {len(subject)} characters; the limit is {LONGEST}")
    if rest and rest[0].strip():
        found.append("the second line is not blank")
    parts = _SUBJECT.fullmatch(subject)
    if parts is None:
        return [*found, f"the subject does not have the form `type(scope): words`; types are {', '.join(TYPES)}"]
    kind, _, words = parts.groups()
    first = words.split()[0].strip("`'\",:;").lower()
    if first in NO_VERBS or (first not in VERBS and _ANOTHER_FORM.fullmatch(first)):
        found.append(f"the subject begins with {first!r}, not with a verb in the imperative (add, not adds or added)")
    if words.endswith("."):
        found.append("the subject ends with a full stop")
    if "; " in words:
        found.append("the subject has a semicolon: two changes are two commits")
    if kind not in WITHOUT_BODY and not any(line.strip() and not _TRAILER.fullmatch(line) for line in rest):
        found.append("there is no body that says why")
    return found


def written_in(path: Path) -> str:
    """The message that git will read from an editor's file."""
    text = path.read_text(encoding="utf-8").split(_SCISSORS)[0]
    return "\n".join(line for line in text.splitlines() if not line.startswith("#")).strip("\n")


def git(*words: str) -> str | None:
    """Output of a git command; None if it fails."""
    try:
        done = subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout


def since_base() -> list[tuple[str, str]] | None:
    """(short hash, message) of each commit after BASE, oldest first; None if the history does not reach BASE."""
    top = git("rev-parse", "--show-toplevel")
    if top is None or Path(top.strip()) != ROOT or git("merge-base", "--is-ancestor", BASE, "HEAD") is None:
        return None
    log = git("log", "--reverse", "--no-merges", "--format=%h%x00%B%x01", f"{BASE}..HEAD")
    if log is None:
        return None
    entries = [entry.strip("\n").partition("\0") for entry in log.split("\1") if entry.strip()]
    return [(name, message) for name, _, message in entries]


def main(arguments: list[str]) -> int:
    if arguments:
        messages: list[tuple[str, str]] | None = [("this commit", written_in(Path(arguments[0])))]
    else:
        messages = since_base()
    if messages is None:
        sys.stdout.write(f"commits are not checked: no history since {BASE} here\n")
        return 0
    wrong = [(name, message, problems_of(message)) for name, message in messages]
    for name, message, problems in wrong:
        for problem in problems:
            sys.stderr.write(f"{name}: {problem}\n    {message.partition(chr(10))[0]}\n")
    if any(problems for *_, problems in wrong):
        sys.stderr.write("kept:  every file, unchanged\nnext:  git commit --amend (the last), git rebase -i (others)\n")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
