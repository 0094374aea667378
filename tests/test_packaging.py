"""What a new user meets first: two commands, pinned versions, and documents that match the code."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from orchestrator.cli import COMMANDS
from orchestrator.doctor import NEWEST, OLDEST
from profiles.errors import ExitCode
from profiles.load import shipped_profiles
from tests import REPOSITORY

DOCUMENTS = [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/*.md")]
PROJECT = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
PINS = {
    pin.name: pin
    for line in (REPOSITORY / "constraints.txt").read_text().splitlines()
    if line and not line.startswith("#")
    for pin in [Requirement(line)]
}


def text_of(path: str) -> str:
    return (REPOSITORY / path).read_text(encoding="utf-8")


def make(*arguments: str) -> str:
    """What `make` says, as if it were not itself called by `make test`."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    outside = {name: value for name, value in outside.items() if name not in ("ARGS", "PROFILE")}
    command = ["make", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY, env=outside).stdout


def dry_run(*arguments: str) -> str:
    """What make would do, without the set-up."""
    return make("-n", "-o", ".venv/.ready", *arguments)


@pytest.mark.parametrize("line", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]])
def test_every_dependency_is_pinned_within_its_range(line: str) -> None:
    wanted = Requirement(line)
    (pin,) = PINS[wanted.name].specifier
    assert pin.operator == "=="
    assert wanted.specifier.contains(pin.version)


def test_the_lock_has_the_pinned_versions_and_a_hash_for_each() -> None:
    lock = text_of("requirements.lock")
    locked = re.findall(r"^(\S+)==(\S+) (?:\\\n    --hash=sha256:[0-9a-f]{64} ?)+$", lock, re.M)
    versions = dict(locked)
    assert len(locked) == lock.count("==")
    pinned = {canonicalize_name(name): one.specifier for name, one in PINS.items() if name != "torch"}
    assert {name: versions[name] for name in pinned if not pinned[name].contains(versions[name])} == {}
    assert "torch" not in versions  # each machine has a build of its own


def test_every_pin_is_a_direct_dependency_and_torch_is_the_tested_one() -> None:
    direct = {Requirement(line).name for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"]}
    assert set(PINS) == direct
    assert str(PINS["torch"].specifier) == "==2.13.0"


@pytest.mark.parametrize("name", sorted(set(PINS) - {"torch"}))
def test_the_tests_run_with_the_pinned_versions(name: str) -> None:
    assert PINS[name].specifier.contains(version(name))


def test_the_readme_begins_with_the_two_commands() -> None:
    (first, *_) = re.findall(r"```bash\n(.*?)```", text_of("README.md"), flags=re.DOTALL)
    assert [line.split("#")[0].strip() for line in first.splitlines()] == ["make run", "make test"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        pytest.param(["run"], "exec .venv/bin/python -m orchestrator run", id="alone"),
        pytest.param(["run", "PROFILE=fake"], "exec .venv/bin/python -m orchestrator run --profile fake", id="named"),
        pytest.param(
            ["run", "ARGS=--set run.seed=7 --plain"],
            "exec .venv/bin/python -m orchestrator run  --set run.seed=7 --plain",
            id="arguments",
        ),
        pytest.param(
            ["test", "JOBS=3", "ARGS=-k typo"],
            "exec .venv/bin/python -m pytest -n 3 --dist worksteal -k typo",
            id="tests",
        ),
        pytest.param(
            ["test-as-user", "JOBS=3", "ARGS=tests/state"],
            "exec bash scripts/as-user.sh .venv/bin/python -m pytest -n 3 --dist worksteal tests/state",
            id="as a user",
        ),
        pytest.param(
            ["test-portable", "JOBS=3", "ARGS=tests/state"],
            "ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41 OMP_NUM_THREADS=1 "
            "exec .venv/bin/python -m pytest -n 3 --dist worksteal tests/state",
            id="plain kernels",
        ),
    ],
)
def test_make_passes_on_what_it_is_given(arguments: list[str], expected: str) -> None:
    assert dry_run(*arguments).split() == expected.split()


