"""One attempt on several GPUs of one host: rank 0 is the worker that the master started, the others follow it.

The leader runs the algorithm unchanged: sandbox, buffers, rewards, events, checkpoints. Followers hold the same policy
and do their part of what is heavy: rollouts (`engine.py`), the update's passes (`workers/models/shards.py`), and what
a checkpoint is gathered from. They hear of it over a socket (`wire.py`); tensors go through torch.distributed.
"""
