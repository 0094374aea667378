"""[launch]: where workers run. (pure)"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from profiles.section import FREE, Count, Section, Share


class Launch(Section, frozen=True):
    """[launch]: where workers run, and what a scheduler needs to know. All but `launcher` and `exclude` is for
    clusters; docs/cluster.md has examples."""

    launcher: Annotated[str, FREE] = "local"
    """What starts the workers: `local`, `slurm`, `ray`, or one of your own as `module:Class` (docs/extending.md)."""
    address: Annotated[str, FREE] = ""
    """URL of Ray's dashboard, such as `http://head:8265`; empty: that of RAY_API_SERVER_ADDRESS or RAY_ADDRESS, or this
    host's."""
    partition: Annotated[str, FREE] = ""
    """Partition of the jobs; empty: the scheduler's default."""
    account: Annotated[str, FREE] = ""
    """Account that the jobs are charged to; empty: the user's default."""
    qos: Annotated[str, FREE] = ""
    """Quality of service of the jobs; empty: the default."""
    constraint: Annotated[str, FREE] = ""
    """Features that nodes must have, as `sbatch --constraint` takes them; empty: any node."""
    time_limit_minutes: Annotated[Count, FREE] = 0
    """Minutes that a job may take; 0: the partition's limit. A worker saves before that, and the next job goes on."""
    cpus_per_node: Annotated[Count, FREE] = 0
    """CPU cores of each node that a job asks for; 0: whole nodes."""
    memory_gb: Annotated[Count, FREE] = 0
    """Host memory of each node that a job asks for, in GB; 0: the scheduler's default."""
    interface: Annotated[str, FREE] = ""
    """Network interface between the hosts of a job, such as `ib0`; needed where `run.hosts` is more than 1."""
    exclude: Annotated[tuple[str, ...], FREE] = ()
    """Nodes that no job may use. Nodes that failed are excluded by themselves."""
    exclude_at_most: Annotated[Share, FREE] = 0.25
    """Share of the partition's nodes, and at least one, that is left out after failures; with more, the run stops."""
    requeues: Annotated[Count, FREE] = 3
    """How often a job may put itself back into the queue while no orchestrator looks after the run."""
    setup: Annotated[tuple[str, ...], FREE] = ()
    """Lines of shell that a job runs first, such as `module load cuda`. They may change variables of the worker."""
    options: Annotated[tuple[str, ...], FREE] = ()
    """More options for `sbatch`, one a string, such as `--reservation=rl`."""
    poll_s: Annotated[float, Meta(gt=0, le=600), FREE] = 10.0
    """Seconds between two questions to the scheduler, one for all jobs of the run."""
