"""Tiny configs of every causal architecture that the installed transformers knows, and what becomes of each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from profiles.errors import ExitCode, LonghaulError
from profiles.schema import Model, Profile, Sampling
from profiles.text_part import is_composite
from workers.models import plain
from workers.models.policy import open_policy
from workers.rollout.engine import Request
from workers.rollout.engine import Sampling as Asked
from workers.rollout.native import NativeEngine
from workers.rollout.probe import probe, single_log_probs, trained_log_probs
from workers.rollout.select import engine_of

VOCABULARY = 272
WINDOW = 8
LAYERS = 4

_HEADS, _KEY_HEADS, _HEAD_DIM, _EXPERTS, _CHOSEN = 4, 2, 8, 4, 2
_WIDTH = _HEADS * _HEAD_DIM

_OF_SIZE: tuple[tuple[int, str], ...] = (
    (VOCABULARY, "vocab_size vocab_size_per_layer_input unpadded_vocab_size decoder_vocab_size"),
    (_WIDTH, """
        hidden_size d_model n_embd dim embedding_size word_embed_proj_dim input_size attention_hidden_size
        lru_width emb_dim backbone_hidden_size out_hidden_size embedding_dim hidden_size_global out_channels
        input_embedding_size output_embedding_size"""),
    (48, """
        intermediate_size ffn_dim decoder_ffn_dim encoder_ffn_dim ffn_hidden_size dff dim_ff mlp_dim n_inner
        intermediate_size_mlp feed_forward_size d_inner dense_intermediate_size expert_ffn_hidden_size"""),
    (24, """
        moe_intermediate_size shared_expert_intermediate_size shared_intermediate_size
        shared_experts_intermediate_size moe_shared_expert_intermediate_size"""),
    (LAYERS, """
        num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers depth num_blocks
        encoder_layers num_encoder_layers"""),
    (_HEADS, """
        num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads
        attention_heads num_decoder_attention_heads num_encoder_attention_heads swa_num_attention_heads
        linear_num_value_heads index_n_heads linear_num_heads"""),
    (_KEY_HEADS, """
        num_key_value_heads swa_num_key_value_heads num_kv_heads linear_num_key_heads
        num_global_key_value_heads"""),
    (_HEAD_DIM, """
        head_dim v_head_dim qk_nope_head_dim qk_rope_head_dim swa_head_dim global_head_dim
        linear_key_head_dim linear_value_head_dim index_head_dim dim_head attention_head_size kv_channels
        d_head linear_head_dim hidden_size_per_layer_input laurel_rank rotary_dim"""),
    (2 * _HEAD_DIM, "qk_head_dim kv_lora_rank q_lora_rank o_lora_rank attention_head_dim"),
    (_EXPERTS, "num_experts num_local_experts n_routed_experts moe_num_experts"),
    (_CHOSEN, "num_experts_per_tok num_experts_per_token moe_k moe_topk moe_top_k"),
    (1, """
        n_shared_experts num_shared_experts n_group topk_group first_k_dense_replace num_expert_group
        mamba_n_groups"""),
    (WINDOW, """
        sliding_window attention_window_size local_attention window_size sliding_window_size
        attention_chunk_size"""),
    (4096, """
        max_position_embeddings n_positions n_ctx max_seq_len model_max_length context_length
        max_target_positions"""),
    (16, "mamba_d_state mamba_chunk_size chunk_size ssm_state_size image_size patch_size"),
)  # fmt: skip
SIZES = {name: size for size, names in _OF_SIZE for name in names.split()}
"""Size field -> its tiny value."""
_LAYER_COUNTS, _HEAD_COUNTS = (
    next(names.split() for _, names in _OF_SIZE if first in names.split())
    for first in ("num_hidden_layers", "num_attention_heads")
)


def tiny(kind: str) -> Any:
    """The default config of the model type `kind`, every size shrunk."""
    from transformers import CONFIG_MAPPING

    make = CONFIG_MAPPING[kind]
    changes = EXCEPTIONS.get(kind, {})
    default = make(**changes.get("begin", {})).to_dict()
    return make(**shrunk(default) | {k: v for k, v in changes.items() if k != "begin"})


def shrunk(default: Mapping[str, Any]) -> dict[str, Any]:
    """What to give a config class in place of its defaults. (pure)"""
    layers = next((default[name] for name in _LAYER_COUNTS if isinstance(default.get(name), int)), 0)
    heads = next((default[name] for name in _HEAD_COUNTS if isinstance(default.get(name), int)), 0)
    found: dict[str, Any] = {"initializer_range": 0.2}
    for name, value in default.items():
        if name.endswith(("eos_token_id", "bos_token_id", "pad_token_id")):
            found[name] = 256 if isinstance(value, int | list) or name[0] != "b" else value
        elif isinstance(value, dict) and value.get("model_type"):
            found[name] = {"model_type": value["model_type"]} | shrunk(value) | EXCEPTIONS.get(value["model_type"], {})
        elif name in SIZES and (name == "head_dim" or isinstance(value, int)) and not isinstance(value, bool):
            found[name] = SIZES[name]
        elif isinstance(value, list) and layers and len(value) == layers:
            kinds = [value[at] for at in sorted(value.index(one) for one in {str(one): one for one in value}.values())]
            found[name] = [SIZES.get(name, kinds[place % len(kinds)]) for place in range(LAYERS)]
    if default.get("num_key_value_heads") == heads:
        found["num_key_value_heads"] = _HEADS
    return found


_MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8}
_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
EXCEPTIONS: dict[str, dict[str, Any]] = {
    "bamba": {**_MAMBA, "attn_layer_indices": [1, 3]},
    "blt": {"encoder_hash_byte_group_vocab": 50},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dots1": {"n_shared_experts": 1, "n_routed_experts": 4, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "gemma3n_text": {"num_kv_shared_layers": 2},
    "dbrx": {"ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
             "attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 2.0}},
    "dots3_note_text": {"per_layer_config": {}, "head_dim": 16},
    "emu3": {"vocabulary_map": {"<image>": 270}, "vq_config": {
        "base_channels": 32, "channel_multiplier": [1], "num_res_blocks": 1, "attn_resolutions": [],
        "codebook_size": 16, "hidden_size": 32}},
    "granitemoehybrid": {**_MAMBA, "layer_types": ["mamba", "attention"] * 2},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "llama4_vision_model": {"vision_output_dim": 32, "projector_input_dim": 32, "projector_output_dim": 32},
    "longcat_flash": {"zero_expert_num": 2},
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp_text": {"indexer_n_heads": 4, "indexer_kv_heads": 2, "indexer_head_dim": 8, "indexer_budget": 8,
                       "indexer_compress_ratio": 1},
    "reformer": {"is_decoder": True, "axial_pos_shape": [64, 64], "axial_pos_embds_dim": [16, 16]},
    "roc_bert": {"shape_vocab_size": 300, "pronunciation_vocab_size": 300, "shape_embed_dim": 8,
                 "pronunciation_embed_dim": 8},
    "xlstm": {"num_heads": 2},
    "zamba": {"attention_hidden_size": 64, "attention_head_dim": 16},
    "zamba2": {"attention_hidden_size": 64, "attention_head_dim": 16},
    "zaya": {"num_experts_per_tok": 1},
}  # fmt: skip
"""Where sizes depend on each other in a way of their own. begin: without which the default config cannot be made."""


# --- what becomes of one ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """What the program does with an architecture. proof: the largest error of a log-prob. refusal: why it is not
    trained."""

    kind: str
    engine: str = ""
    proof: float = 0.0
    refusal: str = ""

    @property
    def bound(self) -> float:
        return LOOSE.get(self.kind, BOUND)

    @property
    def text(self) -> str:
        """A line of docs/models.md. Errors differ from machine to machine, so it gives the bound."""
        if self.refusal:
            return f"| {self.kind} | refused | {self.refusal} |"
        return f"| {self.kind} | {self.engine} | log-probs within {self.bound:g} |"


LARGEST = 4_000_000
LOOSE = {"nemotron_h": 1e-3, "qwen3_5_moe": 5e-4}
"""In transformers itself their single steps and their whole pass differ by so much: recurrent layers add in another
order, which moves what a router weighs."""
BOUND = 5e-5
PROFILE_TOKENS = {"max_prompt_tokens": 40, "max_completion_tokens": 24}
REQUESTS = [
    Request(tuple((7919 * place + 13) % 256 for place in range(3 * WINDOW)), 1),
    Request(tuple((7919 * place + 13) % 256 for place in range(3 * WINDOW)), 2),
    Request(tuple((31 * place + 7) % 256 for place in range(WINDOW + 3)), 3),
]


def kinds() -> list[str]:
    """Every architecture that transformers has a causal model for."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def write(kind: str, directory: Path) -> Any:
    """A checkpoint of `kind` with random weights, all its parts, and a tokenizer. Returns the model that transformers
    made, in float32; None if it cannot make it, and then the checkpoint is a config alone."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM, AutoModelForImageTextToText

    write_tokenizer(directory)
    try:
        config = tiny(kind)
        whole: Any = AutoModelForImageTextToText if is_composite(config.to_dict()) else AutoModelForCausalLM
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            with torch.device("meta"):
                size = sum(one.numel() for one in whole.from_config(config).parameters())
            assert size < LARGEST, f"{size:,} parameters are not tiny"
            model = whole.from_config(config, dtype=torch.float32).eval()
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.ndim == 1:  # norms, biases, time steps
                        parameter.add_(0.3 * torch.randn_like(parameter))
    except AssertionError:
        raise
    except Exception:  # of any kind: a default that does not fit itself, a library that is not installed
        content = CONFIG_MAPPING[kind].model_type and {"model_type": kind, "vocab_size": VOCABULARY}
        (directory / "config.json").write_text(json.dumps(content))
        save_file({"nothing": torch.zeros(1)}, directory / "model.safetensors", {"format": "pt"})
        return None
    model.save_pretrained(directory)
    return model


def outcome(kind: str, directory: Path) -> Row:
    """What becomes of the architecture, by the code that a worker runs at its start, and by a proof of its own.

    Raises AssertionError if it is neither right nor refused with a reason.
    """
    truth_model = write(kind, directory)
    knobs = Model(path=str(directory), dtype="float32")
    profile = Profile(name="walk", model=knobs, sampling=Sampling(engine="native", **PROFILE_TOKENS))
    try:
        policy = open_policy(profile, None, torch.device("cpu"))
        engine = engine_of(policy.model, profile, policy.tokenizer)
        row_tokens = plain.row_tokens_for(policy.model, 512)
        probe(policy.model, engine, profile, row_tokens=row_tokens)
    except LonghaulError as error:
        assert error.exit_code is ExitCode.INPUT and error.next_command
        return Row(kind, refusal=reason_in(error.what, directory))
    assert truth_model is not None, f"{kind}: no proof, because transformers made no model to compare with"
    rollouts = engine.generate(REQUESTS, Asked(max_new_tokens=WINDOW + 1, ignore_stop=True))
    trained = trained_log_probs(policy.model, rollouts, profile, row_tokens)
    worst = 0.0
    for rollout, by_trainer in zip(rollouts, trained, strict=True):
        truth = single_log_probs(truth_model, rollout, 1.0)
        for found in (torch.tensor(rollout.log_probs), by_trainer):
            worst = max(worst, float((found - truth).abs().max()))
    name = "own code" if isinstance(engine.engine, NativeEngine) else "plain transformers"
    return Row(kind, name, worst)


def reason_in(what: str, directory: Path) -> str:
    """The reason without this machine's folders and numbers, on one line."""
    text = " ".join(what.replace(f"{directory}/", "").replace(str(directory), "it").split())
    text = re.sub(r"by [0-9.e+-]+ nats a token, .*", "by more than rounding", text)
    return text.replace("|", "/") if len(text) <= 160 else f"{text[:157]}..."


