"""Stands where verl's driver would, where a test is about Ray's cluster alone: a process on each GPU, which sleeps."""

from __future__ import annotations

import os
import sys
import time
from typing import Any


def main() -> None:
    import ray

    said = dict(word.lstrip("+").split("=", 1) for word in sys.argv[1:])
    ray.init(address=said["ray_kwargs.ray_init.address"].strip("'"))

    @ray.remote(num_gpus=1, num_cpus=0)
    class Holder:
        def pid(self) -> int:
            return os.getpid()

    count = int(said["trainer.nnodes"]) * int(said["trainer.n_gpus_per_node"])
    holders: list[Any] = [Holder.remote() for _ in range(count)]
    print("holders:", *ray.get([one.pid.remote() for one in holders]), flush=True)  # noqa: T201 - into verl.log
    time.sleep(3600)
