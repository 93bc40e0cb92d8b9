"""Kills, damaged files, wrong command lines and wrong calls: counts how each ends.

    python benchmarks/robustness.py [--seed 0] [--part kills|alterations|commands|calls|sizes] [--count N] [--show OUTCOME]

Takes about half an hour; needs Linux. Every case runs in a process of its own, with limits on time and memory. `silent`,
`traceback` and `hang` should be 0, and each such case is printed. docs/reliability.md shows the table.

    answered     the command did what it was asked
    clear        it refused in a sentence
    recovered    it said what was damaged or lost, and ended with the right result
    unchanged    it ended with the right result, and did not need what was altered
    silent       it ended with another result, or took nonsense for an answer, without a word
    traceback    it ended in a raw error
    hang         it did not end in time
"""

import argparse
import contextlib
import hashlib
import importlib
import inspect
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "Agg", "COLUMNS": "200"}

import torch
import typer

import posattn
import posattn.cli

OUTCOMES = ("answered", "clear", "recovered", "unchanged", "silent", "traceback", "hang")
LIMIT_S = 60  # of a case, with both cores busy
SCRATCH = Path(tempfile.gettempdir())  # set in main
MEMORY = 3 << 30  # bytes that a case may ask for beyond what importing the package took


@dataclass
class Ending:
    """How a process ended: its exit code (None if it was killed for time), what it printed, and how long it took."""

    code: int | None
    out: str
    err: str
    seconds: float


def run(act: Callable[[], object], folder: Path, kill_after: float | None = None) -> Ending:
    """Calls ``act`` in a forked process inside ``folder``; ``kill_after`` seconds it is killed, as by a power cut."""
    out, err = Path(tempfile.mkstemp(dir=SCRATCH)[1]), Path(tempfile.mkstemp(dir=SCRATCH)[1])
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 70
        try:
            os.setsid()
            os.chdir(folder)
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            os.dup2(os.open(out, os.O_WRONLY), 1)
            os.dup2(os.open(err, os.O_WRONLY), 2)
            used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()  # data and stack
            resource.setrlimit(resource.RLIMIT_DATA, (used + MEMORY, used + MEMORY))
            act()
            code = 0
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
        except BaseException:  # the child must never return into the parent's code
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
            os._exit(code)
    until = start + (LIMIT_S if kill_after is None else kill_after)
    status = None
    while status is None and time.monotonic() < until:
        done, state = os.waitpid(child, os.WNOHANG)
        status = state if done else None
        time.sleep(0.002)
    if status is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
    ended = None if status is None else os.waitstatus_to_exitcode(status)
    try:
        return Ending(ended, _text(out), _text(err), time.monotonic() - start)
    finally:
        out.unlink()
        err.unlink()


def _text(path: Path) -> str:
    return path.read_text(errors="replace")


def command(*words: str) -> Callable[[], object]:
    """Runs ``posattn WORDS`` as the shell would."""

    def act() -> None:
        sys.argv = ["posattn", *words]
        posattn.cli.main()

    return act


def bad(ending: Ending) -> str | None:
    """``hang``, ``traceback`` or ``clear`` if it ended so; None if it answered."""
    if ending.code is None:
        return "hang"
    if "Traceback (most recent call last)" in ending.err or ending.code not in (0, 2):
        return "traceback"
    return None if ending.code == 0 else "clear" if ending.err.strip() else "traceback"


# Kills


TRAIN = (
    "train",
    "sum",
    "--n",
    "4",
    "--members",
    "2",
    "--samples",
    "400",
    "--batch",
    "100",
    "--epochs",
    "60",
    "--layers",
    "1",
)
KILLED = {
    "train": (*TRAIN, "--out", "run", "--save-every", "0.05"),
    "train, looped": ("train", "sum", "--arch", "looped", "--n", "4", "--samples", "200", "--batch", "100", "--epochs", "20",
                      "--polish", "5", "--out", "run", "--save-every", "0.05"),
    "reproduce": ("reproduce", "compact", "--scale", "smoke", "--store", "store", "--out", "out"),
    "compile": ("compile", "bitonic-sort", "--machines", "8", "--save", "program"),
}  # fmt: skip


def content(folder: Path) -> dict[str, str]:
    """What a command left, by the digest of every file that holds numbers. Times and locks are not compared."""
    kept = (".safetensors", ".csv", ".gz")
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix in kept
    }


