"""Every knob of a run: type, default, unit, bounds, one sentence of why. (pure)

A knob may carry `FIXED` (it cannot change once a run has begun: the checkpoint would no longer fit) or `FREE` (it may
change on any resume). All others may change with `run --accept-changes`. Sections that are long have a module of their
own beside this one.
"""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from profiles.azr import Azr as Azr
from profiles.built_in import BUILT_IN
from profiles.grpo import Grpo as Grpo
from profiles.launch import Launch as Launch
from profiles.memory import Memory as Memory
from profiles.notify import Notify as Notify
from profiles.open_instruct.section import OpenInstruct as OpenInstruct
from profiles.section import FIXED, FREE, Count, Positive, Seconds, Share
from profiles.section import Section as Section
from profiles.verl import Verl as Verl


class Run(Section, frozen=True):
    """[run]: how long a run is, in what portions it works, and from which seed."""

    seed: Annotated[int, Meta(ge=0), FIXED] = 0
    """Root of every random stream of the run: (seed, step, purpose) gives each stream its own."""
    worker: Annotated[Literal["azr", "grpo", "verl", "open_instruct", "fake"], FIXED] = "azr"
    """`azr`: self-play. `grpo`: problems with known answers. `verl`: those by verl (docs/verl.md). `open_instruct`:
    by open-instruct (docs/open-instruct.md). `fake`: two floats, to prove durability."""
    max_cycles: Annotated[Count, FREE] = 0
    """Number of cycles after which the run is finished; 0: go on until stagnant, exhausted or stopped."""
    max_hours: Annotated[float, Meta(ge=0), FREE] = 0.0
    """Hours of seeding and training after which the run is finished, at the end of the cycle; 0: no limit."""
    until: Annotated[str, FREE] = ""
    """Held-out score that finishes the run, as in `mean>=0.9` or `pocket/ind.sampled_accuracy>0.8`; empty: none."""
    phases: Annotated[tuple[Literal["seed", "train"], ...], FREE] = ("seed", "train")
    """`seed` fills the buffers, `train` follows. A run with only `seed` stops there, and resumes once it has both."""
    steps_per_cycle: Positive = 20
    """Optimiser steps of one train worker between validations. A worker does exactly this many."""
    checkpoint_every: Annotated[Positive, FREE] = 5
    """Steps between checkpoints; a crash costs at most these. The last step of a cycle always has one."""
    threads: Annotated[Count, FREE] = 0
    """CPU threads of a worker's tensor library; 0: all cores. Another number may change the last bits of results."""
    deterministic: Annotated[bool, FREE] = True
    """Use only kernels whose result does not depend on timing, so that a resume is bit-exact. A model that needs other
    kernels is refused (66)."""
    device: Annotated[Literal["auto", "cpu", "cuda"], FREE] = "auto"
    """Device of the model; `auto` uses the GPU if there is one."""
    gpus: Annotated[Positive, FREE] = 1
    """GPUs of a host that train together; on a CPU, the number of processes. docs/models.md says what is divided."""
    overlap: Annotated[Literal[0, 1], FIXED] = 0
    """1: a step's rollouts are drawn beside the update before it, with the weights before that update, and importance
    weights correct them. For `azr` and `grpo` on one GPU; docs/grpo.md."""
    sampler_device: Annotated[str, FREE] = ""
    """With `overlap`: a second GPU, such as `cuda:1`, that holds a copy of the policy and draws all rollouts; `cpu`
    beside a trainer on the CPU. Empty: the trainer's own device draws them."""
    hosts: Annotated[Positive, FREE] = 1
    """Hosts that train together, with `gpus` each; more than one needs a launcher that gives them, such as `slurm`."""

    @property
    def ranks(self) -> int:
        """Processes that train together, one for each GPU of each host."""
        return self.hosts * self.gpus

    @property
    def cards(self) -> int:
        """GPUs that a host needs: those that train, and all up to the one that draws rollouts."""
        kind, _, number = self.sampler_device.partition(":")
        return max(self.gpus, int(number) + 1) if kind == "cuda" and number.isdecimal() else self.gpus


