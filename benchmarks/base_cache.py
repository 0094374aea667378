"""Seconds to load a base in 4 bits, without imports: quantised anew, and read from the cache, with a cold and a warm
page cache."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.ranks import made_once
from profiles.shapes import ARCHITECTURES

LOAD = """
import json, sys, time
from pathlib import Path
import torch, bitsandbytes
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig
from profiles.schema import Model
from workers.models import load
from workers.models.identity import base_sha256
base, device, gib = Path(sys.argv[1]), torch.device(sys.argv[2]), float(sys.argv[3])
MODEL_FOR_CAUSAL_LM_MAPPING[type(AutoConfig.from_pretrained(base))]  # imports its code, whatever is installed beside it
torch.zeros(1, device=device)
knobs = Model(path=str(base), dtype="bfloat16", quantization="nf4", cache_gib=gib)
begun = time.perf_counter()
sha256 = base_sha256(base)
hashed = time.perf_counter()
load.load_model(base, knobs, device, sha256)
if device.type == "cuda":
    torch.cuda.synchronize()
print(json.dumps({"hash": hashed - begun, "load": time.perf_counter() - hashed}))
"""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks base_cache", description=__doc__)
    parser.add_argument("--shape", default="qwen2.5-0.5b", choices=sorted(ARCHITECTURES), help="random weights")
    parser.add_argument("--model", metavar="DIRECTORY", help="a model directory in place of random weights")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    args = parser.parse_args(words)
    with tempfile.TemporaryDirectory(prefix="longhaul-base-") as folder:
        os.environ["LONGHAUL_CACHE"] = f"{folder}/cache"
        if args.model:
            base = Path(args.model)
        else:
            (base := Path(folder) / "base").mkdir()
            made_once(args.shape, str(base))
        for what, gib, is_cold in (
            ("quantised anew", 0, False),
            ("quantised, and kept", 64, False),
            ("read, warm page cache", 64, False),
            ("read, warm page cache", 64, False),
            ("read, cold page cache", 64, True),
        ):
            if is_cold:
                forget([*base.glob("*"), *Path(folder).glob("cache/nf4/*/*")])
            found = _measured(base, args.device, gib)
            print(f"{what:<22}  hash of the base {found['hash']:6.2f} s   load {found['load']:7.2f} s", flush=True)
    return 0


def _measured(base: Path, device: str, gib: float) -> dict[str, float]:
    command = [sys.executable, "-c", LOAD, str(base), device, str(gib)]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def forget(paths: list[Path]) -> None:
    """Drop the files from the page cache, once they are on disk."""
    for path in paths:
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)