def kills(count: int, chance: random.Random) -> Iterator[tuple[str, str, Ending]]:
    """Kills each command at random moments, several times, then lets it end: the result must be that of an undisturbed one."""
    expected: dict[str, tuple[dict[str, str], float]] = {}
    for name, words in KILLED.items():
        with folder() as there:
            ending = run(command(*words), there)
            assert ending.code == 0, ending.err
            expected[name] = content(there), ending.seconds
    done = 0
    while done < count:
        name = list(KILLED)[done // 4 % len(KILLED)]
        wanted, seconds = expected[name]
        with folder() as there:
            deaths = min(4, count - done)
            for _ in range(deaths):
                run(command(*KILLED[name]), there, kill_after=chance.uniform(0, 1.1 * seconds))
            ending = run(command(*KILLED[name]), there)
            left = [path for path in there.rglob(".*.partial")]
            outcome = bad(ending) or ("recovered" if content(there) == wanted and not left else "silent")
            if outcome == "clear":  # a killed command must not block the next one
                outcome = "silent"
        done += deaths
        for _ in range(deaths):
            yield f"kill -9: {name}", outcome, ending


# Alterations


def alter(path: Path, others: list[Path], chance: random.Random) -> str | None:
    """Alters one file in one way, as accidents do, and says how; None if this way changes nothing. No checksum is forged."""
    data = path.read_bytes()
    way = chance.choice(
        ["cut", "flip", "empty", "delete", "append", "number", "exchange", "folder", "fifo", "deep", "link"]
    )
    if way == "cut":
        path.write_bytes(data[: chance.randrange(max(1, len(data)))])
    elif way == "flip" and data:
        place = chance.randrange(len(data))
        path.write_bytes(data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :])
    elif way == "empty":
        path.write_bytes(b"")
    elif way == "append":
        path.write_bytes(data + chance.choice([b"\n1,2,3\n", b"\x00" * 8, b"}"]))
    elif way == "number":
        digits = [index for index, byte in enumerate(data) if 48 <= byte <= 57]
        if path.suffix not in (".json", ".csv") or not digits:
            return None
        place = chance.choice(digits)
        path.write_bytes(data[:place] + bytes([48 + (data[place] - 47) % 10]) + data[place + 1 :])
    elif way == "exchange":
        same = [other for other in others if other.suffix == path.suffix and other.read_bytes() != data]
        if not same:
            return None
        path.write_bytes(chance.choice(same).read_bytes())
    elif way == "deep":
        path.write_bytes(b"[" * 100_000)
    else:
        path.unlink()
        if way == "folder":
            path.mkdir()
        elif way == "fifo":
            os.mkfifo(path)
        elif way == "link":
            path.symlink_to(path.name)
    return None if path.is_file() and path.read_bytes() == data else way


def made(there: Path) -> dict[str, tuple[list[Path], tuple[str, ...]]]:
    """What is altered: files of a run, an unfinished run, a program and a store, each with the command that reads it."""
    evaluate = ("--scales", "1,3", "--samples", "50", "--json")
    for words in [
        (*TRAIN, "--out", "run"),
        (*TRAIN[:-2], "--seed", "9", "--layers", "2", "--out", "other"),
        (*TRAIN[:-2], "--seed", "5", "--out", "third"),
        ("compile", "bitonic-sort", "--save", "sorter"),
        ("compile", "prefix-sum", "--save", "adder"),
        ("compile", "prefix-sum", "--bound", "100", "--save", "narrow"),
        ("reproduce", "compact", "--scale", "smoke", "--store", "store", "--out", "out"),
        ("reproduce", "ood-probability", "--scale", "smoke", "--store", "store", "--out", "out-computed"),
    ]:
        ending = run(command(*words), there)
        assert ending.code == 0, ending.err
    begun = (*TRAIN, "--out", "begun", "--save-every", "0.02")
    run(command(*begun), there, kill_after=0.6 * run(command(*TRAIN, "--out", "timed"), there).seconds)
    shutil.rmtree(there / "timed")
    files = lambda name: sorted(path for path in (there / name).rglob("*") if path.is_file())  # noqa: E731
    return {
        "a run": (files("run"), ("evaluate", "run", *evaluate)),
        "an unfinished run": (files("begun"), begun),
        "a program": (files("adder"), ("evaluate", "adder", *evaluate)),
        "a store of runs": (
            [path for path in files("store") if "computed" not in path.parts],
            ("reproduce", "compact", "--scale", "smoke", "--store", "store", "--out", "out", "--json"),
        ),
        "a store of computed rows": (
            [path for path in files("store") if "computed" in path.parts],
            ("reproduce", "ood-probability", "--scale", "smoke", "--store", "store", "--out", "out-computed", "--json"),
        ),
    }


