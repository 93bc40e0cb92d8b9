"""The GPU trainer's own logic, on the CPU: a stub stands for the CUDA graph and replays an epoch by computing it.

What a stub cannot show, the capture itself and the kernels' speed, benchmarks/gpu.py shows on a GPU.
"""

import contextlib
import os
import threading
from typing import ClassVar

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are defined

import posattn
from posattn.training import Member, Trainer
from posattn.training.cuda import CudaTrainer
from posattn.training.recipe import recipe
from posattn.training.ways import Plain
from posattn.training.workers import Workers

CPU = torch.device("cpu")
TEAM = [Member("sum", 3, 1e-3), Member("sort", 4, 2e-3)]


class Graph:
    """What a recorded graph does when replayed: the same work on the same tensors."""

    def __init__(self, work):
        self.replay = work


class Stream:
    def wait_stream(self, _):
        pass


class Event:
    """What is asked for, in order: an epoch may be waited for once the next one has been asked for."""

    asked: ClassVar[list[str]] = []

    def record(self):
        self.number = sum(what.startswith("end") for what in self.asked)
        self.asked.append(f"end {self.number}")

    def synchronize(self):
        self.asked.append(f"wait {self.number}")


@pytest.fixture
def stubbed(monkeypatch):
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(Event, "asked", [])
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(CudaTrainer, "_graph_of", lambda own, batches: Graph(lambda: own._steps_on(batches)))


def trainer(kind, workers, schedule="plateau", variable_length=False, arch="positional"):
    plan = recipe("paper", samples=50, batch=20, epochs=4, patience=0, threshold=0.5)  # 20, 20 and 10 lists a batch
    plan = recipe(plan, schedule=schedule, warmup=0.1, clip=1.0, shuffle_lengths=variable_length is True)
    config = posattn.ModelConfig(4, arch, embed=8, width=8)
    return kind(config, plan, TEAM, CPU, workers, range(1 if variable_length else 4, 5))


def state(trained):
    return {name: value for name, value in trained.state_dict().items() if name != "progress"}


@pytest.mark.usefixtures("stubbed")
@pytest.mark.parametrize("variable_length", [False, True])
@pytest.mark.parametrize("schedule", ["plateau", "cosine"])
def test_an_epoch_at_a_time_gives_the_bits_of_a_step_at_a_time(schedule, variable_length):
    with Workers(1) as workers:
        plain = trainer(Trainer, workers, schedule, variable_length)
        graphed = trainer(CudaTrainer, workers, schedule, variable_length)
        for _ in plain.steps():
            pass
        assert sum(1 for _ in graphed.steps()) == 4  # yields after every epoch
    asked = [f"{what} {epoch - (what == 'wait')}" for epoch in (1, 2, 3, 4) for what in ("end", "wait")]
    assert Event.asked[1:] == [*asked, "wait 4"]
    assert plain.history[0, 1, 0] != plain.history[-1, 1, 0]  # the schedule acted
    expected = state(plain)
    for name, value in state(graphed).items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.usefixtures("stubbed")
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 7])
def test_a_checkpoint_from_the_cpu_within_an_epoch_goes_on_to_the_same_bits(steps):
    with Workers(1) as workers:
        plain, begun, goes_on = trainer(Trainer, workers), trainer(Trainer, workers), trainer(CudaTrainer, workers)
        for _ in plain.steps():
            pass
        going = begun.steps()
        for _ in range(steps):
            next(going)
        goes_on.load_state_dict(begun.state_dict())
        for _ in goes_on.steps():
            pass
    assert goes_on.step == plain.step == 12
    expected = state(plain)
    for name, value in state(goes_on).items():
        assert torch.equal(value, expected[name]), name