class Model(Section, frozen=True):
    """[model]: which weights are trained, and how they are loaded."""

    path: Annotated[str, FIXED] = "pocket"
    """`pocket` or `pocket-words`: built in. Else a checkpoint's directory, or OWNER/NAME[@REVISION] of the hub."""
    revision: Annotated[str, FIXED] = ""
    """Commit of a model of the hub. The run fills it in when it begins, so that a resume reads the same files."""
    trust_remote_code: Annotated[bool, FIXED] = False
    """Run Python code of the model's directory, where transformers lacks the architecture: as you, not sandboxed."""
    prompt_style: Annotated[Literal["pocket", "azr", "azr-chat", "verbatim", "chat", "boxed", "boxed-chat"], FIXED] = (
        "pocket"
    )
    """Self-play: `azr`, `azr-chat` by a chat template. GRPO: `verbatim`, `chat` add no words; `boxed` asks for
    \\boxed{}."""
    thinking: Annotated[Literal["template", "on", "off"], FIXED] = "template"
    """Switch of chat templates that have one (Qwen 3, SmolLM 3, Granite). `template`: what it does by itself."""
    dtype: Annotated[Literal["float32", "bfloat16"], FIXED] = "float32"
    """Precision of weights in memory. Weights trained in `bfloat16` have a float32 copy for the optimiser."""
    random_init: Annotated[
        Literal[
            "off",
            "qwen2-tiny",
            "qwen2.5-0.5b",
            "qwen2.5-1.5b",
            "r1-qwen-1.5b",
            "qwen2.5-3b",
            "qwen2.5-7b",
            "qwen3-tiny",
            "qwen3-0.6b",
            "qwen3-1.7b",
            "qwen3-4b",
            "qwen3-8b",
            "llama-tiny",
            "llama-3.2-1b",
            "llama-3.2-3b",
            "gemma3-tiny",
            "gemma-3-1b",
            "smollm3-3b",
            "qwen3.5-0.8b",
        ],
        FIXED,
    ] = "off"
    """Instead of `path`: random weights of that shape, drawn from the seed, and a byte tokenizer. For rehearsals."""
    quantization: Annotated[Literal["none", "nf4"], FIXED] = "none"
    """`nf4`: frozen linear layers in 4 bits (bitsandbytes), about 0.52 bytes a weight instead of 2 (QLoRA)."""
    cache_gib: Annotated[float, Meta(ge=0), FREE] = 64.0
    """Disk for bases in 4 bits, kept for later starts in $LONGHAUL_CACHE (~/.cache/longhaul). 0: quantise each time."""
    gradient_checkpointing: Annotated[bool, FREE] = False
    """Recompute a layer's activations in the backward pass: a third slower, memory of one layer instead of all."""
    offload_inputs: Annotated[bool, FREE] = False
    """With `gradient_checkpointing`: the layers' inputs wait in host memory for the backward pass. For long rows."""
    keep_gib: Annotated[float, Meta(ge=0), FREE] = 0.0
    """With `gradient_checkpointing`: memory for layers that are kept, not recomputed. Faster updates. All weights:
    on one GPU only."""
    fp8: bool = False
    """An update's products with frozen weights in 8 bits (e4m3), from the RTX 40 series on. A worker first compares the
    gradient with that in bfloat16, and falls back to it if they differ by more than rounding explains."""


class Adapter(Section, frozen=True):
    """[adapter]: LoRA, small trained matrices beside frozen weights. A checkpoint then holds only the adapter."""

    rank: Annotated[Count, FIXED] = 0
    """Columns of each pair of matrices (r); memory grows with it. 0: no adapter, all weights are trained."""
    alpha: Annotated[float, Meta(gt=0), FIXED] = 64.0
    """The product of the pair is scaled by alpha / rank; alpha is usually 2 times rank."""
    rslora: Annotated[bool, FIXED] = False
    """Scale by alpha / sqrt(rank) instead (arXiv 2312.03732), so that a large rank keeps its effect."""
    implementation: Annotated[Literal["own", "peft"], FREE] = "own"
    """The code that computes with the matrices. `own` works in the model's precision, with fewer kernels."""
    targets: Annotated[tuple[str, ...], FIXED] = (
        "q_proj",
        "k_proj",
        "v_proj",
        "o_proj",
        "gate_proj",
        "up_proj",
        "down_proj",
    )
    """Linear layers that get an adapter, by the last part of their name; an unknown name is refused."""
    dropout: Annotated[Share, FIXED] = 0.0
    """Must stay 0: rollouts are drawn without dropout, so it would turn the ratio into noise before any update."""


