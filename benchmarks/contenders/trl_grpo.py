"""TRL's GRPOTrainer as a contender: QLoRA, with rollouts by transformers' generate or a vLLM engine in the process.

Settings come from the workload; the rest are TRL's defaults. Phases wrap its own methods: `_generate` is the rollout,
the rest of `_generate_and_score_completions` is scoring, and the rest of a step is training and the trainer's own work.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.contenders.lengths import counted, ending
from benchmarks.contenders.report import Budget, Meter
from benchmarks.contenders.workload import LORA_TARGETS, Workload, rewards, text_of


@dataclass(frozen=True, slots=True)
class Options:
    """How to run TRL. vllm_share: share of the GPU's memory for vLLM's engine."""

    vllm: bool = False
    sleep: bool = False
    quantized: bool = True
    vllm_share: float = 0.3


def run(work: Workload, model: Path, options: Options, meter: Meter, budget: Budget) -> None:
    # The engine runs in this process, which hands over weights directly. No reports to trackers.
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "TRL_EXPERIMENTAL_SILENCE": "1"}
    os.environ |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    if options.vllm:
        import vllm  # noqa: F401  TRL would report a missing vLLM only after loading the model
    from transformers import PreTrainedTokenizerFast
    from trl import GRPOTrainer

    with tempfile.TemporaryDirectory(prefix="longhaul-trl-") as output:
        arguments = arguments_of(work, options, budget, Path(output), meter.is_gpu)
        trainer: Any = GRPOTrainer(
            model=loaded(model, options, meter.is_gpu),
            reward_funcs=alternating,
            args=arguments,
            train_dataset=prompts_of(work, budget),
            processing_class=PreTrainedTokenizerFast.from_pretrained(str(model)),
            peft_config=lora_of(work),
        )
        if work.real_lengths:
            end_rows(trainer, work, options)
        watch(trainer, work, meter, budget)
        meter.report.settings = resolved(arguments) | {"quantized": options.quantized}
        trainer.train()
        told = [line for line in trainer.state.log_history if "loss" in line]
        meter.report.metrics = {key: value for key, value in told[-1].items() if isinstance(value, float)}


def alternating(completions: list[Any], **_: Any) -> list[float]:
    return rewards(len(completions))


def arguments_of(work: Workload, options: Options, budget: Budget, output: Path, is_gpu: bool) -> Any:
    from trl import GRPOConfig

    forced = (
        {"min_tokens": work.completion, "ignore_eos": True} if options.vllm else {"min_new_tokens": work.completion}
    )
    if work.real_lengths:
        forced = {}
    engine: dict[str, Any] = {}
    if options.vllm:
        engine = {
            "use_vllm": True,
            "vllm_mode": "colocate",
            "vllm_enable_sleep_mode": options.sleep,
            "vllm_gpu_memory_utilization": options.vllm_share,
            "vllm_max_model_length": work.prompt + work.completion,
        }
    return GRPOConfig(
        output_dir=str(output),
        max_steps=budget.warmup + budget.steps,
        per_device_train_batch_size=work.group_size,
        num_generations=work.group_size,
        gradient_accumulation_steps=1,
        steps_per_generation=1,
        num_iterations=1,
        max_completion_length=work.completion,
        generation_kwargs=forced,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        beta=0.0,
        epsilon=work.clip,
        loss_type="dapo",
        scale_rewards="group",
        mask_truncated_completions=False,
        learning_rate=work.learning_rate,
        lr_scheduler_type="constant",
        optim="adamw_torch",
        max_grad_norm=1.0,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        bf16=is_gpu,
        use_cpu=not is_gpu,
        dataloader_num_workers=0,
        report_to=[],
        save_strategy="no",
        eval_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
        shuffle_dataset=False,
        **engine,
    )


def loaded(model: Path, options: Options, is_gpu: bool) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig

    read: Any = AutoModelForCausalLM.from_pretrained
    chosen: dict[str, Any] = {"dtype": torch.bfloat16, "attn_implementation": "sdpa"}
    chosen |= {"device_map": {"": "cuda:0" if is_gpu else "cpu"}}
    if options.quantized:
        make: Any = BitsAndBytesConfig
        chosen["quantization_config"] = make(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.bfloat16,
        )
    return read(str(model), **chosen)


def lora_of(work: Workload) -> Any:
    from peft import LoraConfig

    make: Any = LoraConfig
    return make(
        r=work.lora_rank,
        lora_alpha=work.lora_alpha,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
        target_modules=list(LORA_TARGETS),
    )


def prompts_of(work: Workload, budget: Budget) -> Any:
    from datasets import Dataset

    steps = range(1, budget.warmup + budget.steps + 1)
    return Dataset.from_dict({"prompt": [text_of(work.prompt_ids(step)) for step in steps]})


def end_rows(trainer: Any, work: Workload, options: Options) -> None:
    """Give each row of a group its own length, in the trainer's engine."""

    def lengths() -> tuple[int, ...]:
        return work.lengths(step_of(trainer))

    if options.vllm:
        llm = trainer.vllm_generation.llm
        llm.generate = counted(llm.generate, lengths)
    else:
        trainer.model.generate = ending(trainer.model.generate, lengths, work.vocabulary - 1)


def step_of(trainer: Any) -> int:
    """Number of the current step, from 1."""
    return int(trainer.state.global_step) + 1


def watch(trainer: Any, work: Workload, meter: Meter, budget: Budget) -> None:
    """Time the trainer's methods, check the completion lengths, and stop when the budget is spent."""
    from transformers import PrinterCallback, TrainerCallback

    generate, score = trainer._generate, trainer._generate_and_score_completions

    def timed_generate(*args: Any, **kwargs: Any) -> Any:
        with meter.phase("rollout"):
            return generate(*args, **kwargs)

    def timed_score(*args: Any, **kwargs: Any) -> Any:
        with meter.phase("rollout and score"):
            found = score(*args, **kwargs)
        lengths, wanted = sorted(found["completion_mask"].sum(dim=1).tolist()), sorted(work.lengths(step_of(trainer)))
        width = found["prompt_mask"].sum(dim=1).max().item()
        if lengths != wanted or width != work.prompt:
            raise ValueError(f"{width} + {lengths} tokens, not {work.prompt} + {wanted}")
        return found

    trainer._generate, trainer._generate_and_score_completions = timed_generate, timed_score

    class Steps(TrainerCallback):  # type: ignore[misc, unused-ignore]
        began = 0.0

        def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            self.began = meter.now()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            meter.split("rollout and score", "rollout", "score")
            done = int(state.global_step)
            meter.end_step(meter.now() - self.began, timed=budget.is_timed(done - 1), lengths=work.lengths(done))
            control.should_training_stop |= budget.is_spent(meter.report)

    trainer.remove_callback(PrinterCallback)
    trainer.add_callback(Steps())


def resolved(arguments: Any) -> dict[str, Any]:
    """All configuration values of plain types."""
    plain = (str, int, float, bool, type(None), list, dict)
    return {key: value for key, value in sorted(vars(arguments).items()) if isinstance(value, plain)}
