"""What holds for the whole tree: who may import whom, and what nobody may do."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from profiles.built_in import BUILT_IN
from profiles.schema import Model
from profiles.suites import SHIPPED, shipped_suites
from profiles.worker_kinds import KINDS
from tests import REPOSITORY

CODE = ("profiles", "state", "workers", "orchestrator", "longhaul", "benchmarks")
CONTRACTS = ("workers.contract", "workers.line_contract", "workers.node_contract")
"""What both sides may import."""
HEAVY = {"torch", "transformers", "numpy", "safetensors", "tokenizers", "bitsandbytes", "peft", "vllm"}


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (REPOSITORY / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    """Dotted name of a module."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imports(path: Path) -> Iterator[tuple[str, int]]:
    """(module or module.name, line) of every import, those inside functions too."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            module = ".".join([*above, *([node.module] if node.module else [])])
            yield from ((f"{module}.{alias.name}", node.lineno) for alias in node.names)


def within(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def allowed(importer: str) -> tuple[str, ...]:
    """profiles <- state <- the contracts <- { orchestrator, the rest of workers } <- longhaul."""
    if within(importer, "profiles"):
        return ("profiles",)
    if within(importer, "state"):
        return ("profiles", "state")
    if importer in CONTRACTS:
        return ("profiles", "state", importer)
    if within(importer, "orchestrator"):
        return ("profiles", "state", *CONTRACTS, "orchestrator")
    if within(importer, "longhaul"):
        return ("profiles", "state", "workers", "orchestrator", "longhaul")
    return ("profiles", "state", "workers")


def test_imports_point_down_only() -> None:
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line} imports {module}"
        for path in sources("profiles", "state", "workers", "orchestrator", "longhaul")
        for module, line in imports(path)
        if within(module, *CODE, "tests") and not within(module, *allowed(name_of(path)))
    ]
    assert wrong == []


def order_in(document: str) -> dict[str, int]:
    """Package or module of `workers` -> its row in the table of docs/architecture.md."""
    (table,) = re.findall(r"^\| in `workers` .*\n\| --- .*\n((?:\|.*\n)+)", document, flags=re.MULTILINE)
    rows = [re.findall(r"`(\w+)`", line.split("|")[1]) for line in table.splitlines()]
    return {name: number for number, names in enumerate(rows) for name in names}


def part_of(module: str) -> str:
    """Of `workers`: the package, or the module, that it belongs to."""
    return module.split(".")[1] if module.count(".") else ""


def test_packages_of_workers_import_only_those_above_them_in_the_documented_order() -> None:
    order = order_in((REPOSITORY / "docs/architecture.md").read_text())
    wrong = []
    for path in sources("workers"):
        own = part_of(name_of(path))
        if own in ("", "__main__"):
            continue
        for module, line in imports(path):
            other = part_of(module) if within(module, "workers") else ""
            if other and other != own and order[other] >= order[own]:
                wrong.append(f"{path.relative_to(REPOSITORY)}:{line} imports {module}")
    assert wrong == []


def test_the_documented_order_names_every_package_of_workers() -> None:
    parts = {part_of(name_of(path)) for path in sources("workers")} - {"", "__main__"}
    assert set(order_in((REPOSITORY / "docs/architecture.md").read_text())) == parts


def test_the_master_s_side_names_no_heavy_library() -> None:
    contracts = [path for path in sources("workers") if name_of(path) in CONTRACTS]
    public = [path for path in sources("longhaul") if name_of(path) != "longhaul.models"]
    light = [*sources("profiles", "state", "orchestrator"), *public, *contracts]
    # state.checkpoint writes what workers hand over, and is the one place below them that may know safetensors.
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line} imports {module}"
        for path in light
        for module, line in imports(path)
        if within(module, *HEAVY) and not (within(name_of(path), "state.checkpoint") and within(module, "safetensors"))
    ]
    assert wrong == []


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=REPOSITORY, timeout=60)


def test_importing_every_module_of_the_master_leaves_heavy_libraries_unimported() -> None:
    names = [name_of(path) for path in sources("orchestrator") if path.name != "__main__.py"]
    code = f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\nprint(*sys.modules)"
    done = run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert HEAVY & set(done.stdout.split()) == set()


@pytest.mark.parametrize("arguments", [("--help",), ("run", "--help"), ("status", "--help")])
def test_help_imports_nothing_heavy(arguments: tuple[str, ...]) -> None:
    done = run_python("-X", "importtime", "-m", "orchestrator", *arguments)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "usage: " in done.stdout
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "argparse" in loaded  # the list is read at all
    assert HEAVY & loaded == set()
    if arguments == ("--help",):
        assert {"rich", "sqlite3", "asyncio"} & loaded == set()


def test_the_master_names_no_kind_of_worker_in_a_comparison() -> None:
    """What it must know of a kind stands in its record, `profiles/worker_kinds.py`."""

    def is_kind(node: ast.AST) -> bool:
        return isinstance(node, ast.Attribute) and node.attr == "worker" and ast.unparse(node).endswith("run.worker")

    def is_text(node: ast.AST) -> bool:
        return isinstance(node, ast.Constant) and isinstance(node.value, str)

    wrong = [
        f"{path.relative_to(REPOSITORY)}:{node.lineno}"
        for path in sources("orchestrator")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Compare) and any(map(is_kind, ast.walk(node))) and any(map(is_text, ast.walk(node)))
    ]
    assert wrong == []


def speaks_of_suites(node: ast.AST) -> bool:
    return any(
        "suite" in str(getattr(one, field, "")).lower()
        for one in ast.walk(node)
        for field in ("id", "attr", "arg", "name")
    )


def parts_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Statements without those inside them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt):
            inner = [child for child in ast.iter_child_nodes(node) if not isinstance(child, ast.stmt)]
            yield ast.Module(body=inner, type_ignores=[])


def suites_named_in(tree: ast.AST) -> Iterator[int]:
    """Lines with a suite's name as a text; one that other things have too counts where suites are spoken of."""
    names = set(shipped_suites()) - {"held-out"}  # a task of any suite is held out, and says so
    shared = names & {*BUILT_IN, *KINDS, *get_args(get_type_hints(Model)["prompt_style"])}
    for part in parts_of(tree):
        refused = names if speaks_of_suites(part) else names - shared
        nodes = list(ast.walk(part))
        models = [id(node.slice) for node in nodes if isinstance(node, ast.Subscript) and is_built_in(node.value)]
        for node in nodes:
            if isinstance(node, ast.Constant) and node.value in refused and id(node) not in models:
                yield node.lineno


