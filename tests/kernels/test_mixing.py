"""The kernels of positional attention, run by Triton's interpreter on the CPU, against autograd in float64."""

import contextlib
import os

import numpy
import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "1")  # read when the kernels are defined
pytest.importorskip("triton", reason="Triton has no wheel for this platform; the plain path serves there")

import triton
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from triton.runtime.errors import OutOfResources

import posattn
from posattn.attention import attention_weights, causal_mask
from posattn.kernels import mixing
from posattn.layers import products

pytestmark = pytest.mark.skipif(
    triton.__version__.startswith("3.6") and numpy.lib.NumpyVersion(numpy.__version__) >= "2.4.0",
    reason="Triton 3.6's interpreter, which counts the steps of loops, needs a NumPy before 2.4",
)


def plain(q, k, v, causal):
    mask = causal_mask(torch.arange(q.shape[1])) if causal else None
    return torch.einsum("hij,bjhe->bihe", attention_weights(q, k, mask), v)


def drawn(heads, n, d_k, batch, e):
    q, k = 2 * torch.randn(2, heads, n, d_k)
    return q, k, torch.randn(batch, n, heads, e)


@pytest.fixture
def small(monkeypatch):
    """Tiles of 16 by 32, so that small sizes have several of them, whole and not."""
    monkeypatch.setattr(mixing, "FILL", 32)
    monkeypatch.setattr(mixing, "columns_of", lambda width: max(16, 2 ** (width - 1).bit_length()))
    tilings = {name: mixing.Tiling(16, 32, 16, 4, 1) for name in mixing.TILINGS}
    monkeypatch.setattr(mixing, "TILINGS", tilings | {"narrow": mixing.Tiling(16, 16, 32, 4, 1)})


def test_blocks_of_mix_lie_within_the_filled_blocks_of_the_diagonal():
    for name in ("mix", "narrow"):
        assert mixing.FILL % mixing.TILINGS[name].rows == 0


@pytest.mark.parametrize(("batch", "n", "d"), [(1024, 65536, 64), (1024, 46336, 64), (8, 300, 64), (1, 2**22, 64)])
def test_a_part_of_a_that_is_stored_is_counted_in_32_bits(batch, n, d):
    v = torch.empty(batch, n, 1, d, device="meta")
    rows = mixing._rows(v)
    assert rows * mixing.wide_of(n) <= 2**31 and rows * n <= max(v.numel(), 256 * n)
    assert (rows == n) == mixing._stores(v) == (n <= 46336 and n <= batch * d)


SIZES = [
    (2, 64, 16, 2, 32),  # even, stored
    (1, 128, 16, 1, 32),  # even, not stored: dS in two parts of rows
    (2, 37, 5, 3, 7),  # odd, not stored
    (2, 23, 5, 11, 3),  # odd, stored
    (1, 103, 3, 2, 5),  # odd: dS in two parts, the last one shorter
    (2, 1, 1, 1, 1),
]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_kernels_equal_autograd(sizes, causal):
    leaves = [x.requires_grad_() for x in drawn(*sizes)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    y, expected = mixing.mixed(*leaves, causal)[0], plain(*exact, causal)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    dy = torch.randn_like(y)
    found, wanted = torch.autograd.grad(y, leaves, dy), torch.autograd.grad(expected, exact, dy.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-5 * max(float(other.abs().max()), 1))


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sizes", [SIZES[0], SIZES[4]], ids=str)
def test_kernels_in_half_precision_are_as_exact_as_it_is(sizes, causal):
    """What layers call them with. Of bfloat16 the interpreter has no products: benchmarks/layer.py checks it on a GPU."""
    leaves = [x.half().requires_grad_() for x in drawn(*sizes)]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    y, expected = mixing.mixed(*leaves, causal)[0], plain(*exact, causal)
    dy = torch.randn_like(y)
    found = [y, *torch.autograd.grad(y, leaves, dy)]
    wanted = [expected, *torch.autograd.grad(expected, exact, dy.double())]
    for one, other in zip(found, wanted, strict=True):
        assert one.dtype == torch.float16 and (one.double() - other).norm() < 3e-3 * other.norm()


@pytest.fixture
def everywhere(small, monkeypatch):
    """Layers on a CPU compute with the kernels."""
    monkeypatch.setattr(products, "served", lambda q, v: True)


@pytest.mark.parametrize(("encoding", "causal"), [("one-hot", True), ("binary", False)])
def test_the_layer_is_the_same_with_kernels(encoding, causal, everywhere, monkeypatch):
    """With padding and without; a whole batch of padding too, and fewer positions than the layer has."""
    layer = posattn.PositionalAttention(29, 12, 3, causal=causal, encoding=encoding)
    with torch.no_grad():
        layer.attention.W_Q.weight.mul_(4)
    for n, lengths in ((29, None), (23, (23, 7, 0))):
        x = torch.randn(3, n, 12, requires_grad=True)
        mask = None if lengths is None else torch.arange(n) >= torch.tensor(lengths)[:, None]
        wanted = [x, *layer.parameters()]
        y = layer(x, mask)
        found = [y, *torch.autograd.grad(y.square().sum(), wanted)]
        with monkeypatch.context() as plainly:
            plainly.setattr(products, "served", lambda q, v: False)
            y = layer(x, mask)
            expected = [y, *torch.autograd.grad(y.square().sum(), wanted)]
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("small")
def test_the_operators_keep_the_rules_of_operators():
    """Fake tensors have the shapes and layouts of real ones, autograd is registered, nothing is written to an input."""
    q, k, v = (x.requires_grad_() for x in drawn(2, 7, 3, 2, 5))
    torch.library.opcheck(mixing.mixed, (q, k, v, True))
    turned = torch.randn(2, 3, 7).mT.requires_grad_()  # queries laid out as one-hot parameters are
    torch.library.opcheck(mixing.mixed, (turned, torch.randn(2, 3, 7).mT, v, False))


@pytest.mark.usefixtures("small", "unchecked")
def test_compile_and_export_see_the_operator(monkeypatch):
    """With all that a layer asks on a GPU before it takes the kernels, but whether it is on one."""
    monkeypatch.setattr(products, "_half_on_gpu", lambda v: True)
    torch.compiler.reset()  # other tests compile layers, too, and few forms of a function are kept
    layer, x = posattn.PositionalAttention(7, 24, 3, causal=True), torch.randn(2, 7, 24)
    y = layer(x)
    graphs = []
    backend = aot_autograd(fw_compiler=lambda graph, _: (graphs.append(graph), make_boxed_func(graph))[1])
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    expected = torch.autograd.grad(y.sum(), list(layer.parameters()))
    for one, other in zip(torch.autograd.grad(compiled(x).sum(), list(layer.parameters())), expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)
    program = torch.export.export(layer, (x,))
    for graph, operator in ((graphs[0], "posattn.mix.d"), (graphs[1], "posattn.mix_backward.d"), (program, "posattn.mix.d")):
        assert any(operator in str(node.target) for node in graph.graph.nodes)
    torch.testing.assert_close(program.module()(x), y, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("small")
def test_transforms_of_functions_take_the_plain_path(monkeypatch):
    """The kernels have no rules for them: torch.func.jvp would give zero."""
    layer, x = posattn.PositionalAttention(9, 24, 3, causal=True), torch.randn(2, 7, 24)
    named = dict(layer.named_parameters())

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,)).square().mean()

    def derivatives():
        _, tangent = torch.func.jvp(layer, (x,), (torch.ones_like(x),))
        each = torch.func.vmap(torch.func.grad(loss), (None, 0))(named, x)
        return [tangent, torch.func.vmap(layer)(x), *each.values()]

    expected, called = derivatives(), []
    monkeypatch.setattr(products, "_half_on_gpu", lambda v: True)
    monkeypatch.setattr(mixing, "mixed", lambda *given, own=mixing.mixed: (called.append(given), own(*given))[1])
    layer(x)
    assert len(called) == 1
    torch.testing.assert_close(derivatives(), expected)
    assert len(called) == 1


