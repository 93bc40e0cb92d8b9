"""The theory applied to a :class:`posattn.Transformer`: generalization bound, certificate and the models of Appendix G.

Biases are absorbed by augmentation: every state carries one more coordinate that is always 1. With x̃ = [x, 1],

    W̃_V = [W_V; b_V]       since rows of A sum to one, A (x W_V + b_V) = A x̃ W̃_V
    W̃_1 = [W_O,h W_1a, 0; W_1x, 0; b_O W_1a + b_1, 1]         rows: heads, x, the constant; W_O is absorbed here
    W̃_2 = [W_2, 0; b_2, 1]          relu(1) = 1, so the constant passes on to the next layer
    M̃   = [W_Q; b_Q] [W_K; b_K]ᵀ / √d_k, on P̃ = [P, 1] or on x̃,      w̃ = [w; b]

and the encoder, Ẽ = [E, 0; b_E, 1], is absorbed into what reads it: Ẽ W̃_V, the rows of W̃_1 that read x̃, and M̃ where attention
reads x̃. This is exact: the resulting network has the model's outputs. Without biases nothing is added.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import pad

from posattn.errors import UsageError, whole, within
from posattn.folding import fold, input_encoding, stack_layers
from posattn.model import Layer, ModelConfig, Transformer, input_features, positions_of
from posattn.network import require
from posattn.tasks import task as find_task
from posattn.theory.bound import ATTENTION, FROM, MOST_SAMPLES, TO, GeneralizationBound
from posattn.theory.certificate import Certificate, certify
from posattn.theory.discrepancy import HARD, Members, extremum
from posattn.theory.matrices import ClassNorms, LayerWeights, Network

TRAINING_LIMIT = 2.0  # training values lie in [-2, 2]


def generalization_bound(
    model: nn.Module,
    samples: int,
    delta: float = 0.05,
    cap: int | float = 1.0,
    layer_norm: bool = False,
    attention: str | None = None,
    limit: int | float = TRAINING_LIMIT,
) -> GeneralizationBound:
    """Theorem 6.1 for the class of networks whose norms are at most those of ``model``.

    Args:
        samples: m, the number of training lists.
        delta: the bound holds with probability 1 - delta.
        cap: where the squared error is cut off, which the theorem needs.
        layer_norm: for the same weights with every layer projected to the unit ball (the Remark).
        attention: ``positional`` or ``self-attention``; by default the model's own. The other one gives the bound of its
            counterpart with the same norms.
        limit: the largest magnitude of a number in a list.
    """
    network = network_of(model, limit)
    kind = ATTENTION[network.self_attention] if attention is None else attention
    return network_bound(
        network, whole("samples", samples, least=2, most=int(MOST_SAMPLES)), kind, delta, cap, layer_norm
    )


def network_bound(
    network: Network, samples: int, attention: str, delta: float, cap: int | float, layer_norm: bool = False
) -> GeneralizationBound:
    """``generalization_bound`` for a model's matrices of Eq. 9; every position but the scratchpad is an output."""
    return GeneralizationBound(ClassNorms.of(network), samples, attention, delta, cap, len(network.P) - 1, layer_norm)


def network_of(model: nn.Module, limit: int | float = TRAINING_LIMIT) -> Network:
    """``model`` as the network of Eq. 9, in float64; ``features_of`` makes its input."""
    model = _checked(model, "bound", "bound")
    within("limit", limit, FROM, TO)
    self_attention = model.config.attends == "input"
    with torch.no_grad():
        reading = _augmented(_stacked(model.encoder), model.config.bias)
        layers = []
        for layer in model.layers:
            assert isinstance(layer, Layer)
            layers.append(_layer_weights(layer, reading, model.config.heads, self_attention))
            reading = torch.eye(len(reading.mT), dtype=torch.float64)
        w = _stacked(model.decoder)[:, 0]
        p = _with_one(model.P.double().cpu(), model.config.bias)
        return Network(tuple(layers), w, p, _largest_row(model, limit), self_attention)