def test_make_quick_takes_new_files_by_what_they_need_and_leaves_out_daemons_and_models() -> None:
    _, _, command = dry_run("quick", "JOBS=2").partition("pytest ")
    chosen = {word for word in command.split() if word.endswith(".py")}
    assert command.startswith('-n 2 --dist worksteal -m "not slow and not exhaustive" ')
    texts = {str(path.relative_to(REPOSITORY)): path.read_text() for path in REPOSITORY.glob("tests/**/test_*.py")}
    wanted = {
        path
        for path, text in texts.items()
        if path.count("/") == 1
        or (
            not re.search("subprocess|harness|torch|transformers|tiny_model|write_model|Sandbox|scene", text)
            and not path.startswith(("tests/faults/", "tests/benchmarks/"))
        )
    }
    assert chosen == wanted
    assert {
        "tests/test_architecture.py",
        "tests/profiles/test_load.py",
        "tests/orchestrator/test_schedule.py",
    } <= chosen


def test_make_alone_lists_the_targets() -> None:
    targets = [
        "help", "setup", "run", "quick", "test", "test-exhaustive", "faults", "reliability", "soak", "test-as-user",
        "test-portable", "lint", "site", "tutorial", "bench", "clean",
    ]  # fmt: skip
    assert [line.split()[0] for line in make().splitlines()] == targets


@pytest.mark.parametrize("path", ["scripts/setup.sh", "scripts/system-packages.sh", "scripts/as-user.sh", ".ci/run"])
def test_scripts_stop_at_the_first_failure_and_can_be_started(path: str) -> None:
    assert text_of(path).startswith("#!/usr/bin/env bash\n")
    assert "\nset -euo pipefail\n" in text_of(path)
    assert os.access(REPOSITORY / path, os.X_OK)
    subprocess.run(["bash", "-n", str(REPOSITORY / path)], check=True)


def copy_of_setup(tmp_path: Path) -> Path:
    (tmp_path / "scripts").mkdir()
    for name in ("scripts/setup.sh", "constraints.txt", "pyproject.toml"):
        (tmp_path / name).write_text(text_of(name))
    return tmp_path / "scripts/setup.sh"