@pytest.mark.usefixtures("stubbed")
@pytest.mark.parametrize("room", [1, 2, 3])
def test_an_ensemble_that_does_not_fit_is_taken_in_parts(room, monkeypatch, capsys):
    team = [Member("sum", seed, 1e-3) for seed in range(5)]
    plan = recipe("paper", samples=50, batch=20, epochs=2)
    config = posattn.ModelConfig(4, embed=8, width=8)

    def crowded(self, tensors, x, y, lists, whole=Plain.gradient):
        assert threading.current_thread() is threading.main_thread()  # a graph records what this thread asks for
        if len(x) > room:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory.")
        return whole(self, tensors, x, y, lists)

    with Workers(2) as workers:
        alone = Trainer(config, plan, team, CPU, workers)
        split = CudaTrainer(config, plan, team, CPU, workers)
        split.groups = [slice(0, 5)]  # as on a GPU
        for _ in alone.steps():
            pass
        monkeypatch.setattr(Plain, "gradient", crowded)
        for _ in split.steps():
            pass
    assert max(group.stop - group.start for group in split.groups) <= room
    assert "does not fit in the GPU's memory; taking" in capsys.readouterr().err
    torch.testing.assert_close(split.history, alone.history, rtol=1e-4, atol=0)
    if room == 1:
        assert torch.equal(split.parameters.flat, alone.parameters.flat)


@pytest.mark.usefixtures("stubbed")
@pytest.mark.parametrize(  # the fold in PyTorch; in kernels. The interpreter takes long, so few batches make an epoch
    ("arch", "schedule", "embed", "layers", "batches"),
    [("standard", "plateau", 16, 2, 1), ("positional", "cosine", 32, 1, 2)],
)
def test_groups_with_the_fused_kernels_train_as_the_plain_path_does(
    arch, schedule, embed, layers, batches, monkeypatch
):
    """Two epochs of three members in two groups, the kernels in Triton's interpreter."""
    pytest.importorskip("triton", reason="Triton has no wheel for this platform; the plain path serves there")
    monkeypatch.setattr("posattn.training.ways.has_kernels", lambda config, device, name: name == "fp32")
    team = [Member("sum", seed, 1e-3) for seed in range(3)]
    plan = recipe("paper", samples=10 * batches, batch=10, epochs=2, schedule=schedule, clip=1.0)
    config = posattn.ModelConfig(3, arch, layers=layers, embed=embed, width=16)
    with Workers(1) as workers:
        plain = Trainer(config, plan, team, CPU, workers)
        ours = CudaTrainer(config, plan, team, CPU, workers, precision="fp32")
        ours.groups = [slice(0, 2), slice(2, 3)]
        for made in (plain, ours):
            for _ in made.steps():
                pass
    assert ours.step == plain.step == 2 * batches
    torch.testing.assert_close(ours.history, plain.history, rtol=1e-4, atol=0)


@pytest.mark.usefixtures("stubbed")
def test_all_kernels_are_compiled_before_a_graph_is_recorded(monkeypatch):
    """Triton has a kernel of its own for data whose place in memory is no multiple of 16 bytes."""
    forms = []

    def gradient(self, tensors, x, y, lists, plain=Plain.gradient):
        forms[-1].add((x.shape, x.data_ptr() % 16, y.data_ptr() % 16))
        return plain(self, tensors, x, y, lists)

    def graph_of(self, batches):
        forms.append(set())
        self._steps_on(batches)
        return Graph(lambda: None)

    monkeypatch.setattr(Plain, "gradient", gradient)
    monkeypatch.setattr(CudaTrainer, "_graph_of", graph_of)
    plan = recipe("paper", samples=52, batch=15, epochs=2)  # batches of 15 * 5 numbers, and one of 7
    with Workers(1) as workers:
        made = CudaTrainer(posattn.ModelConfig(5, embed=8, width=8), plan, TEAM, CPU, workers)
        made.groups, made.tile = [slice(0, 2)], 15
        forms.append(set())
        made._record_what_fits()
    compiled, recorded = forms
    assert recorded <= compiled and len({form[1:] for form in recorded}) > 1


def no_room():
    from triton.runtime.errors import OutOfResources

    return OutOfResources(2**18, 2**16, "shared memory")


def no_assembler():
    from triton.runtime.errors import PTXASError

    printed = "ptxas fatal   : Value 'sm_130a' is not defined for option 'gpu-name'\n"
    command = "ptxas -lineinfo -v --gpu-name=sm_130a a.ptx -o a.ptx.o"
    return PTXASError(f"Internal Triton PTX codegen error\n`ptxas` stderr:\n{printed}\nRepro command: {command}\n")


def no_compiler():
    from triton.compiler.errors import CompilationError

    return CompilationError("a + b", None, "not supported on this architecture")


