"""What the data are: asked of a worker, because reading them may need libraries that the master must not load."""

from __future__ import annotations

from pathlib import Path

from orchestrator.display.wording import harmless
from orchestrator.line_worker import started
from profiles.built_in import BUILT_IN
from profiles.errors import ExitCode, LonghaulError
from workers.line_contract import Column, Looked, LookSpec

BUILT_IN_PROBLEMS = "pocket-words"
assert BUILT_IN_PROBLEMS in BUILT_IN  # the problems have the name of the model that learns on them
ON_HUB = "hf:"
ENDINGS = ("*.jsonl", "*.parquet")


def look_at(data: str) -> Looked:
    """data: a file, a folder, or the built-in problems. Raises LonghaulError (INPUT) if it cannot be read."""
    if data == BUILT_IN_PROBLEMS:
        return built_in()
    kept = "everything; nothing was written"
    if data.startswith(ON_HUB):
        name = data.removeprefix(ON_HUB)
        place = f"data/{name.rpartition('/')[2]}"
        raise LonghaulError(
            f"the data {harmless(data)} are on the hub; init looks at files that are here",
            kept=kept,
            next_command=f"hf download {harmless(name)} --repo-type dataset --local-dir {harmless(place)}   then: "
            f"the same command with --data {harmless(place)}",
            exit_code=ExitCode.INPUT,
        )
    path = Path(data).expanduser().absolute()
    with started("workers.problems.look", LookSpec(str(path)), name="data", kept=kept, owner="init") as worker:
        (looked,) = [said for said in worker.hear() if isinstance(said, Looked)]
    return looked


def built_in() -> Looked:
    """The built-in word problems, which have no file. (pure)"""
    prompt, answer = "Tom has 3 bags of 4 pens. ...", "12"
    columns = [Column("prompt", "text", 1.0, 92, 143, 143, prompt), Column("answer", "number", 1.0, 2, 2, 2, answer)]
    return Looked(BUILT_IN_PROBLEMS, 1024, columns)


def likely_data(folder: Path) -> str:
    """The only file of data in the folder, else the built-in problems: what is offered as a default."""
    found = [path for ending in ENDINGS for path in sorted(folder.glob(ending))]
    train = [path for path in found if "train" in path.stem]
    return str(next((one[0] for one in (found, train) if len(one) == 1), BUILT_IN_PROBLEMS))