def alterations(count: int, chance: random.Random) -> Iterator[tuple[str, str, Ending]]:
    """Alters one file of a run, program or store, then asks for its numbers: they must be the same, or refused."""
    with folder() as original:
        parts = made(original)
        every = [path for path in sorted(original.rglob("*")) if path.is_file()]
        finished = run(command(*TRAIN, "--out", "finished"), original)
        assert finished.code == 0, finished.err
        trained = content(original / "finished")
        said = {
            name: run(command(*words), original).out
            for name, (_, words) in parts.items()
            if name != "an unfinished run"
        }
        done = 0
        while done < count:
            name = list(parts)[done % len(parts)]
            paths, words = parts[name]
            with folder() as there:
                shutil.copytree(original, there, dirs_exist_ok=True, symlinks=True)
                path = there / chance.choice(paths).relative_to(original)
                way = alter(path, [there / other.relative_to(original) for other in every], chance)
                if way is None:
                    continue
                ending = run(command(*words), there)
                same = content(there / "begun") == trained if name == "an unfinished run" else ending.out == said[name]
                outcome = bad(ending) or (("recovered" if ending.err.strip() else "unchanged") if same else "silent")
            done += 1
            yield f"altered: {name} ({way} {path.name})", outcome, ending


# Command lines and calls


NONSENSE = ["nan", "x", "", "1e", "--", "ünï", "[/x]", "None", "0x10", "1,2"]
NUMBERS = ["0", "-1", "1", "2", "3.5", "1e-300", "1e20", "3e38", "1e309", "-inf", str(10**12), str(10**18), "1" * 20]
BASES = {
    "train": [*TRAIN[1:10], "--epochs", "1", "--layers", "1", "--out", "new"],
    "evaluate": ["run", "--samples", "20"],
    "predict": ["run", "1,2,3,4"],
    "export": ["run", "--onnx", "network.onnx"],
    "compile": ["prefix-sum", "--machines", "4"],
    "graph": ["run", "--out", "graph.svg"],
    "bound": ["run"],
    "certify": ["run", "--seconds", "1"],
    "ood-probability": ["--samples", "200"],
    "reproduce": ["ood-probability", "--scale", "smoke", "--store", "fresh"],
    "report": ["--store", "store", "--out", "report.html"],
    "explore": ["run", "--store", "store", "--out", "page.html"],
}  # fmt: skip


def options(verb: str) -> dict[str, str]:
    """Each option of a verb, with the type of its value."""
    module = importlib.import_module(f"posattn.commands.{verb.replace('-', '_')}")
    found = {}
    for name, parameter in inspect.signature(module.command).parameters.items():
        if isinstance(parameter.default, typer.models.OptionInfo):
            names = parameter.default.param_decls or (f"--{name.replace('_', '-')}",)
            found[names[0]] = str(parameter.annotation)
    # Ray has a test of its own.
    return {name: kind for name, kind in found.items() if name not in ("--engine", "--address")}


def commands(count: int, chance: random.Random) -> Iterator[tuple[str, str, Ending]]:
    """Command lines with one or two things wrong; a number where none can be read must never count as an answer."""
    with folder() as there:
        made(there)
        for verb, base in BASES.items():
            ending = run(command(verb, *base), there)
            assert ending.code == 0 or verb in ("certify",), (verb, ending.err)
        for index in range(count):
            verb = list(BASES)[index % len(BASES)]
            words, kinds = list(BASES[verb]), options(verb)
            for _ in range(chance.choice([1, 1, 2])):
                what = chance.random()
                if what < 0.1 and words:
                    del words[chance.randrange(len(words))]
                elif what < 0.25 and words:
                    words[chance.randrange(len(words))] = chance.choice(NONSENSE + NUMBERS)
                else:
                    name, kind = chance.choice(list(kinds.items()))
                    value = chance.choice(NONSENSE + NUMBERS)
                    words += [name] if "bool" in kind else [name, value]
            numbers = [
                value
                for name, value in pairwise(words)
                if "int" in kinds.get(name, "") or "float" in kinds.get(name, "")
            ]
            ending = run(command(verb, *words), there)
            senseless = any(value in NONSENSE and value != "nan" for value in numbers)
            outcome = bad(ending) or ("silent" if senseless else "answered")
            yield f"command: {verb} {' '.join(words)!r}", outcome, ending


