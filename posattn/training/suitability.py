"""Whether a network suits a task, and which network a task gets by default, for commands and Python alike."""

import warnings
from collections.abc import Collection, Iterable
from dataclasses import asdict, replace
from typing import Any

from posattn.errors import UsageError, instance
from posattn.looped.families import FAMILIES, family_of
from posattn.looped.looped_model import LoopedConfig
from posattn.model import KINDS_BY_ARCH, ModelConfig
from posattn.network import NetworkConfig, from_dict
from posattn.tasks import MixedTask, task
from posattn.tasks.layouts import LAYOUTS, layout_named, layout_of
from posattn.tokens.token_model import TokenConfig


def network_for(name: str, begin: NetworkConfig | None = None, **settings: Any) -> NetworkConfig:
    """The network for the task of that name, by what ``posattn train`` takes: ``network_for("sort", arch="looped", n=4)``.

    Settings that are left out or None are the task's own; a looped network is of the family that solves the task. To begin
    with a run, give its network as ``begin``: settings that are left out are then that network's.
    """
    settings = {field: value for field, value in settings.items() if value is not None}
    if begin is not None:
        return _like(instance("begin", begin, NetworkConfig, "the network of a run"), settings)
    own, arch = task(name), settings.get("arch")
    if (layout := settings.pop("layout", None)) is not None:
        if not isinstance(own, MixedTask):
            raise UsageError(f"layout is {layout!r}; {name} has no prompts to lay out.")
        chosen = layout_named(layout)
        settings = {"tokens": chosen.tokens, "n": chosen.positions} | settings
    if own.TOKENS != "none" and arch == "looped":
        raise UsageError(f"arch is 'looped'; {name} reads words, and looped networks read lists of numbers.")
    if own.TOKENS != "none" and arch == "scale-exact":
        raise UsageError(
            f"arch is 'scale-exact'; {name} reads words, which do not grow with the numbers, so it has no such network; "
            "bias=False (--no-bias) leaves out the biases of a positional one."
        )
    usual = {"n": own.NETWORK["n"]} if arch in KINDS_BY_ARCH and "n" in own.NETWORK else own.NETWORK
    return suited(from_dict(usual | settings), name)


def _like(config: NetworkConfig, settings: dict[str, Any]) -> NetworkConfig:
    """A run's network with other settings."""
    own: dict[str, Any] = config.to_dict()
    own |= own.get("settings", {})  # of a network of one's own
    changes = isinstance(config, (ModelConfig, LoopedConfig))  # the options of the command are fields of these kinds
    for field in settings.keys() & {"arch"} if changes else settings:
        if settings[field] != own.get(field):
            raise UsageError(f"{field} is {settings[field]!r}; that of the run to begin with is {own.get(field)!r}.")
    if not isinstance(config, (ModelConfig, LoopedConfig)):
        return config
    if isinstance(config, ModelConfig) and config.encoding == "one-hot" and "n" in settings:
        settings = {"encoding_dim": None} | settings
    return replace(config, **settings)


def suited(config: NetworkConfig, name: str) -> NetworkConfig:
    """``config`` as the task of that name needs it.

    A ModelConfig, which names no tokens, reads those of the task. A looped network without a family gets the one that solves
    the task. Raises if the network does not read what the task gives.
    """
    own = task(name)
    if not config.trainable:
        raise UsageError(f"config is a {type(config).__name__}; a compiled program has its weights, and is not trained.")
    if isinstance(config, LoopedConfig):
        config = config.for_task(name)
    elif own.TOKENS != "none" and isinstance(config, ModelConfig) and config.kind == ModelConfig.kind:
        needed = {field: value for field, value in own.NETWORK.items() if field in ("tokens", "causal")}
        if isinstance(own, MixedTask) and (layout := layout_of(config.n)) is not None:
            needed["tokens"] = layout.tokens
        config = TokenConfig(**asdict(config) | needed)
    check_reads(config, name)
    return config


def check_reads(config: NetworkConfig, name: str) -> None:
    """Raises unless a network reads what the task of that name gives."""
    own = task(name)
    if config.reads == own.TOKENS:
        check_prompts(config)
        return
    found = "numbers" if config.reads == "none" else f"the tokens {config.reads!r}"
    if own.TOKENS == "none":
        wanted = "lists of numbers"
    else:
        causal = " and causal=True" if own.NETWORK.get("causal") else ""
        wanted = f"sequences, for a TokenConfig with tokens={own.TOKENS!r}{causal}"
    raise UsageError(f"the {config.arch} network reads {found}; the task {name} has {wanted}.")


def check_prompts(config: NetworkConfig) -> None:
    """Raises if a network of prompts has other positions than the layout of its tokens."""
    if isinstance(config, TokenConfig) and config.reads == "prompts":
        wanted = next(layout.positions for layout in LAYOUTS.values() if layout.tokens == config.tokens)
        if config.n != wanted:
            raise UsageError(f"n is {config.n}; prompts whose tokens are {config.tokens!r} have {wanted} positions.")


def doubt_family(model: NetworkConfig, tasks: Iterable[str], lengths: Collection[int]) -> None:
    """Warns of tasks that looped networks of this family are not known to solve, or cannot learn from lists of one length."""
    if not isinstance(model, LoopedConfig):
        return
    for name in dict.fromkeys(tasks):
        known = family_of(name)
        if known is None:
            solved = ", ".join(other for row in FAMILIES.values() for other in row.solves)
            doubt = f"no looped network is known to solve {name}; there are some for {solved}"
        else:
            doubt = f"family is {model.family!r}; the looped networks that solve {name} are of family {known!r}"
        if model.family != known:
            warnings.warn(f"{doubt}. It is learned roughly at best.", stacklevel=3)  # the line that calls train
        elif model.shape.classes > 1 and len(lengths) == 1:  # short lists show exchanges one by one
            few = f"all training lists have {model.n} numbers, from which {name} is hardly learned for other lengths"
            warnings.warn(f"{few}; lists of 1 to n serve (variable length), and n = 4 is enough.", stacklevel=3)
