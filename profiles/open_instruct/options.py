"""What open-instruct's YAML may say, upstream and in the guide's fork, each at one commit. (pure)

Read from the fields of the dataclasses that its `grpo_fast.py` hands to its parser. A name that is here and not there,
or the reverse, makes that parser refuse the whole file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

UPSTREAM_COMMIT = "e6c3044aa6201c8bfa4573c1b03142af599e730d"
FORK_COMMIT = "193cd99b8a4bf9c566a2fc2004d376ea782399f8"
Kind = Literal["int", "float", "bool", "text", "ints", "texts"]


def _named(by_kind: Mapping[Kind, str]) -> dict[str, Kind]:
    return {name: kind for kind, names in by_kind.items() for name in names.split()}


BOTH = _named(
    {
        "int": """
            async_steps backend_timeout checkpoint_state_freq deepspeed_stage deepspeed_zpg
            keep_last_n_checkpoints kl_estimator llm_judge_max_context_length llm_judge_max_tokens
            llm_judge_timeout local_eval_every lora_alpha lora_r max_length_verifier_max_length
            max_prompt_token_length num_epochs num_mini_batches num_nodes num_samples_per_prompt_rollout
            num_training_steps num_unique_prompts_rollout oe_eval_gpu_multiplier oe_eval_max_length
            pack_length per_device_train_batch_size queue_dashboard_port ref_policy_update_freq
            response_length save_freq seed sequence_parallel_size total_episodes vllm_num_engines
            vllm_tensor_parallel_size world_size
        """,
        "float": """
            alpha beta clip_higher clip_lower code_max_execution_time code_pass_rate_reward_threshold
            learning_rate llm_judge_temperature lora_dropout max_grad_norm max_possible_score
            no_resampling_pass_rate non_stop_penalty_value r1_style_format_reward temperature
            verification_reward vllm_gpu_memory_utilization vllm_top_p warmup_ratio weight_decay
        """,
        "bool": """
            active_sampling add_bos additive_format_reward apply_r1_style_format_reward
            apply_verifiable_reward cache_dataset_only code_apply_perf_penalty dataset_skip_cache
            deepspeed_offload_optimizer deepspeed_offload_param enable_queue_dashboard eval_on_step_0
            filter_zero_std_samples fused_optimizer gather_whole_model gradient_checkpointing
            inflight_updates load_in_4bit load_in_8bit load_ref_policy mask_tool_use
            mask_truncated_completions non_stop_penalty only_reward_good_outputs
            pass_tools_to_chat_template push_to_hub record_entropy save_traces send_slack_alerts
            set_weight_decay_on_bias_and_norm single_gpu_mode trust_remote_code try_auto_save_to_beaker
            try_launch_beaker_eval_jobs_on_weka use_bnb_nested_quant use_cache use_fast use_peft
            use_slow_tokenizer use_vllm_logprobs verbose vllm_enable_prefix_caching vllm_enforce_eager
            with_tracking
        """,
        "text": """
            advantage_normalization_type attn_implementation bnb_4bit_quant_type chat_template_name
            checkpoint_state_dir code_api_url dataset_cache_mode dataset_config_eval_hash
            dataset_config_hash dataset_local_cache_dir dtype eval_priority eval_workspace exp_name
            get_tokenizer_fn ground_truths_key gs_bucket_path gs_checkpoint_state_dir hf_entity
            hf_repo_id hf_repo_revision hf_repo_url llm_judge_model lora_task_type loss_denominator
            loss_fn lr_scheduler_type model_name_or_path model_revision oe_eval_beaker_image output_dir
            remap_verifier rollouts_save_path run_name sft_messages_key system_prompt_override_file
            tokenizer_name tokenizer_name_or_path tokenizer_revision tool_parser_type vllm_sync_backend
            wandb_entity
        """,
        "ints": """
            num_learners_per_node
        """,
        "texts": """
            dataset_mixer_eval_list dataset_mixer_eval_list_splits dataset_mixer_list
            dataset_mixer_list_splits dataset_transform_fn lora_modules_to_save lora_target_modules
            oe_eval_tasks stop_strings tokenizer_files_hash tool_call_names tool_configs tools
        """,
    }
)
"""Option -> kind of its value, of those that both have."""
UPSTREAM_ALONE = _named(
    {
        "int": """
            checkpointing_steps cp_degree data_loader_seed ephemeral_save_interval eval_pass_at_k
            eval_response_length fsdp_num_replicas fsdp_shard_degree gradient_accumulation_steps
            logging_steps max_active_rubrics max_seq_length max_steps max_train_steps
            per_turn_max_tokens pool_size
        """,
        "float": """
            activation_memory_budget eval_top_p rho_clamp_lower_bound rho_clamp_upper_bound
            rho_mask_lower_bound rho_mask_upper_bound
        """,
        "bool": """
            apply_evolving_rubric_reward compile_model deepspeed_checkpoint_load_universal
            rho_mask_sequence_level rho_mask_tv_divergence use_rho_correction
        """,
        "text": """
            activation_checkpointing_mode cache_evolving_rubric_data_dir cp_strategy model_dtype
            report_to resume_from_checkpoint reward_aggregator vllm_attention_backend wandb_group_name
            wandb_project
        """,
        "texts": """
            activation_checkpointing_modules
        """,
    }
)
"""Those that the fork has not."""
FORK_ALONE = _named(
    {
        "int": """
            length_penalty_min_threshold length_penalty_threshold max_tool_calls rm_batch_size
            rm_max_length rm_num_actors warm_up_steps
        """,
        "float": """
            length_penalty_coeff reward_hack_fraction reward_hack_legitimate_multiplier
            truncated_importance_sampling_ratio_cap
        """,
        "bool": """
            rm_enabled shuffle_eval_dataset track_hack_patterns
        """,
        "text": """
            format_reward_pattern resume_from reward_hack_prompts_path rm_dtype rm_model_name_or_path
            rm_model_revision rm_verifier_name wandb_project_name
        """,
        "texts": """
            hack_pattern_keys length_penalty_datasets reward_hack_methods reward_hack_prompt_ids
        """,
    }
)
"""Those that upstream has not."""
UPSTREAM: dict[str, Kind] = BOTH | UPSTREAM_ALONE
KNOWN: dict[str, Kind] = UPSTREAM | FORK_ALONE

RENAMED = {
    "truncated_importance_sampling_ratio_cap": "rho_clamp_upper_bound",
    "wandb_project_name": "wandb_project",
}
"""The fork's name -> upstream's, where the meaning is the same."""
WORDS = {"attn_implementation": {"sdpa": "torch", "flash_attention_2": "flash_2"}}
"""Option -> the fork's word for a value -> upstream's."""
DEFAULTS: dict[str, Any] = {
    "beta": 0.05,
    "checkpoint_state_freq": 200,  # the fork's is -1: none
    "deepspeed_offload_optimizer": False,
    "deepspeed_offload_param": False,
    "deepspeed_stage": 0,
    "deepspeed_zpg": 8,
    "gather_whole_model": True,
    "gradient_checkpointing": False,
    "load_ref_policy": True,
    "local_eval_every": 100,
    "max_prompt_token_length": 256,
    "model_name_or_path": "",
    "num_learners_per_node": [1],
    "num_samples_per_prompt_rollout": 4,
    "num_unique_prompts_rollout": 16,
    "pack_length": 512,
    "per_device_train_batch_size": 1,
    "push_to_hub": True,
    "response_length": 256,
    "save_freq": 200,
    "total_episodes": 100_000,
    "vllm_gpu_memory_utilization": 0.9,
    "vllm_num_engines": 1,
    "vllm_sync_backend": "nccl",
    "vllm_tensor_parallel_size": 1,
}
"""Upstream's, of the options that the planner reads."""
LEAST: dict[str, float] = {
    "beta": 0,
    "deepspeed_stage": 0,
    "deepspeed_zpg": 1,
    "max_prompt_token_length": 1,
    "num_learners_per_node": 1,
    "num_samples_per_prompt_rollout": 1,
    "num_unique_prompts_rollout": 1,
    "pack_length": 1,
    "per_device_train_batch_size": 1,
    "response_length": 1,
    "total_episodes": 0,
    "vllm_gpu_memory_utilization": 0.01,
    "vllm_num_engines": 1,
    "vllm_tensor_parallel_size": 1,
}
"""Smallest value of an option, or of each number in its list."""