def wrong(value: Any, chance: random.Random) -> tuple[Any, bool]:
    """Another value for an argument, and whether no reading of it makes sense."""
    nan = float("nan")
    senseless: list[Any] = ["no", b"x", [], {}, object(), 1.5, nan, 1j]
    doubtful: list[Any] = [None, -1, 0, 10**18, float("inf"), -1e30]
    if isinstance(value, bool):
        senseless += [2, "yes"]
    elif isinstance(value, float):
        senseless = ["no", b"x", [], {}, object(), 1j]
        doubtful += [nan]
    elif isinstance(value, str):
        senseless += ["", "nonsense", 3]
    elif isinstance(value, torch.Tensor):
        senseless = ["no", object(), {}, torch.zeros(()), value[..., :0], value.to(torch.complex64)]
        doubtful = [None, value.double(), value.long(), value[:0], value.double() * nan]
    elif isinstance(value, list | tuple):
        senseless = ["no", 3.5, object(), [object()], ["no"], 1j]
        doubtful += [[], [nan], [0], [-1], [10**18]]
    if chance.random() < 0.7:
        return chance.choice(senseless), True
    return chance.choice(doubtful), False


def calls_of(run_: Path) -> list[tuple[str, Callable[..., Any], dict[str, Any]]]:
    """Public functions with arguments that work, each of which is made wrong in turn."""
    x = torch.linspace(-1, 1, 8).reshape(2, 4)
    small = {"samples": 50, "epochs": 1, "batch": 50}
    network = {
        "arch": "positional",
        "layers": 1,
        "heads": 1,
        "embed": 8,
        "width": 8,
        "bias": True,
        "encoding": "one-hot",
    }

    def layer(x: Any, mask: Any, **given: Any) -> Any:
        return posattn.PositionalAttention(**given)(x, key_padding_mask=mask)

    return [
        ("ModelConfig", lambda **given: posattn.Transformer(posattn.ModelConfig(**given))(x), {"n": 4} | network),
        ("LoopedConfig", lambda **given: posattn.Transformer(posattn.LoopedConfig(**given))(x),
         {"n": 4, "heads": 1, "embed": 8, "width": 8}),
        ("TokenConfig", lambda **given: posattn.Transformer(posattn.TokenConfig(**given)),
         {"n": 30, "tokens": "letters", "layers": 1, "tied": False}),
        ("PositionalAttention", layer, {"n_positions": 4, "d_model": 8, "n_heads": 2, "causal": False, "bias": True,
         "dropout": 0.0, "mask": torch.zeros(2, 4, dtype=torch.bool), "x": torch.zeros(2, 4, 8)}),
        ("Transformer()", posattn.Transformer(posattn.ModelConfig(n=4, **network)), {"x": x}),
        ("train", lambda **given: posattn.train(config=posattn.ModelConfig(n=4, **network), **given),
         {"task": "sum", "members": 1, "seed": 0, "lr": 1e-3, "variable_length": False, "precision": "fp32"} | small),
        ("Recipe", lambda **given: posattn.Recipe(**given), {"samples": 50, "epochs": 1, "batch": 50, "lr": 1e-3}),
        ("Run.evaluate", lambda **given: posattn.load(run_).evaluate(**given), {"scales": [1, 2], "samples": 20}),
        ("Run.predict", lambda **given: posattn.load(run_).predict(**given), {"x": x}),
        ("Run.answer", lambda **given: posattn.load(run_).answer(**given), {"x": x, "member": 0}),
        ("load", posattn.load, {"path": str(run_)}),
        ("task", posattn.task, {"name": "sum"}),
        ("pretrained", posattn.pretrained, {"task": "sort", "arch": "positional"}),
        ("compile", posattn.compile, {"program": "prefix-sum", "machines": 4, "bound": 100.0}),
        ("compile()()", posattn.compile("prefix-sum", machines=4), {"x": x.double()}),
        ("ood_probability", posattn.ood_probability, {"n": 4, "scale": 2.0, "samples": 100, "seed": 0}),
        ("generalization_bound", posattn.generalization_bound,
         {"model": posattn.Transformer(posattn.ModelConfig(n=4, **network)), "samples": 100, "delta": 0.05}),
        ("Frozen", lambda **given: posattn.Frozen(posattn.pretrained("sort"))(**given), {"x": torch.zeros(2, 8)}),
        ("khop", lambda **given: posattn.task("khop").target(**given), {"x": torch.full((2, 30), 1)}),
    ]  # fmt: skip


