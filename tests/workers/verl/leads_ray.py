"""A worker on host 0 whose work is a job of verl: `python -m tests.workers.verl.leads_ray FOLDER`.

It ends with the code of what went wrong.
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

from profiles.errors import ExitCode, LonghaulError
from tests.workers.verl.profiles import debug
from workers import process
from workers.external.processes import make_spool
from workers.verl.job import Job
from workers.verl.settings import Work


def main(folder: Path) -> int:
    process.set_up(logging.INFO)
    work = Work(
        folder / "model",
        folder / "tokenizer",
        folder / "train",
        folder / "validation",
        folder / "verl",
        last_step=1,
        spool=make_spool(),
    )
    work.control.mkdir(parents=True)
    try:
        with Job(debug(run__hosts=2, run__gpus=1), work) as job:
            job.begin()
            while (code := job.poll()) is None:
                time.sleep(0.1)
            logging.error("the driver ended with %d", code)
            return ExitCode.ENGINE
    except LonghaulError as error:
        logging.error("%s", error.render())
        return error.exit_code


if __name__ == "__main__":
    process.leave(main(Path(sys.argv[1])))