def is_built_in(node: ast.AST) -> bool:
    """The built-in models by name; one is named as a suite is."""
    return isinstance(node, ast.Name) and node.id == "BUILT_IN"


def test_no_suite_is_named_outside_its_own_file() -> None:
    """All that differs between suites stands in their records. A built-in model has a suite that it is asked on."""
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line}"
        for path in sources("profiles", "state", "workers", "orchestrator")
        if path != REPOSITORY / "profiles/built_in.py" and not path.is_relative_to(SHIPPED)
        for line in suites_named_in(tree_of(path))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("text", "is_named"),
    [
        ('if name == "gsm8k": pass', True),
        ('if p.validation.suites == ("pocket",): pass', True),
        ('p = replace(p, suites=("words",))', True),
        ('SUITES = {"fake": 1}', True),
        ('if p.model.path == "pocket": pass', False),
        ('suites = (BUILT_IN["pocket"].suite,)', False),
        ('def f(suites):\n    worker = "fake"', False),
    ],
)
def test_the_search_for_names_of_suites_finds_them(text: str, is_named: bool) -> None:
    assert bool(list(suites_named_in(ast.parse(text)))) == is_named


HOME_OF_FAMILIES = "profiles.families"
MODEL_CLASS = re.compile(r"[A-Z]\w*For(?:CausalLM|ConditionalGeneration)")


def family_tests(path: Path, families: Collection[str]) -> Iterator[str]:
    """Where a file asks a model for its kind: the names of families and classes in comparisons, and `model_type`."""
    where = path.relative_to(REPOSITORY)

    def is_kind(node: ast.AST) -> bool:
        text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
        return text in families or bool(MODEL_CLASS.fullmatch(text))

    for node in ast.walk(tree_of(path)):
        if isinstance(node, (ast.Compare, ast.MatchValue)) and any(map(is_kind, ast.walk(node))):
            yield f"{where}:{node.lineno} compares the name of a family or class"
        if isinstance(node, ast.Attribute) and node.attr == "model_type":
            yield f"{where}:{node.lineno} reads model_type"
        looked_up = (
            [node.slice]
            if isinstance(node, ast.Subscript)
            else node.args[:1]
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get"
            else []
        )
        if any(isinstance(key, ast.Constant) and key.value in ("model_type", "architectures") for key in looked_up):
            yield f"{where}:{node.lineno} looks up what a config is called"
    for module, line in imports(path):
        if within(module, "transformers.models") and path.name != "kind.py":  # that warms up
            yield f"{where}:{line} imports {module}"


