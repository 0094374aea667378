"""The check of a cluster's nodes for `doctor --cluster`: `python -m workers.node_check` runs on each node of a job.

`node.py` looks at the node itself, `shared_files.py` at what all nodes see of one directory, `reduction.py` at the
ranks. What is right and wrong, the master decides (`orchestrator/node_findings.py`).
"""
