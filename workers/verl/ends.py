"""How a job of verl ended, read from the end of its log. (pure)"""

from __future__ import annotations

import re

from profiles.errors import ExitCode
from workers.external import ends
from workers.external.ends import OF_THE_CLUSTER, OUT_OF_MEMORY, RUN, End, Ending
from workers.verl.digests import MARK

ENDINGS = (
    Ending(
        ExitCode.SYNC,
        re.compile(MARK),
        f"{RUN} --set verl.tensor_parallel=1   (one GPU holds each engine's whole weights)",
    ),
    Ending(
        ExitCode.CUDA_OOM,
        OUT_OF_MEMORY,
        f"{RUN} --set verl.tokens_per_gpu=...   (smaller), or vllm.gpu_memory_utilization, or optimizer.offload=true",
    ),
    *OF_THE_CLUSTER,
)


def end_of(exit_code: int, log: str) -> End:
    """What became of verl's driver. log: its last part."""
    return ends.end_of(exit_code, log, ENDINGS, "read the end of verl/verl.log in the attempt's directory")
