"""The cover of Appendix C: its display before Eq. 20 as printed and as it should be, and elements that leave the class."""

import math

import pytest
import torch

from posattn.theory.matrices import spectral, two_one


def printed_constants(L, H=1.0, B2=2.0):
    """α, β, γ, η and B of the last layer as printed, with L_σ = B_P = 1."""
    growth = B2**2 * math.sqrt(1 + H * B2**2)
    return B2 ** (3 * L - 3), B2, 2 * growth ** (L - 1) * B2**3, math.sqrt(H) * B2**2, growth**L


def test_the_display_before_equation_20_needs_b_2_to_the_6l_and_b_l_to_the_fourth():
    """H B_L² α² (β² + γ² + η²) is within a constant of B_2^6L B_L⁴ H², and leaves B_2^3L B_L² H² behind exponentially."""
    for H in (1.0, 4.0):
        for L in range(1, 13):
            alpha, beta, gamma, eta, B = printed_constants(L, H)
            before = H * B**2 * alpha**2 * (beta**2 + gamma**2 + eta**2)
            assert before <= 6 * 2.0 ** (6 * L) * B**4 * H**2
            assert L == 1 or before > 8.0**L * 2.0 ** (3 * L) * B**2 * H**2


def test_elements_of_a_sparse_cover_leave_the_class_and_moving_them_into_it_doubles_the_radius():
    """W = I has ‖W‖_2 = 1, ‖W‖_{2,1} = 4; a mean of k atoms of norm 4, of which covers are made, has a larger ‖·‖_2."""
    atoms = 4 * torch.eye(4, dtype=torch.float64)
    x = torch.nn.functional.normalize(torch.randn(50, 4, dtype=torch.float64), dim=-1)
    for k in (1, 2, 6):
        picked = torch.bincount(torch.randint(4, (k,)), minlength=4).double() / k
        assert spectral(torch.diag(picked) @ atoms) > 1 and two_one(torch.diag(picked) @ atoms) == pytest.approx(4)
    # Outside elements u, each replaced by a member of the class within ε of it: what was within ε of u is within 2ε.
    members = torch.stack([torch.diag(torch.rand(4, dtype=torch.float64)) for _ in range(200)])
    outside = torch.stack([members[i] + 0.1 * torch.randn(4, 4, dtype=torch.float64) for i in range(0, 200, 4)])
    between = torch.stack([(x @ (u - members)).norm(dim=-1).amax(dim=-1) for u in outside])  # (outside, member)
    epsilon = between.amin(dim=0).amax()  # the radius of the cover from outside
    used = between.amin(dim=1) <= epsilon
    inside = members[between.argmin(dim=1)[used]]
    radius = torch.stack([(x @ (v - members)).norm(dim=-1).amax(dim=-1) for v in inside]).amin(dim=0).amax()
    assert radius <= 2 * epsilon
