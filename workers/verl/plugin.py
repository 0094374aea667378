"""What verl loads of ours into each of its processes (`VERL_USE_EXTERNAL_MODULES`). No file of verl is changed.

Through its registries it gets trainers that can be asked for a checkpoint and for the end, rollout engines whose
weights are compared with what was sent, and, without a GPU, a platform and a rollout engine for CPUs.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import Any

from workers.verl import probe, signals
from workers.verl.deadlines import ENGINES, PLACEMENT, SYNC


def register_trainers() -> None:
    from transformers import AutoConfig
    from verl.trainer.ppo.v1 import trainer_base
    from verl.trainer.ppo.v1.trainer_separate_async import PPOTrainerSeparateAsync
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    class Listening:
        """Between two steps it looks whether a checkpoint is due or asked for, or the end. After each sync it probes
        engines whose weights no table can compare."""

        global_steps: int
        total_training_steps: int
        config: Any
        resource_pool_manager: Any

        def _load_checkpoint(self) -> None:
            super()._load_checkpoint()  # type: ignore[misc]
            if self.config.trainer.resume_mode == "disable":  # steps go on where only weights were taken over
                self.global_steps = int(os.environ[signals.BEGAN_AT])

        def on_init_end(self) -> None:
            super().on_init_end()  # type: ignore[misc]
            self._refuse_other_weights()

        @cached_property
        def _is_probed(self) -> bool:
            ranks = self.config.actor_rollout_ref.rollout.tensor_model_parallel_size
            config = AutoConfig.from_pretrained(self.config.actor_rollout_ref.model.path)
            return probe.known_layout(config, ranks) is None

        def _refuse_other_weights(self) -> None:
            if self._is_probed:
                probe.probe(self)

        def _init_resource_pool_mgr(self) -> None:
            """verl would ask for places while it starts processes on them: told apart, each has a deadline."""
            super()._init_resource_pool_mgr()  # type: ignore[misc]
            manager = self.resource_pool_manager
            create = manager.create_resource_pool

            def placed() -> None:
                signals.tell(signals.folder(), signals.NO_STEP, PLACEMENT)
                create()
                for pool in manager.resource_pool_dict.values():
                    pool.get_placement_groups(device_name=self.config.trainer.device)
                signals.tell(signals.folder(), signals.NO_STEP, ENGINES)

            manager.create_resource_pool = placed

        def on_step_begin(self) -> None:
            signals.tell(signals.folder(), self.global_steps, "rollout")
            super().on_step_begin()  # type: ignore[misc]

        def on_sample_end(self) -> None:
            signals.tell(signals.folder(), self.global_steps, "update")
            super().on_sample_end()  # type: ignore[misc]

        def on_validate_begin(self) -> None:
            signals.tell(signals.folder(), self.global_steps, "validate")
            super().on_validate_begin()  # type: ignore[misc]

        def on_step_end(self) -> None:
            """Save first: the engines sleep still, and weights that do not arrive cost no step."""
            control, step = signals.folder(), self.global_steps
            requests = signals.asked(control)
            is_last = step >= self.total_training_steps
            if requests or is_last or step % int(os.environ[signals.EVERY]) == 0:
                signals.tell(control, step, "checkpoint")
                self._save_checkpoint()  # type: ignore[attr-defined]
                signals.answer(control, step, requests)
            if signals.STOP in requests:
                self.total_training_steps = step  # fit() ends as after its last step: exit code 0
            signals.tell(control, step, SYNC)
            super().on_step_end()  # type: ignore[misc]
            self._refuse_other_weights()

    # Registered under verl's own names: it takes every other one for a mode of its asynchronous kind.
    trainer_base.TRAINER_REGISTRY["sync"] = type("Sync", (Listening, PPOTrainerSync), {})
    trainer_base.TRAINER_REGISTRY["separate_async"] = type("SeparateAsync", (Listening, PPOTrainerSeparateAsync), {})


if signals.CONTROL in os.environ:  # else somebody only imports this module
    if os.environ.get(signals.ON_CPU) == "1":
        from workers.verl import cpu

        cpu.register()
    else:
        from workers.verl import vllm_check

        vllm_check.register()
    from workers.verl import prompting  # noqa: F401

    register_trainers()