def test_nobody_outside_the_families_home_asks_for_the_kind_of_a_model() -> None:
    """What a model computes stands in its description: profiles/description.py."""
    from profiles.families import FAMILIES, LEFT_PADDED

    files = [path for path in sources("profiles", "state", "workers", "orchestrator")
             if not within(name_of(path), HOME_OF_FAMILIES, "profiles.family")]  # fmt: skip
    assert len(files) > 100
    assert [found for path in files for found in family_tests(path, {*FAMILIES, *LEFT_PADDED})] == []


@pytest.mark.parametrize(
    ("line", "is_refused"),
    [
        ('if type(model).__name__ != "Qwen2ForCausalLM": ...', True),
        ('is_known = config["model_type"] in KNOWN', True),
        ('is_known = config.get("model_type") in KNOWN', True),
        ("is_known = model.config.model_type in KNOWN", True),
        ('is_known = kind in ("llama", "qwen2")', True),
        ("from transformers.models.qwen2 import modeling_qwen2", True),
        ("is_known = architecture.biases == QKV", False),
        ('config = {"model_type": "qwen2"}', False),
    ],
)
def test_the_search_for_kinds_of_models_finds_them(
    tmp_path: Path, line: str, is_refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "REPOSITORY", tmp_path)
    (tmp_path / "module.py").write_text(line)
    assert bool(list(family_tests(tmp_path / "module.py", {"llama", "qwen2"}))) == is_refused


KINDS_OF_TASK = re.compile(r"(?<![\w-])(?:abd|ded|ind|abduction|deduction|induction)(?!\w)")
KINDS_AT_HOME = ("workers.tasks", "profiles.task_kinds")


def kinds_named(tree: ast.Module) -> Iterator[int]:
    """Lines with a text that names a kind of task, and comparisons with one; what stands as a docstring is no code."""
    said = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in said:
            if KINDS_OF_TASK.search(node.value):
                yield node.lineno
        elif isinstance(node, ast.Compare):
            words = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
            words |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
            if words & {"ABDUCTION", "DEDUCTION", "INDUCTION"}:
                yield node.lineno


def test_a_kind_of_task_is_named_in_its_own_files_alone() -> None:
    """All others ask its record, `workers/tasks/kinds/`, or its look, `profiles/task_kinds.py`."""
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line}"
        for path in sources(*CODE)
        if not within(name_of(path), *KINDS_AT_HOME)
        for line in kinds_named(tree_of(path))
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("line", "is_named"),
    [
        ('task == "abd"', True),
        ('sizes = {"deduction": 3}', True),
        ('metrics["buffer/ind"]', True),
        ("task in (ABDUCTION, INDUCTION)", True),
        ("kind == task_kinds.DEDUCTION", True),
        ("suite = Suite(DEDUCTION)", False),
        ('def f() -> None:\n    """Of abduction."""', False),
        ("azr.variants.induction_reward", False),
        ('"induction_max_statements"', False),
    ],
)
def test_the_search_for_kinds_of_task_finds_them(line: str, is_named: bool) -> None:
    assert bool(list(kinds_named(ast.parse(line)))) == is_named


def test_the_formatter_decides_about_lines() -> None:
    """A file is as long as its subject. Tables of cases in tests may keep a row to a line."""
    paths = sources("profiles", "state", "orchestrator", "workers", "benchmarks")
    assert [path for path in paths if "# fmt:" in path.read_text(encoding="utf-8")] == []


DANGEROUS_IMPORTS = ("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve")
DANGEROUS_CALLS = {"eval", "exec", "os.system", "os.popen", "pty.spawn", "torch.save"}


def dangers(path: Path) -> Iterator[str]:
    """What could run a text as code, with its place."""
    where = path.relative_to(REPOSITORY)
    for module, line in imports(path):
        if within(module, *DANGEROUS_IMPORTS):
            yield f"{where}:{line} imports {module}"
    for node in ast.walk(tree_of(path)):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        said = {word.arg: ast.unparse(word.value) for word in node.keywords}
        if called in DANGEROUS_CALLS:
            yield f"{where}:{node.lineno} calls {called}"
        if said.get("shell", "False") != "False":
            yield f"{where}:{node.lineno} calls {called} with a shell"
        if said.get("trust_remote_code", "False") != "False":
            yield f"{where}:{node.lineno} trusts remote code"
        if called == "torch.load" and said.get("weights_only") != "True":
            yield f"{where}:{node.lineno} loads a pickle (say weights_only=True)"