@pytest.fixture
def failing(monkeypatch):
    """A function that makes every kernel raise an error before it runs, and returns the names of those that were tried."""
    pytest.importorskip("triton", reason="Triton has no wheel for this platform; the plain path serves there")
    from posattn.kernels import folds, fused

    def fail(made):
        tried = []

        def fails(name):
            def launch(*_, **__):
                tried.append(name)
                raise made()

            return launch

        monkeypatch.setattr("posattn.training.ways.has_kernels", lambda config, device, precision: True)
        monkeypatch.setattr(folds, "RowsFold", fails("folding"))
        monkeypatch.setattr(fused, "loss_and_gradients", fails("layers"))
        return tried

    return fail


@pytest.mark.usefixtures("stubbed")
@pytest.mark.parametrize(
    ("error", "precision", "why"),
    [
        (no_room, "fp32", "need more shared memory than this GPU has"),
        (no_room, "tf32", "need more shared memory than this GPU has"),
        (no_assembler, "tf32", "version of Triton (ptxas fatal   : Value 'sm_130a' is not defined for option 'gpu-name')"),
        (no_compiler, "tf32", "are not compiled for this GPU by this version of Triton (not supported on this architecture)"),
    ],
)
def test_a_gpu_on_which_kernels_fail_trains_in_pytorch(error, precision, why, failing, monkeypatch, capsys):
    tried = failing(error)
    plan, team = recipe("paper", samples=20, batch=10, epochs=2), [Member("sum", seed, 1e-3) for seed in range(2)]
    config, products = posattn.ModelConfig(3, embed=32, width=16), []
    monkeypatch.setattr("posattn.training.cuda.Precision", lambda name, _: (products.append(name), contextlib.nullcontext())[1])
    with Workers(1) as workers:
        plain = Trainer(config, plan, team, CPU, workers)
        ours = CudaTrainer(config, plan, team, CPU, workers, precision=precision)
        for made in (plain, ours):
            for _ in made.steps():
                pass
    assert tried == ["folding", "layers"]
    assert products[:2] == ["fp32", "fp32"] and set(products[2:]) == {precision}  # beside kernels, and in their place
    said = capsys.readouterr().err
    assert said.count(why) == 2 and said.endswith("PyTorch computes instead.\n")
    torch.testing.assert_close(ours.history, plain.history, rtol=1e-4, atol=0)


@pytest.mark.usefixtures("stubbed")
def test_half_precision_without_room_for_its_kernels_is_an_error_in_one_sentence(failing):
    failing(no_room)
    plan, team = recipe("paper", samples=20, batch=10, epochs=2), [Member("sum", 0, 1e-3)]
    with Workers(1) as workers:
        made = CudaTrainer(posattn.ModelConfig(3), plan, team, CPU, workers, precision="fp16")
        before = state(made)
        with pytest.raises(posattn.UsageError, match="more shared memory than this GPU has; it must be tf32 or fp32"):
            next(made.steps())
    for name, value in state(made).items():
        assert torch.equal(value, before[name]), name


@pytest.mark.usefixtures("stubbed")
@pytest.mark.parametrize(  # what is wrong: the products of one head; a gradient of every member, or of the last alone
    ("part", "precision", "said"),
    [
        ("folding", "fp32", ["folding is PyTorch's"]),
        ("layers", "tf32", ["folding is PyTorch's", "PyTorch computes instead"]),
        ("layers", "fp16", ["folding is PyTorch's"]),
        ("last member", "fp32", ["folding is PyTorch's", "PyTorch computes instead"]),
        ("nothing", "fp32", []),
    ],
)
def test_kernels_that_a_gpu_computes_wrongly_are_not_used(part, precision, said, monkeypatch, capsys):
    pytest.importorskip("triton", reason="Triton has no wheel for this platform; the plain path serves there")
    from posattn.kernels import folds, fused

    def wrong_fold(self, *given, right=folds.RowsFold.__init__):
        right(self, *given)
        self.folded["U"][..., 1, :] *= 0

    def wrong_layers(*given, right=fused.loss_and_gradients):
        loss, gradients = right(*given)
        wrong = gradients["U"].roll(1, dims=-1)
        if part == "last member":
            wrong[:, :-1] = gradients["U"][:, :-1]
        return loss, gradients | {"U": wrong}

    monkeypatch.setattr("posattn.training.ways.has_kernels", lambda config, device, name: name == precision)
    monkeypatch.setattr("posattn.training.ways._COMPARED", 4)  # a batch of ten is compared in three parts
    if part == "folding":
        monkeypatch.setattr(folds.RowsFold, "__init__", wrong_fold)
    if part in ("layers", "last member"):
        monkeypatch.setattr(fused, "loss_and_gradients", wrong_layers)
    plan, team = recipe("paper", samples=10, batch=10, epochs=2), [Member("sum", seed, 1e-3) for seed in range(2)]
    config = posattn.ModelConfig(3, layers=2, embed=32, width=16)
    with Workers(1) as workers:
        plain = Trainer(config, plan, team, CPU, workers)
        ours = CudaTrainer(config, plan, team, CPU, workers, precision=precision)
        ours.groups, before = [slice(0, 2)], state(ours)
        if precision == "fp16":
            with pytest.raises(posattn.UsageError, match=r"are wrong on this GPU .* it must be tf32 or fp32"):
                next(ours.steps())
            assert all(torch.equal(value, before[name]) for name, value in state(ours).items())
        else:
            for made in (plain, ours):
                for _ in made.steps():
                    pass
            torch.testing.assert_close(ours.history, plain.history, rtol=1e-4, atol=0)
    warned = capsys.readouterr().err.splitlines()
    assert [line.split("; ")[1].rstrip(".") for line in warned] == said


