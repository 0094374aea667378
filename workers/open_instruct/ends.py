"""How a job of open-instruct ended, read from the end of its log. (pure)"""

from __future__ import annotations

from profiles.errors import ExitCode
from workers.external import ends
from workers.external.ends import OF_THE_CLUSTER, OUT_OF_MEMORY, End, Ending

ENDINGS = (
    Ending(
        ExitCode.CUDA_OOM,
        OUT_OF_MEMORY,
        "python -m orchestrator plan --profile ...   (what each GPU needs), then a smaller pack_length in the YAML",
    ),
    *OF_THE_CLUSTER,
)

ADVICE = "read the end of open_instruct/open_instruct.log in the attempt's directory"


def end_of(exit_code: int, log: str) -> End:
    """What became of the program. log: its last part."""
    return ends.end_of(exit_code, log, ENDINGS, ADVICE)