class Sampling(Section, frozen=True):
    """[sampling]: how rollouts are drawn."""

    engine: Annotated[Literal["native", "hf", "continuous", "vllm", "auto"], FREE] = "native"
    """`native`: our own decoder. `hf`, `continuous`: transformers'. `auto`: the fastest that fits. docs/engines.md."""
    fallback: Annotated[tuple[Literal["native", "hf", "continuous"], ...], FREE] = ()
    """Engines that take over, in this order, if `engine` cannot start or go on; empty: the run stops and says why."""
    max_rows: Annotated[Positive, FREE] = 512
    """Rollouts that decode concurrently; their cache grows with this. `vllm` has its own knobs instead."""
    overcommit: Annotated[float, Meta(ge=1, le=16), FREE] = 1.0
    """Above 1, `native` on a GPU lets so many times `max_rows` rollouts share the cache of `max_rows`, in pages. For
    answers that are mostly shorter than `max_completion_tokens`. docs/engines.md."""
    prompt_lookup_tokens: Annotated[int, Meta(ge=0, le=7), FREE] = 0
    """Above 0, a captured step of at most 16 rows also reads so many guesses behind each row's last token, looked up in
    what it has read, and keeps those that it would have drawn; the tokens stay the same. docs/engines.md."""
    temperature: Annotated[float, Meta(gt=0, le=2)] = 1.0
    """Softmax temperature. log_probs are computed at the same temperature, or the ratio is biased."""
    max_prompt_tokens: Positive = 96
    """Prompts longer than this are redrawn with fewer references; they are never cut."""
    max_completion_tokens: Positive = 96
    """Tokens that a rollout may add to its prompt. Memory grows with the batch times this."""


class Vllm(Section, frozen=True):
    """[vllm]: settings of the engine `vllm` (extra `vllm`, one NVIDIA GPU); no other engine reads them."""

    gpu_memory_utilization: Annotated[float, Meta(gt=0, le=1), FREE] = 0.4
    """Share of the GPU's memory for its weights and cache while it is awake. The trainer's part must fit beside it."""
    max_num_seqs: Annotated[Positive, FREE] = 256
    """Rollouts that decode concurrently."""
    max_num_batched_tokens: Annotated[Positive, FREE] = 8192
    """Tokens of one forward pass, prompts included; at least `max_num_seqs`."""
    enable_prefix_caching: Annotated[bool, FREE] = True
    """Read a prompt once for all its rollouts. A change of the weights empties the cache."""
    enforce_eager: Annotated[bool, FREE] = False
    """True: no CUDA graphs. vLLM starts sooner, needs less memory and decodes slower."""
    sleep: Annotated[bool, FREE] = True
    """Free the GPU memory of its weights and cache while the trainer works."""
    dtype: Annotated[Literal["bfloat16", "float16", "float32"], FREE] = "bfloat16"
    """Precision of its copy of the weights. If it differs from the trainer's, `optimizer.tis_cap` corrects for that."""


