"""What each rank holds while nodes are checked (`workers.kinds`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workers.rank_group.replica import Replica


def replica() -> type[Replica]:
    from workers.node_check.reduction import Reduction

    return Reduction