def test_set_up_that_is_done_is_not_done_again(tmp_path: Path) -> None:
    script = copy_of_setup(tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.ready").touch()
    os.utime(tmp_path / ".venv/.ready", (2**32, 2**32))
    done = subprocess.run(["bash", str(script)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list((tmp_path / ".venv").iterdir()) == [tmp_path / ".venv/.ready"]


FAKE_PYTHON = """#!{bash}
case "$1" in
    -c) echo {version} ;;
    --version) echo "Python {version}.0" ;;
    *) echo "chosen: {name}" >&2; exit 1 ;;
esac
"""
"""An interpreter of some version: says which it is, and makes no environment."""


def set_up(tmp_path: Path, pythons: dict[str, str], **environment: str) -> str:
    """What set-up says where only these interpreters, with these versions, are on the path."""
    script = copy_of_setup(tmp_path)
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("bash", "dirname", "sed", "mktemp", "rm", "tail"):
        (tools / name).symlink_to(subprocess.check_output(["which", name], text=True).strip())
    for name, says in pythons.items():
        (tools / name).write_text(FAKE_PYTHON.format(bash=tools / "bash", version=says, name=name))
        (tools / name).chmod(0o755)
    done = subprocess.run(
        [tools / "bash", str(script)], capture_output=True, text=True, env={"PATH": str(tools)} | environment
    )
    assert done.returncode == 1, "no fake makes an environment"
    assert not (tmp_path / ".venv").exists()
    return done.stderr


@pytest.mark.parametrize(
    ("pythons", "environment", "chosen"),
    [
        pytest.param({"python3.14": "3.14"}, {}, "python3.14", id="the newest that is accepted"),
        pytest.param({"python3": "3.13"}, {}, "python3", id="a name without a version"),
        pytest.param({"python3.12": "3.12", "python3.11": "3.11"}, {}, "python3.11", id="the oldest first"),
        pytest.param({"python3.11": "3.9", "python3": "3.12"}, {}, "python3", id="what it says, not its name"),
        pytest.param({"python3.11": "3.11", "mine": "3.13"}, {"PYTHON": "mine"}, "mine", id="the one that is named"),
    ],
)
def test_set_up_takes_the_first_python_that_is_accepted(
    pythons: dict[str, str], environment: dict[str, str], chosen: str, tmp_path: Path
) -> None:
    assert set_up(tmp_path, pythons, **environment).startswith(f"error: chosen: {chosen}\n")


@pytest.mark.parametrize(
    ("pythons", "environment", "found"),
    [
        pytest.param({}, {}, "", id="none"),
        pytest.param({"python3": "3.10"}, {}, "; python3 is 3.10", id="too old"),
        pytest.param({"python3": "3.15"}, {}, "; python3 is 3.15", id="not tried"),
        pytest.param({"python3": "3.12", "old": "3.9"}, {"PYTHON": "old"}, "; old is 3.9", id="the named one alone"),
        pytest.param({"python3": "3.12"}, {"PYTHON": "/none"}, "; /none does not start", id="no interpreter"),
    ],
)
def test_set_up_without_an_accepted_python_names_those_it_accepts_and_found(
    pythons: dict[str, str], environment: dict[str, str], found: str, tmp_path: Path
) -> None:
    said = set_up(tmp_path, pythons, **environment)
    first = f"error: no supported Python was found (3.11 3.12 3.13 3.14){found}\n"
    assert said.startswith(first) and "\nnext:  install one" in said


def test_make_hands_the_named_python_to_set_up(tmp_path: Path) -> None:
    script = copy_of_setup(tmp_path)
    (tmp_path / "Makefile").write_text(text_of("Makefile"))
    script.write_text('echo "PYTHON is $PYTHON"\n')
    outside = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    command = ["make", "setup"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=outside | {"PYTHON": "/my/python"})
    assert done.stdout == "PYTHON is /my/python\n"


def test_set_up_accepts_the_pythons_that_the_package_accepts() -> None:
    (listed,) = re.findall(r"^accepted=\(([^)]*)\)", text_of("scripts/setup.sh"), flags=re.MULTILINE)
    accepted = listed.split()
    wanted = SpecifierSet(PROJECT["requires-python"])
    assert [f"3.{minor}" for minor in range(30) if wanted.contains(f"3.{minor}.0")] == accepted
    assert [f"Programming Language :: Python :: {one}" for one in accepted] == [
        one for one in PROJECT["classifiers"] if re.search(r"3\.\d+$", one)
    ]
    assert tuple(tuple(map(int, one.split("."))) for one in (accepted[0], accepted[-1])) == (OLDEST, NEWEST)


def test_the_exit_code_table_is_the_enum() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", text_of("docs/operations.md"), flags=re.MULTILINE)
    assert [(int(code), name) for code, name in rows] == [(code.value, code.name) for code in ExitCode]


def test_the_readme_lists_every_command_and_every_profile() -> None:
    rows = re.findall(r"^\| `([\w.-]+)` \|", text_of("README.md"), flags=re.MULTILINE)
    assert set(rows) == {*COMMANDS, *shipped_profiles()}


def anchor_of(heading: str) -> str:
    """As GitHub makes it: small letters, hyphens for spaces, no other punctuation."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_between_documents_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        name, _, anchor = target.partition("#")
        if name.startswith("http"):
            continue
        linked = path.parent / name if name else path
        assert linked.exists(), target
        headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), flags=re.MULTILINE) if anchor else []
        assert not anchor or anchor in {anchor_of(heading) for heading in headings}, target


def said_by_the_program() -> str:
    """All texts in code and scripts, the fixed parts of f-strings among them."""
    texts = [path.read_text(encoding="utf-8") for path in (REPOSITORY / "scripts").glob("*.sh")]
    for folder in ("profiles", "state", "orchestrator", "workers"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            tree = ast.parse(path.read_text(encoding="utf-8"))
            texts += [
                node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
    return "\n".join(texts)


def test_every_message_in_the_troubleshooting_page_is_one_that_the_program_says() -> None:
    said = said_by_the_program()
    headings = re.findall(r"^### `(.+)`$", text_of("docs/troubleshooting.md"), flags=re.MULTILINE)
    assert len(headings) > 20
    assert [heading for heading in headings if heading not in said] == []


@pytest.mark.parametrize("code", [code for code in ExitCode if code is not ExitCode.OK], ids=lambda code: code.name)
def test_every_exit_code_has_a_row_in_the_troubleshooting_page_that_leads_to_a_section_about_it(code: ExitCode) -> None:
    page = text_of("docs/troubleshooting.md")
    (links,) = re.findall(rf"^\| {code.value} \| `{code.name}` \| .+ \| (.+) \|$", page, flags=re.MULTILINE)
    parts = re.findall(r"^(#+) (.+)\n((?:(?!#).*\n)*)", page, flags=re.MULTILINE)
    sections = {anchor_of(heading): f"{heading}\n{text}" for _, heading, text in parts}
    led_to = [sections[anchor] for anchor in re.findall(r"\(#([^)]+)\)", links)]
    assert any(re.search(rf"\b{code.value}\b", section) for section in led_to)


PAPER = re.compile(r"arXiv\s+(\d{4}\.\d{5})")


def test_every_paper_that_the_code_cites_is_in_the_documents() -> None:
    cited = {paper for path in (REPOSITORY / "workers").rglob("*.py") for paper in PAPER.findall(path.read_text())}
    documented = {paper for path in DOCUMENTS for paper in PAPER.findall(path.read_text())}
    assert len(cited) > 15 and cited - documented == set()


@pytest.mark.parametrize("page", ["algorithm", "grpo"])
def test_every_rule_of_an_algorithm_names_its_source_and_its_file(page: str) -> None:
    _, _, rest = text_of(f"docs/{page}.md").partition("## Sources\n")
    rows = [line.strip("|").split("|") for line in rest.partition("\n#")[0].splitlines() if line.startswith("|")][2:]
    assert len(rows) > 10
    for rule, formula, source, files in rows:
        assert rule.strip() and formula.strip() and source.strip()
        assert all((REPOSITORY / name).exists() for name in re.findall(r"`([^`]+)`", files)) and "`" in files


NOT_OURS = {
    "FILE.py",
    "NAME.py",
    "convert_hf_to_gguf.py",
    "workers.py",
    "json.py",
    "torch.py",
    "my_tasks.py",
    "my_rewards.py",
    "count.py",
    "shop.py",
    "grpo_fast.py",
    "grpo_utils.py",
    "code_utils.py",
    "zero_to_fp32.py",
    "modeling_value_head.py",
}
"""Files of examples, of other programs, and of attacks on the import path."""


@pytest.mark.parametrize("folder", ["docs", "profiles", "state", "orchestrator", "workers", "benchmarks"])
def test_files_that_are_named_are_there(folder: str) -> None:
    listed = [path for path in REPOSITORY.rglob("*.*") if ".venv" not in path.parts]
    there, names = {path.relative_to(REPOSITORY).as_posix() for path in listed}, {path.name for path in listed}
    wrong = [
        f"{path.relative_to(REPOSITORY)}: {named}"
        for path in (one for one in listed if one.is_relative_to(REPOSITORY / folder) and one.suffix in {".md", ".py"})
        for text in [re.sub(r"https?://[^\s)]+", "", path.read_text(encoding="utf-8"))]
        for named in re.findall(r"\b(?:[\w-]+/)*[\w-]+\.(?:py|sh)\b", text)
        if Path(named).name not in names | NOT_OURS
        or (Path(named).name not in NOT_OURS and "/" in named and not any(one.endswith(named) for one in there))
    ]
    assert wrong == []