class Optimizer(Section, frozen=True):
    """[optimizer]: the policy update."""

    kind: Annotated[Literal["adamw", "adamw8bit", "paged_adamw8bit"], FIXED] = "adamw"
    """Moments in float32 (8 bytes a weight), in 8 bits (2 bytes; bitsandbytes), or in 8-bit pages that can leave the
    GPU."""
    offload: Annotated[bool, FIXED] = False
    """Keep moments and the float32 copy of the weights in host memory and update there: slower, but frees GPU
    memory."""

    learning_rate: Annotated[float, Meta(gt=0)] = 2e-4
    """AdamW's step size after warm-up."""
    warmup_steps: Count = 5
    """Steps over which the learning rate rises linearly from 0."""
    final_learning_rate: Annotated[float, Meta(ge=0)] = 0.0
    """Learning rate at and after `decay_steps`; unused if that is 0."""
    decay_steps: Count = 0
    """Step at which linear decay to `final_learning_rate` ends; 0: no decay."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's decay rates of the two moments."""
    weight_decay: Annotated[float, Meta(ge=0)] = 0.0
    """AdamW's weight decay, per step and unit of learning rate."""
    max_grad_norm: Annotated[float, Meta(gt=0)] = 1.0
    """Gradients are scaled down to this norm."""
    clip_ratio_low: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    """How far below 1 the ratio may go before its gradient is cut."""
    clip_ratio_high: Annotated[float, Meta(gt=0)] = 0.2
    """How far above 1 the ratio may go before its gradient is cut."""
    tis_cap: Annotated[float, Meta(ge=-1)] = -1.0
    """Largest weight in truncated importance sampling; 0: off; -1: 2 (`sequence_mask` 3), off if engines are exact."""
    mismatch_limit: Annotated[float, Meta(ge=-1), FREE] = -1.0
    """`mismatch_mean` in nats that ends the run; 0: never; -1: .01 in float32, .25 if weights have fewer bits."""
    entropy_coef: float = 0.0
    """Weight of the entropy bonus: this times the mean token entropy is subtracted from the loss."""
    updates_per_step: Positive = 1
    """Minibatches into which a step's rollouts are split, each with its own optimiser update."""
    micro_batch_size: Positive = 128
    """Rollouts of one forward pass. Memory grows with it; the result changes only by rounding."""
    row_tokens: Positive = 128
    """Tokens of a row into which sequences are packed. Rollouts in a row share their prompt: raise it for long ones."""
    cuda_graphs: bool = True
    """Capture passes of training and over prompts as CUDA graphs if launching them takes longer. With
    `gradient_checkpointing`; our own adapter, or all weights on one GPU."""


class Sandbox(Section, frozen=True):
    """[sandbox]: what a program may use that the model wrote."""

    jobs: Annotated[Positive, FREE] = 2
    """Programs that run concurrently."""
    cpu_s: Seconds = 2.0
    """CPU seconds of one program. This limit decides that a program takes too long."""
    wall_s: Seconds = 10.0
    """Wall seconds of one program, as a safety net for programs that sleep."""
    memory_mb: Positive = 512
    """Address space of one program, in MiB."""
    modules: tuple[str, ...] = ()
    """Modules that programs may import besides the pure ones in docs/sandbox.md. They run as trusted code."""
    require: Annotated[tuple[Literal["landlock", "seccomp", "userns"], ...], FREE] = ("landlock", "seccomp")
    """Layers that must work before a program of the model runs."""
    allow_weak: Annotated[bool, FREE] = False
    """True: run programs although a required layer is missing. For machines that hold nothing of value."""


class Validation(Section, frozen=True):
    """[validation]: held-out problems between cycles."""

    suites: Annotated[tuple[str, ...], Meta(min_length=1)] = (BUILT_IN["pocket"].suite,)
    """Held-out suites (docs/evaluation.md), or `module:NAME` for one of your own; none can enter the buffers."""
    examples_per_task: Positive = 300
    """Problems of each task: always the same ones, chosen by hash, with a share for each stratum."""
    data: Annotated[str, FREE] = ""
    """Folder of the data files; empty: the folder in the environment variable LONGHAUL_DATA."""
    all_within: Annotated[Share, FREE] = 0.05
    """Ask all problems of a suite if that takes less than this share of the training time between validations; 0:
    never."""
    every: Annotated[Positive, FREE] = 1
    """Cycles between validations; the first and the last checkpoint are always validated."""
    sampled: bool = True
    """Also sample one answer per problem at temperature 1. Its accuracy moves long before the greedy one, a step
    function."""
    overlap: Annotated[Literal[0, 1], FREE] = 0
    """1: meanwhile the next cycle's worker trains, but saves nothing until the result is there. It has loaded the model
    before, beside training. Needs the memory of two processes; docs/operations.md."""