@pytest.mark.parametrize("causal", [False, True])
def test_a_smaller_gpu_takes_smaller_tiles_to_the_same_result(causal, monkeypatch):
    """A kernel that needs more shared memory than there is raises before it runs."""
    leaves = [x.requires_grad_() for x in drawn(2, 70, 5, 3, 7)]
    y = mixing.mixed(*leaves, causal)[0]
    expected = [y, *torch.autograd.grad(y.square().sum(), leaves)]

    class Small:
        """A kernel on a GPU with room for the smallest tiles alone."""

        def __init__(self, kernel):
            self.kernel, self.refused = kernel, []

        def __getitem__(self, grid):
            return lambda *given, **named: self.launch(grid, given, named)

        def launch(self, grid, given, named):
            if max(named["R"], named["C"]) > 64 or named["num_stages"] > 1:
                self.refused.append((named["R"], named["C"], named["num_stages"]))
                raise OutOfResources(2**18, 2**16, "shared memory")
            self.kernel[grid](*given, **named)

    kernels = {name: Small(getattr(mixing, name)) for name in ("weigh", "mix", "slope")}
    for name, kernel in kernels.items():
        monkeypatch.setattr(mixing, name, kernel)
    y = mixing.mixed(*leaves, causal)[0]
    for one, other in zip([y, *torch.autograd.grad(y.square().sum(), leaves)], expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-4 * other.detach().abs().max().item())
    assert all((64, 64, 2) in kernel.refused for kernel in kernels.values())
    monkeypatch.setattr(mixing, "smaller", lambda tiling: [tiling])
    with pytest.raises(OutOfResources):  # if nothing fits, it is not hidden
        mixing.mixed(*leaves, causal)


def test_kernels_are_launched_on_the_gpu_that_has_the_tensors(small, monkeypatch):
    """With several GPUs the current one need not be theirs, and Triton asks for no other."""
    events = []

    @contextlib.contextmanager
    def current(device):
        events.append(device)
        yield
        events.append("left")

    class Noted:
        def __init__(self, name):
            self.name, self.kernel = name, getattr(mixing, name)

        def __getitem__(self, grid):
            events.append(self.name)
            return self.kernel[grid]

    monkeypatch.setattr(mixing, "current", current)
    for name in ("weigh", "mix", "overlap", "slope"):
        monkeypatch.setattr(mixing, name, Noted(name))
    leaves = [x.requires_grad_() for x in drawn(2, 7, 3, 2, 5)]
    torch.autograd.grad(mixing.mixed(*leaves, True)[0].sum(), leaves)
    forward, back = events[:4], events[4:]
    assert forward == [torch.device("cpu"), "weigh", "mix", "left"]
    assert back[0] == torch.device("cpu") and back[-1] == "left" and {"mix", "overlap", "slope"} <= set(back[1:-1])
    assert back.count("left") == 1


@pytest.mark.usefixtures("everywhere")
def test_autocast_chooses_the_precision_of_the_operator(monkeypatch):
    seen = []
    monkeypatch.setattr(
        mixing, "mixed", lambda q, k, v, causal: (seen.extend(x.dtype for x in (q, k, v)), (v, None))[1]
    )
    with torch.autocast("cpu", dtype=torch.bfloat16):
        posattn.PositionalAttention(7, 6, 3)(torch.randn(2, 7, 6))
    assert seen == [torch.bfloat16] * 3
