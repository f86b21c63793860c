"""From a base and a profile to a revision, and to what its running command line must carry."""

from __future__ import annotations

from dataclasses import replace

from lanectl.core import launcher
from lanectl.core.flags import Asked
from lanectl.core.lane import ADOPTED, Profile
from lanectl.core.launcher import Edit, View
from lanectl.errors import EditRefused

ASSUMES = "environment-default"
"""The finding of a launcher that takes a setting from its environment."""


def view_of(text: bytes, port: int) -> View:
    """The launcher as read for this lane's port; the only server, where there is just one."""
    view = launcher.show(text)
    return launcher.show(text, port=port) if len(view.servers) > 1 else view


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


def asked_of(text: bytes, profile: Profile | None, *, port: int) -> Asked:
    """What the running command line must carry: the text as read, then the profile's own words.

    A setting that cannot be read from the text asks for nothing here, nor does a text that leaves
    anything to the environment: there supervisord's `environment=` decides. The profile's own
    words always count.
    """
    view = view_of(text, port)
    asked = Asked()
    if not any(finding.code == ASSUMES for finding in view.findings):
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
