"""Says which nodes of a Ray cluster live: `python -m workers.verl.ray_watch ADDRESS`, a line whenever that changes.

Each line is a JSON object: name of a node -> its GPUs. A process of its own, as Ray's client ends the process that it
is in when the head is lost.
"""

from __future__ import annotations

import json
import sys
import time

from workers import process

EVERY_S = 0.5
ANSWER_S = 10.0


def main() -> None:
    process.die_with_parent()
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.core.generated.gcs_pb2 import GcsNodeInfo

    client = GcsClient(address=sys.argv[1])
    said: dict[str, float] | None = None
    while True:
        nodes = client.get_all_node_info(timeout=ANSWER_S).values()
        alive = {
            node.node_name: node.resources_total.get("GPU", 0.0) for node in nodes if node.state == GcsNodeInfo.ALIVE
        }
        if alive != said:
            print(json.dumps(alive), flush=True)  # noqa: T201 - its only output
            said = alive
        time.sleep(EVERY_S)


if __name__ == "__main__":
    main()