@pytest.mark.usefixtures("stubbed")
def test_a_member_that_does_not_fit_alone_is_an_error_in_one_sentence(monkeypatch):
    def crowded(*_):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    with Workers(1) as workers:
        made = trainer(CudaTrainer, workers)
        before = state(made)
        monkeypatch.setattr(Plain, "gradient", crowded)
        with pytest.raises(posattn.UsageError, match="a single member does not fit"):
            next(made.steps())
    for name, value in state(made).items():
        assert torch.equal(value, before[name]), name  # the state is as it was


TOKENS = [
    ("khop", {"n": 6}),
    ("khop", {"n": 6, "arch": "standard", "tied": True}),
    ("khop", {"n": 6, "arch": "rope-only"}),
    ("mixed-multitask", {"relative": True}),
    ("mixed-sum", {"arch": "standard"}),
]


def token_trainer(kind, workers, name, settings):
    network = posattn.task(name).NETWORK | {"embed": 8, "width": 8, "layers": 2} | settings
    plan = recipe("paper", samples=50, batch=20, epochs=3)
    team = [Member(name, seed, 1e-3) for seed in (3, 4)]
    made = kind(posattn.TokenConfig(**network), plan, team, CPU, workers)
    if kind is CudaTrainer:
        made.groups, made.tile = [slice(0, 2)], 20  # all members in one unit, as on a GPU
    return made


@pytest.mark.usefixtures("stubbed")
@pytest.mark.parametrize(("name", "settings"), TOKENS)
def test_tokens_train_by_epochs_as_by_steps(name, settings):
    with Workers(1) as workers:
        plain, graphed = (token_trainer(kind, workers, name, settings) for kind in (Trainer, CudaTrainer))
        for each in (plain, graphed):
            for _ in each.steps():
                pass
    torch.testing.assert_close(graphed.history, plain.history, rtol=1e-4, atol=1e-5)


class HostQuestions(TorchDispatchMode):
    """Notes operations for which a GPU would wait for the host, or that a graph cannot record."""

    def __init__(self):
        super().__init__()
        self.seen, self.asked = 0, []

    def __torch_dispatch__(self, operation, types, given=(), named=None):
        self.seen += 1
        name = operation.overloadpacket.__name__
        by_mask = name == "index" and any(index is not None and index.dtype == torch.bool for index in given[1])
        if by_mask or name in ("_local_scalar_dense", "nonzero", "masked_select", "lift_fresh", "_unique2", "bincount"):
            self.asked.append(name)
        return operation(*given, **(named or {}))


@pytest.mark.usefixtures("stubbed")
@pytest.mark.parametrize(("name", "settings"), TOKENS)
def test_an_epoch_of_tokens_asks_the_host_nothing(name, settings):
    with Workers(1) as workers:
        made = token_trainer(CudaTrainer, workers, name, settings)
        made._record_what_fits()
        made._shuffle()
        with HostQuestions() as questions:
            made.replay()
    assert questions.seen > 100 and questions.asked == []
    with HostQuestions() as questions:
        torch.ones(3)[torch.ones(3) > 0].sum().item()
    assert questions.asked == ["index", "_local_scalar_dense"]
