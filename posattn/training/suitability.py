"""Whether a network suits a task, and which network a task gets by default, for commands and Python alike."""

import warnings
from collections.abc import Collection, Iterable
from dataclasses import asdict, replace
from typing import Any

from posattn.errors import UsageError, choice, counted, instance
from posattn.looped.families import FAMILIES, family_of
from posattn.looped.looped_model import LoopedConfig
from posattn.looped.prompt_table import PromptTableConfig
from posattn.looped.table_model import TableConfig
from posattn.model import ModelConfig
from posattn.names import TASKS as OURS
from posattn.network import KINDS_BY_ARCH, NetworkConfig, from_dict, stored_fields
from posattn.tasks import MixedTask, task
from posattn.tasks.layouts import layout_for, layout_named, layout_of, positions_in_words
from posattn.tokens.token_model import TokenConfig


def network_for(name: str, begin: NetworkConfig | None = None, **settings: Any) -> NetworkConfig:
    """The network for the task of that name, by what ``posattn train`` takes: ``network_for("sort", arch="looped", n=4)``.

    Settings that are left out or None are the task's own; a looped network is of the family that solves the task. To begin
    with a run, give its network as ``begin``: settings that are left out are then that network's.
    """
    settings = {field: value for field, value in settings.items() if value is not None}
    if begin is not None:
        check_beginning(instance("begin", begin, NetworkConfig, "the network of a run"), name)
    own, arch = task(name), settings.get("arch", None if begin is None else begin.arch)
    if (layout := settings.pop("layout", None)) is not None:
        if not isinstance(own, MixedTask):
            raise UsageError(f"layout is {layout!r}; {name} has no prompts to lay out.")
        chosen = layout_named(layout)
        if isinstance(begin, (TokenConfig, PromptTableConfig)) and begin.tokens != chosen.tokens:
            read = f"the run to begin with reads the tokens {begin.tokens!r}"
            raise UsageError(f"layout is {layout!r}; {read}, and keeps them.")
        if arch != "table":
            settings = {"tokens": chosen.tokens, "n": chosen.positions} | settings
        elif chosen.tokens != PromptTableConfig.tokens:
            raise UsageError(f"layout is {layout!r}; table networks read prompts in the layout 'elements' alone.")
    if begin is not None:
        return _like(begin, settings)
    if own.TOKENS != "none" and arch is not None:
        choice("arch", arch, (*ModelConfig.architectures, *KINDS_BY_ARCH))
    if own.TOKENS != "none" and arch == "looped":
        raise UsageError(f"arch is 'looped'; {name} reads words, and looped networks read lists of numbers.")
    if own.TOKENS != "none" and arch == "scale-exact":
        raise UsageError(
            f"arch is 'scale-exact'; {name} reads words, which do not grow with the numbers, so it has no such network"
            + ("; relative=True (--relative) makes answers grow with the numbers." if isinstance(own, MixedTask) else ".")
        )
    usual = {"n": own.NETWORK["n"]} if arch in KINDS_BY_ARCH and "n" in own.NETWORK else own.NETWORK
    if arch == "table" and isinstance(own, MixedTask):
        usual = usual | {"kind": PromptTableConfig.kind}
    return suited(from_dict(usual | settings), name)


def check_beginning(begin: NetworkConfig, name: str) -> None:
    """Raises unless the network of a run to begin with reads what the task of that name gives."""
    own = task(name)
    if begin.reads != own.TOKENS:
        read = "lists of numbers" if begin.reads == "none" else begin.reads
        raise UsageError(f"the run to begin with reads {read}; the task {name} has {own.INPUTS}; give one that reads these.")


def _like(config: NetworkConfig, settings: dict[str, Any]) -> NetworkConfig:
    """A run's network with other settings."""
    own: dict[str, Any] = config.to_dict()
    own |= own.get("settings", {})  # of a network of one's own
    has_options = isinstance(config, (ModelConfig, LoopedConfig))  # whose fields the options of the command are
    for field in settings.keys() & {"arch"} if has_options else settings:
        if settings[field] != own.get(field):
            raise UsageError(f"{field} is {settings[field]!r}; that of the run to begin with is {own.get(field)!r}.")
    if isinstance(config, ModelConfig) and config.encoding == "one-hot" and "n" in settings:
        settings = {"encoding_dim": None} | settings
    return replace(config, **settings) if has_options else config  # type: ignore[type-var]


def suited(config: NetworkConfig, name: str) -> NetworkConfig:
    """``config`` with the tokens, or the family of a looped network, that the task needs where it has none.

    Raises if the network does not read what the task gives.
    """
    own = task(name)
    if not config.trainable:
        raise UsageError(f"config is a {type(config).__name__}; a compiled program has its weights, and is not trained.")
    if isinstance(config, LoopedConfig):
        config = config.for_task(name)
    elif isinstance(config, TableConfig) and PromptTableConfig.reads == own.TOKENS:
        config = PromptTableConfig(**stored_fields(config, ("words", "fixed")))  # raises where these are given
    elif own.TOKENS != "none" and isinstance(config, ModelConfig) and config.kind == ModelConfig.kind:
        needed = {field: value for field, value in own.NETWORK.items() if field in ("tokens", "causal")}
        if isinstance(own, MixedTask) and (layout := layout_of(config.n)) is not None:
            needed["tokens"] = layout.tokens
        config = TokenConfig(**asdict(config) | needed)
    check_reads(config, name)
    return config


def check_reads(config: NetworkConfig, name: str) -> None:
    """Raises unless a network reads what the task of that name gives, prompts on the positions of their layout."""
    own = task(name)
    if config.reads != own.TOKENS:
        found = "numbers" if config.reads == "none" else f"the tokens {config.reads!r}"
        causal = " and causal=True" if own.NETWORK.get("causal") else ""
        sequences = f"sequences, for a TokenConfig with tokens={own.TOKENS!r}{causal}"
        wanted = "lists of numbers" if own.TOKENS == "none" else sequences
        raise UsageError(f"the {config.arch} network reads {found}; the task {name} has {wanted}.")
    if isinstance(config, (TokenConfig, PromptTableConfig)) and config.reads == "prompts":
        name, layout = layout_for(config.tokens)
        if config.n != layout.positions:
            raise UsageError(
                f"n is {config.n}; a prompt has {positions_in_words()}; this network is for {name}, and --layout (layout=) "
                "gives another."
            )


def doubt_family(model: NetworkConfig, tasks: Iterable[str], lengths: Collection[int]) -> None:
    """Warns of tasks that looped networks of this family are not known to solve, or cannot learn from lists of one length."""
    if not isinstance(model, LoopedConfig):
        return
    for name in dict.fromkeys(tasks):
        known = family_of(name)
        if name not in OURS:  # of a task of one's own nothing is known
            continue
        if known is None:
            solved = ", ".join(other for row in FAMILIES.values() for other in row.solves)
            doubt = f"no looped network is known to solve {name}; there are some for {solved}"
        else:
            doubt = f"family is {model.family!r}; the looped networks that solve {name} are of family {known!r}"
        if model.family != known:
            warnings.warn(f"{doubt}. It is learned roughly at best.", stacklevel=3)  # the line that calls train
        elif model.shape.classes > 1 and len(lengths) == 1:  # short lists show exchanges one by one
            few = f"all training lists have {counted(model.n, 'number')}, from which {name} is hardly learned for other lengths"
            warnings.warn(f"{few}; lists of 1 to n serve (variable length), and n = 4 is enough.", stacklevel=3)
