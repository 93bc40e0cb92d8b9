# %% [markdown]
# # Write, compile and inspect a parallel program
#
# We write a parallel program, watch it run round by round, compile it to the weights of a positional Transformer, and
# look inside: its attention *is* the program's communication. The program is the moving maximum: y_i is the largest of
# x_i and the three numbers before it. Runs in seconds.

# %%
import numpy as np
import torch

import posattn
from posattn.compiler import Real, compile_program, maximum, send
from posattn.graphs.pictures import network_graph, program_graph, svg
from posattn.graphs.reports import compiled_report

N = 8

# %% [markdown]
# ## Write
#
# Eight machines hold one number each. A window of four is two windows of two side by side, and that is two windows of
# one: so in round 1 machine i hears machine i - 1, in round 2 machine i - 2, and each time keeps the larger number.
#
# The program is a function that says what one machine does. `me` is its number and `n` how many there are. `yield` ends
# a round: it sends, and gives what arrived. Machines at the beginning hear nobody, and keep their own number. `Real`
# says what may come in; the network will refuse anything else.


# %%
@posattn.program(x=Real(-1000, 1000))
def moving_maximum(me, n, x):
    """The largest of a number and the three before it."""
    for reach in (1, 2):
        heard = yield send(me + reach, x, when=me < n - reach)
        x = maximum(x, heard.get(empty=x))
    return x


# %% [markdown]
# Beside it goes the answer in plain Python, to check against:


# %%
@moving_maximum.truth
def windows(x):
    return [max(x[max(0, i - 3) : i + 1]) for i in range(len(x))]


# %% [markdown]
# ## Compile
#
# One layer per round and one for the start, one head per memory position (Lemma B.2). The result is a `posattn.Transformer`
# like a trained one. It answers in float64, without error on these integers, at any scale up to its bound.

# %%
compiled = compile_program(moving_maximum, N)
print(compiled.sizes().to_string(index=False))
model = compiled.model
x = np.array([3.0, -1.0, 4.0, 1.0, -5.0, 9.0, 2.0, -6.0])
assert model(torch.tensor(x)).tolist() == windows(x)
assert model(torch.tensor(100 * x)).tolist() == [100 * value for value in windows(x)]

# %% [markdown]
# `check` runs it at every level on random inputs: as it is written, in the model of computation of the proof (PCOC), and
# as networks with hardmax and with softmax.

# %%
table = compiled.check(samples=100)
print(table.to_string(index=False))
assert table["agrees"].all()

# %% [markdown]
# ## Watch
#
# Every variable has a column in the network's states. `trace` reads them: the numbers at all machines when a round ends.

# %%
trace = compiled.trace(x[:, None])
print(trace.table().to_string(index=False))
assert trace["x"][1].tolist() == [3, 3, 4, 4, 1, 9, 9, 2]

# %% [markdown]
# Beyond the bound it says so instead of answering wrongly:

# %%
try:
    model(torch.tensor(1000 * x))
except posattn.UsageError as error:
    print(error)
else:
    raise AssertionError("an input outside the bounds was taken")

# %% [markdown]
# ## Inspect
#
# Attention does not see the numbers: it is the oracle of the program, written in W_Q. Reading it back gives the
# program's graph, and says that each layer is one round of a scan. Position N is the sink, which machines hear that
# hear nobody.

# %%
attention = model.attention()  # (layers, heads, receiver, sender)
print("layer 2, head 2: machine 1 to 8 hears", (attention[1, 1].argmax(dim=-1)[:N] + 1).tolist())
assert attention[1, 1].argmax(dim=-1)[:N].tolist() == [N, 0, 1, 2, 3, 4, 5, 6]

graph = network_graph(model, "moving-maximum")
assert graph.arrows == program_graph(compiled.program).arrows
picture = svg(graph)  # text, to be written to a file and opened in a browser
report = compiled_report(model, "moving-maximum")
print(report.patterns().to_string(index=False))
assert [layer.patterns["scan"] for layer in report.layers] == [(1.0, 1), (1.0, 2)]

# %% [markdown]
# ## With softmax
#
# Trained networks have softmax in place of hardmax. Ask for an error and the compiler finds the temperature (Lemma
# B.3); it is a guarantee, so real errors are smaller.

# %%
soft = compile_program(moving_maximum, N, epsilon=0.01)
random = np.random.default_rng(0).uniform(-1000, 1000, (500, N))
slow = np.array([windows(row) for row in random])
with torch.no_grad():
    moved = (soft.model(torch.from_numpy(random)) - torch.from_numpy(slow)).abs().max()
print(f"temperature {soft.lowered.temperature:.1f}: answers move by {moved:.1e}, at most {soft.lowered.error:.1e}")
assert 0 < moved <= soft.lowered.error <= 0.01 * (1 + 1e-6)

# %% [markdown]
# ## Further
#
# Programs whose messages go where the data say compile too, and `posattn compile --list` shows those of the library:
# [the compiler](../compiler.md). What *trained* networks communicate, which
# is something else, is in [the communication graph](../communication-graph.md).
