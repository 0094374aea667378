"""Examples of each command, which its `--help` shows; a test parses every one. (pure)"""

from __future__ import annotations

from collections.abc import Mapping

PROGRAM = "longhaul"

EXAMPLES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "init": (
        ("init", "asks a few questions"),
        ("init --yes --data data/train.jsonl --model models/Qwen2.5-0.5B --dir my-job", "asks nothing"),
    ),
    "run": (
        ("run", "the newest unfinished run, else the pocket model"),
        ("run --profile pocket-grpo --run night-1", ""),
        ("run --profile my.toml --set run.seed=7 --max-hours 10", ""),
        ("run --run night-1 --until 'mean>=0.9' --accept-changes", "resume with another goal"),
        ("run --profile my.toml --dry-run", "the whole path with a tiny model"),
    ),
    "plan": (
        ("plan --profile azr-3b-qlora", "for the card of this machine"),
        ("plan --profile azr-3b-qlora --card 16", "for a card of 16 GB"),
        ("plan --profile azr-3b-qlora --card 24 --card-name 'RTX 4090' --steps 500", "hours on a card by name"),
        ("plan --profile pocket --measure", "time two real steps here"),
        ("plan --history", "what was predicted beside what runs measured"),
        ("plan --import grpo.yaml --hosts 16 --gpus 4 --card 95.6", "a YAML of open-instruct"),
    ),
    "stop": (
        ("stop", "finish the step, save, end the newest run"),
        ("stop --run night-1 --now", "do not finish the step"),
    ),
    "checkpoint": (("checkpoint --run night-1", "save at the end of the step, and train on"),),
    "events": (
        ("events --run night-1", "the newest, of workers and of the master"),
        ("events checkpoint -n 5 --json", "those with this word"),
    ),
    "metrics": (
        ("metrics --run night-1", "all of them"),
        ("metrics reward kl", "those with one of these words in their names"),
    ),
    "samples": (("samples --run night-1 -n 3", "what the model wrote, and what became of it"),),
    "pause": (("pause --run night-1", "after this step; the GPU is free after five minutes"),),
    "resume": (("resume --run night-1", ""),),
    "validate": (("validate --run night-1 --json", "score the model now, and train on"),),
    "cycles": (
        ("cycles --run night-1", "how many are left"),
        ("cycles +2 --run night-1", "two more"),
        ("cycles none --run night-1", "until it is stagnant or stopped"),
    ),
    "status": (
        ("status", ""),
        ("status --run night-1 --json", "for a script"),
    ),
    "explain": (
        ("explain", ""),
        ("explain --run night-1 --json", "each sentence with its topic"),
    ),
    "logs": (
        ("logs -f", "follow the newest run"),
        ("logs --run night-1 -f --json | jq .text", "events of its workers, one object a line"),
    ),
    "compare": (
        ("compare night-1 night-2", ""),
        ("compare night-1 night-2 --format md > difference.md", "for a pull request"),
    ),
    "top": (("top --run night-1", "`q` leaves; the run goes on"),),
    "web": (
        ("web", "on this machine; prints the link"),
        ("web --port 8700 --run night-1", "the link opens that run"),
        ("web --host 0.0.0.0", "also for a phone in the same network"),
    ),
    "recover": (("recover --run night-1", "the store is lost or damaged"),),
    "backup": (("backup --run night-1 /mnt/copies", "also while it trains"),),
    "restore": (
        ("restore /mnt/copies/night-1 --run night-1b", ""),
        ("restore night-1.tar", "on another machine"),
    ),
    "archive": (("archive --run night-1 night-1.tar", "one file for another machine"),),
    "prune": (
        ("prune --run night-1 --dry-run", "only say what would go"),
        ("prune --run night-1 --keep 1 --keep-every 0", ""),
    ),
    "doctor": (
        ("doctor --profile azr-0.5b", "this machine, for that profile"),
        ("doctor --profile azr-0.5b --one-step", "and really train one step"),
        ("doctor --run night-1 --repair", "the files of a stopped run"),
    ),
    "evaluate": (
        ("evaluate --run night-1 --on gsm8k --checkpoint best", ""),
        ("evaluate --model models/Qwen2.5-0.5B --on cruxeval-o --samples 16 --k 1,4,16", "pass@k"),
    ),
    "data": (
        ("data import tasks.jsonl --into data/tasks.jsonl", "every task is verified again"),
        ("data preview --profile my.toml --rows 5", "as the model will see them"),
        ("data show --run night-1 --limit 3", ""),
    ),
    "rewards": (("rewards test my_rewards.py:score --data data/train.jsonl --rows 100", ""),),
    "generate": (
        ("generate --run night-1 --prompt 'What is 12 + 30?'", ""),
        ("generate --model models/Qwen2.5-0.5B --interactive --temperature 0.7", "chat"),
    ),
    "export": (
        ("export --run night-1 --merged --out exported/night-1", ""),
        ("export --run night-1 --adapter --checkpoint best --out exported/adapter", ""),
    ),
    "report": (("report --run night-1", "writes runs/night-1/report.html"),),
    "notify": (
        ("notify --run night-1", "what was sent, and what failed"),
        ("notify --test --profile my.toml", "try every target now"),
        ("notify --test --set 'notify.urls_env=\"NTFY_URL\"'", "without a profile of your own"),
    ),
    "service": (
        ("service --run night-1", "a run that has begun"),
        ("service --profile my.toml --run night-2 --print", "a new one; only show the unit"),
    ),
    "completion": (
        ("completion bash > ~/.local/share/bash-completion/completions/longhaul", ""),
        ("completion zsh > ~/.zfunc/_longhaul", "with ~/.zfunc in fpath, before compinit"),
        ("completion fish > ~/.config/fish/completions/longhaul.fish", ""),
    ),
}
"""Command -> (words to type after the program's name, what they are for)."""


def epilog(command: str) -> str:
    """The examples as `--help` shows them; empty for a command that has none."""
    lines = [f"  {PROGRAM} {words}" + (f"\n      {what}" if what else "") for words, what in EXAMPLES.get(command, ())]
    return "\n".join(["examples:", *lines]) if lines else ""
