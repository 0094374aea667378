"""Models of the Hugging Face hub: fetched by a process of its own before a run begins; the run stores their commit."""

from __future__ import annotations

import sys

from msgspec.structs import replace

from orchestrator.display.wording import harmless, size
from orchestrator.line_worker import started
from orchestrator.streams import say
from profiles.hub_model import COMMIT, directory_of, hub_model
from profiles.schema import Model, Profile
from profiles.worker_kinds import worker_kind_of
from state.weights import model_fault
from workers.line_contract import Fetched, Fetching, FetchSpec, Note


def with_hub_model(profile: Profile, stored: Profile | None = None) -> Profile:
    """The profile with the commit of its model, whose files are here afterwards.

    stored: of the run that is resumed. While it names the same model, the commit stays, wherever a branch has moved.
    Raises LonghaulError: INPUT if the model cannot be fetched, DISK without room for it.
    """
    model = profile.model
    known = stored is not None and stored.model.path == model.path and bool(stored.model.revision)
    named = hub_model(model.path, is_known=known or bool(model.revision))
    if named is None or model.random_init != "off" or not worker_kind_of(profile).uses_model:
        return replace(profile, model=replace(model, revision="")) if model.revision else profile
    commit = _commit_of(model, stored)
    if commit and not model_fault(directory_of(replace(model, revision=commit)))[0]:
        return replace(profile, model=replace(model, revision=commit))
    spec = FetchSpec(named.repository, commit or named.revision, bool(commit) or bool(COMMIT.fullmatch(named.revision)))
    return replace(profile, model=replace(model, revision=_fetched(spec)))


def _commit_of(model: Model, stored: Profile | None) -> str:
    """The commit that the run has, or that the profile names; empty: the hub is asked."""
    if stored is not None and stored.model.revision:
        if stored.model.path == model.path:
            return stored.model.revision if model.revision in ("", stored.model.revision) else model.revision
        return "" if model.revision == stored.model.revision else model.revision
    return model.revision


def _fetched(spec: FetchSpec) -> str:
    """Fetch, and show how far it is. Returns the commit."""
    told = -1
    kept = "nothing was started; what was fetched stays, and the same command goes on from there"
    with started("workers.fetch", spec, name="fetch", kept=kept) as worker:
        for message in worker.hear():
            if isinstance(message, Note):
                say(f"{harmless(message.text)}\n")
            elif isinstance(message, Fetching):
                told = _tell(spec, message, told)
            elif isinstance(message, Fetched):
                if told >= 0 and sys.stdout.isatty():
                    say("\n")
                say(f"model: {spec.repository} at {message.revision[:12]} in {harmless(message.directory)}\n")
                return message.revision
    raise AssertionError("a fetch that ends well says what it fetched")


def _tell(spec: FetchSpec, message: Fetching, told: int) -> int:
    """On a terminal one line that changes, else one for each tenth. Returns the tenths that were told."""
    tenths = 10 * message.done // message.total
    text = f"fetching {spec.repository}: {size(message.done)} of {size(message.total)}"
    if sys.stdout.isatty():
        say(f"\r{text}\x1b[K")
    elif tenths > told:
        say(f"{text}\n")
    return max(told, tenths)