def call(function: Callable[..., Any], given: dict[str, Any]) -> Callable[[], object]:
    """Calls a function of the package; its refusals end as those of a command do."""

    def act() -> None:
        try:
            function(**given)
        except posattn.UsageError as error:
            print(error, file=sys.stderr)
            raise SystemExit(2) from None

    return act


def calls(count: int, chance: random.Random) -> Iterator[tuple[str, str, Ending]]:
    """Calls with one argument wrong."""
    with folder() as there:
        ending = run(command(*TRAIN, "--out", "run"), there)
        assert ending.code == 0, ending.err
        known = calls_of(there / "run")
        for name, function, given in known:
            ending = run(call(function, given), there)
            assert ending.code == 0, (name, ending.err)
        for index in range(count):
            name, function, given = known[index % len(known)]
            field = chance.choice(list(given))
            value, senseless = wrong(given[field], chance)
            ending = run(call(function, given | {field: value}), there)
            outcome = bad(ending) or ("silent" if senseless else "answered")
            yield f"call: {name}({field}={value!r:.40})", outcome, ending


# Sizes


def sizes(count: int, chance: random.Random) -> Iterator[tuple[str, str, Ending]]:
    """Numbers that no machine can serve: refused in a sentence within two seconds, without asking for the memory."""
    huge: dict[str, list[tuple[str, ...]]] = {
        "train": [
            ("--members",),
            ("--samples",),
            ("--epochs",),
            ("--n",),
            ("--layers",),
            ("--heads",),
            ("--embed",),
            ("--width",),
        ],
        "evaluate": [("--samples",)],
        "graph": [("--samples",)],
        "export": [("--length",)],
        "ood-probability": [("--samples",), ("--n",)],
        "compile": [("--machines",), ("--samples", "--check")],
        "bound": [("--samples",)],
    }
    cases = [
        (verb, option, number) for verb, own in huge.items() for option in own for number in (10**9, 10**12, 10**18)
    ]
    cases.remove(("ood-probability", ("--samples",), 10**9))  # takes minutes and little memory, so it is served
    with folder() as there:
        made(there)
        for verb, (option, *more), number in cases:
            base = [*BASES[verb]]
            if option in base:
                place = base.index(option)
                del base[place : place + 2]
            ending = run(command(verb, *base, *more, option, str(number)), there)
            outcome = bad(ending) or "answered"
            if outcome == "clear" and ending.seconds > 2:
                outcome = "hang"
            yield f"size: {verb} {option} {number:g}", outcome, ending


# The table


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(dir=SCRATCH))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


PARTS = {"kills": (kills, 200), "alterations": (alterations, 500), "commands": (commands, 2000), "calls": (calls, 500),
         "sizes": (sizes, 0)}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description="Counts how kills, damaged files and wrong input end.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=list(PARTS), action="append")
    parser.add_argument("--count", type=int, help="cases per part")
    parser.add_argument(
        "--show", choices=OUTCOMES, action="append", default=None, help="print these cases (default: the bad ones)"
    )
    asked = parser.parse_args()
    global SCRATCH
    torch.set_num_threads(1)
    posattn.import_all()  # once for all cases, which then take the time of their own work
    for name in ("explorer", "experiments", "export", "graphs.reports", "baselines.gpt2", "guarantees", "compiled_run"):
        importlib.import_module(f"posattn.{name}")
    for name in ("onnx", "onnxruntime", "transformers"):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as scratch:
        SCRATCH = Path(scratch)
        rows = []
        for name in asked.part or PARTS:
            act, usual = PARTS[name]
            counted: Counter[str] = Counter()
            start = time.monotonic()
            for case, outcome, ending in act(asked.count or usual, random.Random(f"{asked.seed} {name}")):
                counted[outcome] += 1
                if outcome in (asked.show or ("silent", "traceback", "hang")):
                    last = (ending.err.strip() or ending.out.strip()).splitlines()[-1:]
                    print(f"{outcome}: {case}: {' '.join(last)[:200]} ({ending.seconds:.1f} s)", flush=True)
            total += counted
            rows.append((name, counted, time.monotonic() - start))
    print(f"\nseed {asked.seed}, torch {torch.__version__}\n")
    print(f"| | cases | {' | '.join(OUTCOMES)} | s |\n|---|{'---|' * (len(OUTCOMES) + 2)}")
    for name, counted, seconds in rows:
        print(f"| {name} | {counted.total()} | {' | '.join(str(counted[o]) for o in OUTCOMES)} | {seconds:.0f} |")
    raise SystemExit(any(total[o] for o in ("silent", "traceback", "hang")))


if __name__ == "__main__":
    main()
