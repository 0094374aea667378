"""One export: an adapter for peft, or a merged model for transformers and llama.cpp."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from profiles.errors import ExitCode, LonghaulError
from state import durable
from workers.export.merged import write_weights
from workers.line_contract import ExportSpec, Loading, Wrote
from workers.lines import Say
from workers.models import adapters, load
from workers.models.directory import code_files
from workers.models.policy import profile_for_reading, restored_policy
from workers.models.reader import plain_config
from workers.models.torch_setup import device_of, set_up_torch

FACTS = "export.json"
KEPT = "the checkpoint, unchanged; nothing was exported"


def export(spec: ExportSpec, say: Say) -> None:
    """Fill `spec.out`; every file is on disk when this returns. Raises LonghaulError."""
    out = Path(spec.out)

    def wrote(path: Path) -> None:
        path.chmod(0o644)
        durable.fsync_file(path)
        say(Wrote(path.name, path.stat().st_size))

    with durable.explained("cannot write the export", out, KEPT):
        dtype = _weights(spec, out, say, wrote)
        facts = {"kind": spec.kind, "dtype": dtype} | spec.source
        (out / FACTS).write_text(json.dumps(facts, indent=2, sort_keys=True) + "\n")
        for path in sorted(out.iterdir()):
            if path.suffix != ".safetensors" or spec.kind == "adapter":
                wrote(path)
        durable.fsync_dir(out)


def _weights(spec: ExportSpec, out: Path, say: Say, wrote: Any) -> str:
    """All but export.json. Returns their precision."""
    if spec.profile.run.worker == "verl":
        from workers.verl import exporting

        say(Loading())
        write = exporting.write_adapter if spec.kind == "adapter" else exporting.write_model
        dtype = write(spec.profile, Path(spec.directory), out)
        for path in sorted(out.glob("*.safetensors")):
            wrote(path)
        return dtype
    if spec.profile.run.worker == "open_instruct":
        from workers.open_instruct.exporting import write_model

        say(Loading())
        dtype = write_model(Path(spec.directory), out, spec.kind)
        for path in sorted(out.glob("*.safetensors")):
            wrote(path)
        return dtype
    return _copy_adapter(spec, out) if spec.kind == "adapter" else _write_merged(spec, out, say, wrote)


def _copy_adapter(spec: ExportSpec, out: Path) -> str:
    """Copy the adapter, which is already in PEFT's layout. Returns its precision."""
    source = Path(spec.directory)
    if not (source / adapters.WEIGHTS).is_file():
        raise _refused(
            "this run trains all weights; it has no adapter", "python -m orchestrator export --merged --out ..."
        )
    names = (adapters.WEIGHTS, adapters.CONFIG, *load.TOKENIZER_FILES)
    for name in names:
        if (source / name).is_file():
            (out / name).write_bytes((source / name).read_bytes())
    return "float32"


def _write_merged(spec: ExportSpec, out: Path, say: Say, wrote: Any) -> str:
    """Write weights, config and tokenizer. Returns the weights' precision."""
    profile = profile_for_reading(spec.profile, None)
    wanted = spec.dtype
    if wanted == "auto":
        wanted = "bfloat16" if spec.kind == "gguf-ready" else profile.model.dtype
    if spec.kind == "gguf-ready" and wanted == "float32":
        raise _refused("--gguf-ready writes 16 bits; float32 was asked for", "--dtype bfloat16 or float16, or --merged")
    set_up_torch(profile, isolate=False)
    with _plain_files(spec) as source:
        for name in (*load.MODEL_FILES, *code_files(source)):
            if (source / name).is_file():
                (out / name).write_bytes((source / name).read_bytes())
    say(Loading())
    model = restored_policy(profile, Path(spec.directory), spec.step, device_of(profile)).model
    (out / "config.json").write_text(config_json(plain_config(out, model), model, wanted))
    if not (out / "generation_config.json").is_file():
        stop = model.generation_config.eos_token_id
        (out / "generation_config.json").write_text(json.dumps({} if stop is None else {"eos_token_id": stop}) + "\n")
    if spec.kind == "gguf-ready":
        _refuse_what_cannot_be_converted(out)
    write_weights(model, getattr(torch, wanted), out, spec.shard_bytes, wrote)
    return wanted


@contextmanager
def _plain_files(spec: ExportSpec) -> Iterator[Path]:
    """Config and tokenizer files: from an adapter's base, else from the checkpoint."""
    if spec.profile.adapter.rank:
        with load.opened_model(spec.profile.model, spec.profile.run.seed) as base:
            yield base
    else:
        yield Path(spec.directory)


def config_json(config: dict[str, Any], model: Any, dtype: str) -> str:
    """The base's config for a plain model: names its class, and drops 4-bit settings. (pure)"""
    plain = {name: value for name, value in config.items() if name != "quantization_config"}
    # transformers 5 reads `dtype`; other programs still look for the older name.
    plain |= {"architectures": [type(model).__name__], "dtype": dtype, "torch_dtype": dtype}
    return json.dumps(plain, indent=2, sort_keys=True) + "\n"


def _refuse_what_cannot_be_converted(out: Path) -> None:
    """Raises LonghaulError (INPUT) if a file that llama.cpp's script needs is missing."""
    if not (out / "tokenizer_config.json").is_file():
        raise _refused(
            "the model has no tokenizer_config.json, which llama.cpp's converter reads",
            "put it beside the base model's tokenizer.json, or use --merged",
        )


def _refused(what: str, next_command: str) -> LonghaulError:
    return LonghaulError(what, kept=KEPT, next_command=next_command, exit_code=ExitCode.INPUT)
