"""Section 6 and Appendices C, E and G as functions: norms and bound, OOD probability, discrepancy, scale law, certificate."""

from posattn.theory.bound import GeneralizationBound
from posattn.theory.ood import OODProbability, ood_probability

__all__ = ["GeneralizationBound", "OODProbability", "ood_probability"]