class Stagnation(Section, frozen=True):
    """[stagnation]: when a run no longer improves or no longer finds new tasks (docs/operations.md has the rule)."""

    patience_cycles: Annotated[Positive, FREE] = 24
    """Validated cycles over which the rule looks for a trend; more if noise could hide `min_progress`."""
    min_progress: Annotated[float, Meta(gt=0, le=1), FREE] = 0.013
    """Rise of held-out accuracy in 10 cycles that is worth waiting for. The run goes on if noise could hide such a
    rise."""
    min_cycles: Annotated[Count, FREE] = 6
    """Cycles before the first verdict."""
    min_new_share: Annotated[Share, FREE] = 0.05
    """A cycle with fewer new valid distinct programs per proposal than this is poor in data."""
    min_learnable_share: Annotated[Share, FREE] = 0.05
    """A cycle whose share of proposals with a solve rate strictly between 0 and 1 is below this is poor in data."""
    poor_cycles: Annotated[Positive, FREE] = 3
    """Poor cycles in a row after which the run is out of data."""
    on_plateau: Annotated[Literal["stop", "reseed", "continue"], FREE] = "stop"
    """What to do on a plateau. `reseed` consolidates the buffers and restarts self-play from them."""
    on_no_data: Annotated[Literal["stop", "reseed", "continue"], FREE] = "reseed"
    """What to do if the run finds few new tasks while accuracy does not rise."""
    on_collapse: Annotated[Literal["stop", "continue"], FREE] = "stop"
    """What to do if held-out accuracy falls by 10 points, or by half, and stays there for 3 validated cycles."""
    max_reseeds: Annotated[Count, FREE] = 2
    """Reseeds of one run; after them `reseed` means stop."""


class Columns(Section, frozen=True):
    """[data.columns]: which columns of GRPO's data hold what. All other columns reach rewards under their own names."""

    prompt: Annotated[str, FIXED] = ""
    """Text, or a list of chat messages; empty: `prompt`, else `question`."""
    messages: Annotated[str, FIXED] = ""
    """A list of chat messages (role, content) in place of the prompt; empty: `messages` where there is no prompt."""
    answer: Annotated[str, FIXED] = ""
    """The right answer; empty: `answer`."""
    tests: Annotated[str, FIXED] = ""
    """Tests for programs; empty: `tests`."""


class Data(Section, frozen=True):
    """[data]: the problems of GRPO, or a finite source of tasks that replaces the proposals of self-play."""

    tasks: Annotated[str | tuple[str, ...], FIXED] = ""
    """File (self-play: JSONL, docs/data.md), for GRPO also a folder, `hf:owner/name`, or several; empty: own proposals,
    for GRPO `validation.data`."""
    weights: Annotated[tuple[Annotated[float, Meta(gt=0)], ...], FIXED] = ()
    """Shares of the draws of each epoch, one for each of several `tasks`; empty: each problem once."""
    held_out: Annotated[float, Meta(ge=0, lt=1), FIXED] = 0.0
    """Share of the problems that never train, by a hash of their prompt; the suite `held-out` asks them."""
    columns: Columns = Columns()
    on_exhausted: Annotated[Literal["reshuffle", "stop"], FREE] = "reshuffle"
    """At the end of the file: begin a new epoch in another order, or finish the run."""
    sources: tuple[str, ...] = ()
    """Tasks for the first buffers, until the first checkpoint: files, runs, `previous` (this profile's newest earlier
    run)."""
    hand_on: Annotated[bool, FREE] = True
    """After the last cycle, run every task once more and write it to `data/next.jsonl`, as input for another run."""

    @property
    def names(self) -> tuple[str, ...]:
        """The files of `tasks`; empty if there is none."""
        if isinstance(self.tasks, str):
            return (self.tasks,) if self.tasks else ()
        return self.tasks


class Retention(Section, frozen=True):
    """[retention]: which checkpoints stay besides the head, its ancestors and the best."""

    keep_ancestors: Annotated[int, Meta(ge=1), FREE] = 2
    """Number of ancestors of the head that stay."""
    keep_every: Annotated[Count, FREE] = 10
    """Keep the last checkpoint of every Nth cycle for good; 0: none."""
    keep_cycles: Annotated[Count, FREE] = 200
    """Newest cycles whose logs, specs and events stay as files; 0: all. The store keeps what older ones did."""
    scrub_mb_per_s: Annotated[Count, FREE] = 20
    """MB read each second while the master hashes kept checkpoints again, once a day, to find what rotted; 0: none."""
    keep_rollout_steps: Annotated[Count, FREE] = 0
    """Committed steps whose rollout files stay for you to read. Those not yet committed always stay."""
    on_small_disk: Annotated[Literal["refuse", "warn"], FREE] = "refuse"
    """If less disk is free than the run may need: refuse to start, or warn and start regardless."""
    on_full_disk: Annotated[Literal["pause", "stop"], FREE] = "pause"
    """If the disk is full: wait until there is room and go on, or end the run with exit code 73."""


