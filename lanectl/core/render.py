"""From a base and a profile to a revision, and to what its running command line must carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from lanectl.core import launcher
from lanectl.core.flags import Asked
from lanectl.core.lane import ADOPTED, Profile
from lanectl.core.launcher import Edit, View
from lanectl.errors import EditRefused

ASSUMPTIONS = frozenset({"environment-default", "script-arguments"})
"""Findings of a launcher that takes something from its environment or its arguments."""


def view_of(text: bytes, port: int, environment: Mapping[str, str] | None = None) -> View:
    """The launcher as read for this lane's port; the only server, where there is just one."""
    view = launcher.show(text, environment=environment)
    if len(view.servers) > 1:
        return launcher.show(text, port=port, environment=environment)
    return view


def render(base: bytes, profile: Profile, *, port: int, script: bytes | None = None) -> bytes:
    """The launcher text of `profile`. The same arguments give the same bytes, always.

    script: the text of `profile.script` where the profile is a whole script.
    Raises EditRefused when the edit of the base cannot be proven.
    """
    if profile.name == ADOPTED:
        return base
    if profile.script is not None:
        if script is None:
            raise EditRefused(f"profile {profile.name}: its script has not been read")
        return script
    change = Edit(
        speculative=profile.speculative,
        max_num_seqs=profile.max_num_seqs,
        model=profile.model,
        flags=profile.flags,
        env=profile.env,
    )
    if change == Edit():
        return base
    several = len(launcher.show(base).servers) > 1
    return launcher.edit(base, change, port=port if several else None)


def asked_of(
    text: bytes,
    profile: Profile | None,
    *,
    port: int,
    environment: Mapping[str, str] | None = None,
) -> Asked:
    """What the running command line must carry: the text as read, then the profile's own words.

    environment: what supervisord starts the program with; None where that is not known. Then a
    text that leaves anything to it asks for nothing by itself. A setting that cannot be read asks
    for nothing either. The profile's own words always count.
    """
    view = view_of(text, port, environment)
    assumes = {finding.code for finding in view.findings} & ASSUMPTIONS
    if environment is not None:
        assumes.discard("environment-default")
    asked = Asked()
    if not assumes:
        asked = Asked(
            speculative=None if view.speculative == "unknown" else view.speculative,
            max_num_seqs=view.max_num_seqs if isinstance(view.max_num_seqs, int) else None,
            model=_known_model(view),
        )
    if profile is None or profile.script is not None:
        return asked
    return replace(
        asked,
        speculative=asked.speculative if profile.speculative is None else profile.speculative,
        max_num_seqs=profile.max_num_seqs or asked.max_num_seqs,
        model=profile.model or asked.model,
        flags=dict(profile.flags),
    )


def _known_model(view: View) -> str | None:
    """The model as read; None where its word holds an expansion that could not be followed."""
    model = view.settings.model if view.settings else None
    return None if model is None or "$" in model or "`" in model else model