def test_nothing_outside_the_sandbox_runs_a_text_as_code() -> None:
    # benchmarks.sandbox times the unprotected way beside ours, on programs that stand in that very file.
    outside = [path for path in sources(*CODE) if not within(name_of(path), "workers.sandbox", "benchmarks.sandbox")]
    found = [danger for path in outside for danger in dangers(path)]
    # `model.trust_remote_code`, off unless a person says that they have read the model's code.
    assert [one for one in found if not (one.startswith(READER) and one.endswith(" trusts remote code"))] == []


READER = "workers/models/reader.py:"


@pytest.mark.parametrize(
    ("line", "is_danger"),
    [
        ("import pickle", True),
        ("def f():\n    from pickle import loads", True),
        ("eval(text)", True),
        ("model.eval()", False),
        ("subprocess.run(words, shell=True)", True),
        ("subprocess.run(words, shell=False)", False),
        ("torch.load(path)", True),
        ("torch.load(path, weights_only=True)", False),
        ("AutoModel.from_pretrained(path, trust_remote_code=True)", True),
    ],
)
def test_the_search_for_dangers_finds_them(
    tmp_path: Path, line: str, is_danger: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[__name__], "REPOSITORY", tmp_path)
    (tmp_path / "module.py").write_text(line)
    assert bool(list(dangers(tmp_path / "module.py"))) == is_danger


@pytest.mark.parametrize(
    ("importer", "imported", "is_allowed"),
    [
        ("profiles.load", "profiles.schema", True),
        ("profiles.load", "state.layout", False),
        ("state.store", "workers.contract", False),
        ("workers.contract", "state.layout", True),
        ("workers.contract", "workers.runtime", False),
        ("orchestrator.loop", "workers.contract.Message", True),
        ("orchestrator.line_worker", "workers.line_contract.Said", True),
        ("orchestrator.loop", "workers.runtime", False),
        ("workers.cycle.train", "orchestrator.clock", False),
        ("workers.cycle.train", "workers.rewards.reward", True),
        ("longhaul.run", "orchestrator.runs", True),
        ("longhaul.models", "workers.models.load", True),
        ("orchestrator.commands.status", "longhaul.run", False),
    ],
)
def test_the_import_order_is_the_one_of_the_design(importer: str, imported: str, is_allowed: bool) -> None:
    assert within(imported, *allowed(importer)) == is_allowed


def test_the_display_imports_nothing_of_the_master() -> None:
    """It is told what is to be seen: no loop, no worker, no schedule."""
    below = ("clock", "ready")
    wrong = [
        f"{path.relative_to(REPOSITORY)}:{line} imports {module}"
        for path in [*sources("orchestrator/display"), *(REPOSITORY / f"orchestrator/{name}.py" for name in below)]
        for module, line in imports(path)
        if within(module, "orchestrator")
        and not within(module, "orchestrator.display", *(f"orchestrator.{name}" for name in below))
    ]
    assert wrong == []


def test_the_documented_walk_of_a_checkpoint_request_passes_every_file_that_knows_of_one() -> None:
    document = (REPOSITORY / "docs/architecture.md").read_text()
    walk = document.partition("## The walk of one checkpoint request\n")[2].partition("\n## ")[0]
    named = re.findall(r"`([\w/]+\.py)`", walk)
    assert [name for name in named if not (REPOSITORY / name).is_file()] == []
    know = {
        str(path.relative_to(REPOSITORY))
        for path in sources("orchestrator")
        for module, _ in imports(path)
        if module == "orchestrator.checkpoint_request.CheckpointRequest"
    }
    assert know and know <= set(named)


@pytest.mark.parametrize("path", sources(*CODE, "tests"), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_file_says_its_job_first(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if text.strip() and not path.is_relative_to(REPOSITORY / "tests"):
        assert ast.get_docstring(tree_of(path)), "the first line says what the file is for"


def test_no_file_knows_the_home_of_the_one_who_wrote_it() -> None:
    homes = re.compile(r"(?<![\w.])/(?:home|Users|root)/\w")
    folders = (*CODE, "tests", "docs", "scripts", ".ci")
    files = [
        path for folder in folders for path in (REPOSITORY / folder).rglob("*") if path.suffix not in (".pyc", ".png")
    ]
    files += [
        path
        for path in REPOSITORY.iterdir()
        if path.suffix in (".md", ".toml", ".txt", ".yaml") or path.name == "Makefile"
    ]
    wrong = [
        f"{path.relative_to(REPOSITORY)}: {found.group()}"
        for path in files
        if path.is_file() and "weights" not in path.parts and "__pycache__" not in path.parts
        for found in homes.finditer(path.read_text(encoding="utf-8", errors="replace"))
    ]
    assert wrong == []
