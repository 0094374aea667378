"""One attempt on several GPUs: rank 0, the worker that the orchestrator started, leads; the other ranks follow.

The leader runs the algorithm unchanged: sandbox, buffers, rewards, events, checkpoints. Followers hold the same policy
and share the heavy work: rollouts, the update's passes (`workers/models/shards.py`) and gathering a checkpoint. They
get their calls over a socket (`workers/rank_group/wire.py`); tensors go through torch.distributed. Ranks of other hosts
join through `workers/rank_group/meeting.py`: `hosts.py` there is the leader's side, `host.py` the other hosts'.
"""
