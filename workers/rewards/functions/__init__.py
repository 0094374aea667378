"""Reward functions of the user, `FILE.py:NAME` or `MODULE:NAME`, called in a process of their own.

    with FunctionRunner(grpo.rewards, grpo.reward, attempt.folder) as runner:   # runner.py
        runner.check_columns(columns)                 # LonghaulError (INPUT) for a column that no row has
        futures = runner.submit([Call(function=0, row=7, prompt="2+2=", answer="4", rollouts=[Given("4")])])
        answer = futures[0].result()                  # Answer: for each rollout its named values, or a Failure

`part.py` is the same as parts of GRPO's reward. The file behind a name, and its hash: `profiles/reward_files.py`.

In reading order: `protocol.py` what the two sides say; `runner.py` the trainer's side; `caller.py` the process that
imports the user's files; `signatures.py` the two forms of a function; `arguments.py` what it is given; `values.py` what
it may return. The processes themselves, and calls that fail: `workers/user_code/`.
"""