def write_tokenizer(directory: Path) -> None:
    """Of single bytes, with a chat template."""
    from workers.models.random_init import CHAT_TEMPLATE, EOS, byte_tokenizer

    byte_tokenizer().save(str(directory / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast", "eos_token": EOS, "pad_token": EOS,
        "chat_template": CHAT_TEMPLATE,
    }  # fmt: skip
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))


# --- docs/models.md --------------------------------------------------------------------------------------------------

BEGIN, END = "<!-- walk: python -m tests.workers.walk -->\n", "<!-- /walk -->\n"


def rows_in(text: str) -> dict[str, str]:
    """Architecture -> its line in docs/models.md."""
    lines = text.partition(BEGIN)[2].partition(END)[0].split("| --- | --- | --- |\n")[-1].splitlines()
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines if line}


def with_rows(text: str, rows: list[str]) -> str:
    """docs/models.md with these lines."""
    from transformers import __version__

    before, _, rest = text.partition(BEGIN)
    head = f"| architecture (transformers {__version__}) | computed by | proof, or why it is refused |\n"
    lines = "".join(f"{one}\n" for one in rows)
    return f"{before}{BEGIN}\n{head}| --- | --- | --- |\n{lines}\n{END}{rest.partition(END)[2]}"


def main() -> None:
    from tempfile import TemporaryDirectory

    rows = []
    for kind in kinds():
        with TemporaryDirectory() as directory:
            found = outcome(kind, Path(directory))
        assert found.refusal or found.proof < found.bound, found
        rows.append(found.text)
    page = Path("docs/models.md")
    page.write_text(with_rows(page.read_text(), rows))


if __name__ == "__main__":
    main()