class Trackers(Section, frozen=True):
    """[trackers]: curves for other programs, from committed steps and validations. No tracker can stop a run."""

    use: Annotated[tuple[Literal["tensorboard", "wandb", "trackio"], ...], FREE] = ("tensorboard",)
    """`tensorboard` writes into the run directory if TensorBoard is installed. List W&B and trackio to use them."""
    project: Annotated[str, FREE] = "longhaul"
    """Project under which W&B and trackio list the run."""
    wandb_mode: Annotated[Literal["online", "offline"], FREE] = "online"
    """`offline`: W&B's files stay in the run directory, for `wandb sync`."""


class Timeouts(Section, frozen=True):
    """[timeouts]: how long a worker may be silent before it counts as hung. Durations use the monotonic clock."""

    startup_s: Annotated[Seconds, FREE] = 180.0
    """From the start of the process to `ready`; plus 1 s per 100 MB of model."""
    heartbeat_s: Annotated[Seconds, FREE] = 90.0
    """Silence of the heartbeat thread."""
    step_min_s: Annotated[Seconds, FREE] = 600.0
    """Shortest deadline of a step; the deadline is max(this, step_factor * median of the last 20 steps)."""
    step_factor: Annotated[float, Meta(ge=2), FREE] = 8.0
    """Multiple of the median step time after which a step counts as hung."""
    checkpoint_s: Annotated[Seconds, FREE] = 60.0
    """Shortest deadline of a checkpoint; plus 1 s per 20 MB."""
    kill_s: Annotated[Seconds, FREE] = 5.0
    """Wait between asking a worker to abort and KILL. Workers ignore TERM, because the master ends them."""
    paused_s: Annotated[Seconds, FREE] = 300.0
    """How long the worker of a paused run keeps the GPU. It then checkpoints and ends; `resume` starts another."""


class Retry(Section, frozen=True):
    """[retry]: what happens after a failed attempt."""

    backoff_s: Annotated[Seconds, FREE] = 2.0
    """Wait before the second attempt; doubles for each further one."""
    backoff_max_s: Annotated[Seconds, FREE] = 300.0
    """Longest wait."""
    max_without_progress: Annotated[Positive, FREE] = 5
    """Failed attempts in a row without a new checkpoint that end the run."""
    max_same_failure: Annotated[Positive, FREE] = 3
    """Failures of one class at one step that end the run. The cause is then data or numbers, and would return."""


class Fake(Section, frozen=True):
    """[fake]: knobs of the durability trainer; no other worker reads them."""

    step_s: Annotated[float, Meta(ge=0)] = 0.0
    """Seconds that a step sleeps."""
    fault: str = ""
    """What goes wrong and where, as `name:nth`; workers/fake/faults.py lists the names."""
    state_bytes: Count = 0
    """Bytes of filler in a checkpoint."""


class Profile(Section, frozen=True):
    """What a person says they want. Read from TOML by `profiles.load`."""

    name: str
    """Name of the profile, and of the run unless `--run` names it."""
    description: str = ""
    """One sentence: what the profile is, on which hardware, how long it takes."""
    run: Run = Run()
    launch: Launch = Launch()
    model: Model = Model()
    adapter: Adapter = Adapter()
    sampling: Sampling = Sampling()
    vllm: Vllm = Vllm()
    azr: Azr = Azr()
    grpo: Grpo = Grpo()
    verl: Verl = Verl()
    open_instruct: OpenInstruct = OpenInstruct()
    optimizer: Optimizer = Optimizer()
    memory: Memory = Memory()
    sandbox: Sandbox = Sandbox()
    validation: Validation = Validation()
    stagnation: Stagnation = Stagnation()
    data: Data = Data()
    retention: Retention = Retention()
    trackers: Trackers = Trackers()
    notify: Notify = Notify()
    timeouts: Timeouts = Timeouts()
    retry: Retry = Retry()
    fake: Fake = Fake()
