"""The process that drives a job of verl: `python -m workers.verl.driver SETTING...`. It dies with the worker."""

from __future__ import annotations

from workers import process


def main() -> None:
    process.die_with_parent()
    from verl.trainer.main_ppo import main as verl_main

    verl_main()


if __name__ == "__main__":
    main()
