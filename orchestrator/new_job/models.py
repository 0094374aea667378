"""The model of a new job: a built-in one, or a directory that is looked at without loading it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from orchestrator.display.wording import harmless
from profiles.built_in import BUILT_IN
from profiles.errors import ExitCode, LonghaulError
from profiles.suites import FOR_PROBLEMS

FOR_WORDS = "pocket-words"
assert BUILT_IN[FOR_WORDS].prompt_style in FOR_PROBLEMS
EXAMPLE = "Qwen/Qwen2.5-1.5B-Instruct"
PLACE = Path("models")
"""Where documents and profiles put models."""
KEPT = "everything; nothing was written"


@dataclass(frozen=True)
class ChosenModel:
    """path: as in `model.path`. has_template: whether it has a chat template."""

    path: str
    is_built_in: bool
    has_template: bool = False

    @property
    def name(self) -> str:
        return Path(self.path).name


def model_of(wanted: str) -> ChosenModel:
    """Raises LonghaulError (INPUT) for a directory that is not there or holds no model, with what to download."""
    if wanted == FOR_WORDS:
        return ChosenModel(wanted, is_built_in=True)
    if wanted in BUILT_IN:
        raise _refused(f"the built-in model {wanted!r} plays against itself and reads no data", _again(FOR_WORDS))
    folder = Path(wanted).expanduser().absolute()
    if not folder.is_dir():
        raise _refused(f"there is no model directory {harmless(str(folder))}", _download(wanted))
    if not (folder / "config.json").is_file():
        if (folder / "adapter_config.json").is_file():
            made = "python -m orchestrator export --merged --run NAME --out DIR   then: " + _again("DIR")
            raise _refused(f"{harmless(str(folder))} holds an adapter but no model", made)
        raise _refused(f"{harmless(str(folder))} holds no model: there is no config.json", _download(wanted))
    if not any(folder.glob("*.safetensors")):
        what = f"{harmless(str(folder))} has no weights: there is no .safetensors file"
        raise _refused(what, f"{_download(wanted)}   (goes on where it stopped)")
    return ChosenModel(str(folder), is_built_in=False, has_template=_has_template(folder))


def likely_model(folder: Path) -> str:
    """The only model below `models`, else the built-in one: what is offered as a default."""
    found = sorted(path.parent for path in (folder / PLACE).glob("*/config.json"))
    return str(found[0]) if len(found) == 1 else FOR_WORDS


def _has_template(folder: Path) -> bool:
    if (folder / "chat_template.jinja").is_file():
        return True
    try:
        settings = json.loads((folder / "tokenizer_config.json").read_bytes())
    except (OSError, ValueError):
        return False  # the worker reports a tokenizer that cannot be read
    return isinstance(settings, dict) and bool(settings.get("chat_template"))


def _download(wanted: str) -> str:
    """How to get a model. `OWNER/NAME` is taken for a name on the hub, unless it is a path's."""
    is_on_hub = wanted.count("/") == 1 and not wanted.startswith((".", "/", "~", f"{PLACE}/"))
    place = PLACE / wanted.partition("/")[2] if is_on_hub else Path(wanted)
    source = wanted if is_on_hub else "OWNER/NAME"
    example = "" if is_on_hub else f"   (for example {EXAMPLE})"
    where = harmless(str(place))
    return f"hf download {harmless(source)} --local-dir {where}   then: {_again(where)}{example}"


def _again(model: str) -> str:
    return f"the same command with --model {model}"


def _refused(what: str, next_command: str) -> LonghaulError:
    return LonghaulError(what, kept=KEPT, next_command=next_command, exit_code=ExitCode.INPUT)
