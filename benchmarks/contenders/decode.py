"""Engines alone: rollouts of the workload without a trainer."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.contenders.lengths import counted
from benchmarks.contenders.report import Budget, Meter
from benchmarks.contenders.workload import LORA_TARGETS, SHAPES, Workload


def run(work: Workload, model: Path, engine: str, job: dict[str, Any], meter: Meter, budget: Budget) -> None:
    if engine in ("vllm-nf4", "vllm-bf16"):
        return run_vllm(work, model, engine == "vllm-nf4", job["vllm_share"], meter, budget)
    from benchmarks.contenders.ours import Session

    session = Session(work, model, engine, job["overrides"])
    for_steps(work, session.rollout, meter, budget)
    session.close()
    return None


def for_steps(work: Workload, rollout: Any, meter: Meter, budget: Budget) -> None:
    done = 0
    while not budget.is_spent(meter.report):
        done += 1
        began = meter.now()
        with meter.phase("rollout"):
            rollout(done)
        meter.end_step(meter.now() - began, timed=budget.is_timed(done - 1), lengths=work.lengths(done))


def run_vllm(work: Workload, model: Path, quantized: bool, share: float, meter: Meter, budget: Budget) -> None:
    """vLLM with CUDA graphs for decoding, the workload's adapter and no tokenizer; otherwise its defaults."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    from vllm import LLM, SamplingParams
    from vllm.lora.request import LoRARequest

    settings: dict[str, Any] = {
        "dtype": "bfloat16",
        "max_model_len": work.prompt + work.completion,
        "gpu_memory_utilization": share,
        "max_num_seqs": max(8, work.group_size),
        "enable_lora": True,
        "max_lora_rank": work.lora_rank,
        "skip_tokenizer_init": True,
        "seed": 0,
        "compilation_config": {
            "mode": 0,
            "cudagraph_mode": "FULL_DECODE_ONLY",
            "cudagraph_capture_sizes": sorted({1, 2, 4, 8, work.group_size}),
        },
    }
    if quantized:
        settings["quantization"] = "bitsandbytes"
    meter.report.settings = settings
    with tempfile.TemporaryDirectory(prefix="longhaul-lora-") as folder:
        write_adapter(work, Path(folder))
        llm = LLM(str(model), **settings)
        adapter = LoRARequest("adapter", 1, folder)
        sampling = SamplingParams(temperature=1.0, logprobs=0, detokenize=False)

        def rollout(step: int) -> None:
            wanted = work.lengths(step)
            prompts = [{"prompt_token_ids": list(work.prompt_ids(step))} for _ in wanted]
            outputs = counted(llm.generate, lambda: wanted)(prompts, sampling, lora_request=adapter, use_tqdm=False)
            lengths = tuple(len(one.outputs[0].token_ids) for one in outputs)
            if lengths != wanted:
                raise ValueError(f"completions have {lengths} tokens, not {wanted}")

        for_steps(work, rollout, meter, budget)


def write_adapter(work: Workload, folder: Path) -> None:
    """Write LoRA in PEFT's format, with a nonzero B."""
    import torch
    from safetensors.torch import save_file

    shape = SHAPES[work.shape]
    hidden, heads = shape["hidden_size"], shape["num_attention_heads"]
    head = shape.get("head_dim") or hidden // heads
    keys = head * shape["num_key_value_heads"]
    outs = {"q_proj": head * heads, "k_proj": keys, "v_proj": keys, "o_proj": hidden}
    ins = {"o_proj": head * heads}
    generator = torch.Generator().manual_seed(1)
    tensors: dict[str, torch.Tensor] = {}
    for layer in range(shape["num_hidden_layers"]):
        for name in LORA_TARGETS:
            prefix = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            a = torch.randn(work.lora_rank, ins.get(name, hidden), generator=generator) * 0.02
            b = torch.randn(outs[name], work.lora_rank, generator=generator) * 0.01
            tensors |= {f"{prefix}.lora_A.weight": a.bfloat16(), f"{prefix}.lora_B.weight": b.bfloat16()}
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": "",
        "r": work.lora_rank,
        "lora_alpha": work.lora_alpha,
        "lora_dropout": 0.0,
        "target_modules": list(LORA_TARGETS),
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