def features_of(model: Transformer, x: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch N d_X"]:
    """What ``network_of(model)`` reads for lists ``x``: the encoder's input, with a constant 1 if there are biases."""
    positions = positions_of(x.shape[-1], model.config, x.device)
    features = input_features(x[..., None], model.P[positions], positions, model.config)
    return _with_one(features.double().cpu(), model.config.bias)


def _layer_weights(layer: Layer, reading: Tensor, heads: int, self_attention: bool) -> LayerWeights:
    """Eq. 9's matrices of a layer whose state is the true input times ``reading``."""
    attention = layer.attention
    d = attention.W_O.out_features
    w_v, w_o, w_1 = _stacked(attention.W_V), _matrix(attention.W_O), _matrix(layer.W_1)
    queries, keys = (
        _stacked(linear).unflatten(-1, (heads, -1)).movedim(1, 0) for linear in (attention.W_Q, attention.W_K)
    )
    m = queries @ keys.mT / math.sqrt(queries.shape[-1])
    rows, bias = [w_o @ w_1[:d], w_1[d:]], layer.W_1.bias is not None  # of heads, W_O absorbed, and of x
    if bias:
        rows.append((attention.W_O.bias.double().cpu() @ w_1[:d] + layer.W_1.bias.double().cpu())[None])
    by_head, own = _augmented(torch.cat(rows), bias).tensor_split([len(w_o)])
    return LayerWeights(
        W_V=reading @ w_v.unflatten(-1, (heads, -1)).movedim(1, 0),
        M=reading @ m @ reading.mT if self_attention else m,
        W_1=torch.cat([by_head, reading @ own]),
        W_2=_augmented(_stacked(layer.W_2), bias),
    )


def _matrix(linear: nn.Linear) -> Float[Tensor, "rows columns"]:
    """W of x W + b."""
    return linear.weight.detach().double().cpu().mT


def _stacked(linear: nn.Linear) -> Float[Tensor, "rows columns"]:
    """[W; b], or W where there is no bias."""
    return _matrix(linear) if linear.bias is None else torch.cat([_matrix(linear), linear.bias.double().cpu()[None]])


def _augmented(stacked: Float[Tensor, "rows columns"], bias: bool) -> Float[Tensor, "rows more"]:
    """[W, 0; b, 1] from [W; b]; W where there is no bias."""
    if not bias:
        return stacked
    padded = pad(stacked, (0, 1))
    padded[-1, -1] = 1.0
    return padded


def _with_one(x: Float[Tensor, "*batch n d"], wanted: bool) -> Float[Tensor, "*batch n d1"]:
    return torch.cat([x, torch.ones_like(x[..., :1])], dim=-1) if wanted else x


def _largest_row(model: Transformer, limit: int | float) -> float:
    """B_X: rows of the input are value · slope + base, so their norm is largest at an end of the values' range."""
    positions = positions_of(model.config.n, model.config, model.P.device)
    slope, base = input_encoding(model.P[positions], positions, model.config).double().cpu()
    ends = torch.stack([base + value * slope for value in (-limit, limit)])[:, :-1]
    scratchpad = base[-1:].expand(2, -1, -1)
    return float(_with_one(torch.cat([ends, scratchpad], dim=1), model.config.bias).norm(dim=-1).max())


def _checked(model: nn.Module, ability: str, what: str) -> Transformer:
    """``model`` if it is a Transformer that has the ability, and its weights are finite."""
    if not isinstance(model, Transformer):
        raise UsageError(f"the model is a {type(model).__name__}; the {what} is for posattn.Transformer.")
    require(model.config, ability)
    for name, value in model.named_parameters():
        if not bool(value.isfinite().all()):
            raise UsageError(f"{name} of the model has entries that are not finite numbers.")
    return model


def relu_matrices(model: nn.Module) -> list[Float[Tensor, "_ _"]]:
    """K_1, ..., K_{L+1} of a bias-free positional ``model``: f(x) = K_{L+1} relu(K_L ... relu(K_1 x)), in float64.

    Attention is constant, so a layer is one matrix on all positions and features at once: with the folded U_0, U_h of
    :mod:`posattn.folding`, K = I ⊗ U_0ᵀ + Σ_h A_h ⊗ U_hᵀ.
    """
    model = _checked(model, "certify", "certificate")
    config, n = model.config, model.config.n
    named = {name: value.detach().double().cpu()[None] for name, value in model.named_parameters()}
    folded = fold(stack_layers(named), config, model.P.double().cpu())
    identity = torch.eye(n + 1, dtype=torch.float64)[None]
    matrices = []
    for a, u in zip(folded["A"][:, 0], (folded["U.first"][0], *folded["U"][:, 0]), strict=True):
        # (position, feature out; position, feature in), summed over the identity and the heads
        k = torch.einsum("hpq,dhw->pwqd", torch.cat([identity, a]), u)
        matrices.append(k.flatten(2).flatten(0, 1))
    matrices[0] = matrices[0][:, :n]  # the scratchpad holds 0
    matrices.append(torch.kron(identity[0, :n], folded["w"][0].mT))  # and its output is dropped
    return matrices


def certify_model(model: nn.Module, task: str, ratio: int | float = 1.9, seconds: int | float = 600.0) -> Certificate:
    """Certifies the largest error of a bias-free positional ``model`` over all lists; see :func:`certify`."""
    return certify(relu_matrices(model), find_task(task).target, task, ratio, seconds)


def extremum_model(n: int, maximum: bool = False) -> Transformer:
    """A model of Appendix G's class that computes the min (or max) of n numbers exactly, for n a power of two."""
    return class_model(extremum(n, maximum))


def class_model(members: Members) -> Transformer:
    """The first of ``members``, networks of Appendix G's class, as a model with the same answers; W_V = W_O = I.

    The state holds the number twice, once per head. The appendix has no scratchpad, so no position attends to it.
    """
    layers, n = members.logits.shape[1], members.logits.shape[-1]
    model = Transformer(ModelConfig(n, "scale-exact", layers=layers, heads=2, embed=2, width=4))
    with torch.no_grad():
        model.encoder.weight.fill_(1.0)
        model.decoder.weight.copy_(torch.tensor([[1.0, 0.0]]))
        own = (w[0] for w in (members.logits, members.W_1, members.W_2))
        for layer, logits, w_1, w_2 in zip(model.layers, *own, strict=True):
            assert isinstance(layer, Layer)
            with_scratchpad = torch.full((2, n + 1, n + 1), -HARD)  # (head, query, key)
            with_scratchpad[:, :n, :n] = logits
            with_scratchpad[:, n, n] = HARD
            # With one-hot positions and W_K = I the logits are W_Q's entries over √d_k.
            queries = math.sqrt(n + 1) * with_scratchpad.transpose(1, 2).flatten(0, 1)
            layer.attention.W_Q.weight.copy_(queries)
            layer.attention.W_K.weight.copy_(torch.eye(n + 1).repeat(2, 1))
            layer.attention.W_V.weight.copy_(torch.eye(2))
            layer.attention.W_O.weight.copy_(torch.eye(2))
            layer.W_1.weight.copy_(torch.cat([w_1.mT, torch.zeros(4, 1)], dim=1))
            layer.W_2.weight.copy_(w_2.expand(2, 4))
    return model.eval()
