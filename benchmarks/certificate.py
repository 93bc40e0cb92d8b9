"""How tight a certificate is, and how long it takes: ``python benchmarks/certificate.py [WIDTH [FOLDER]]``.

Trains scale-exact models for lists of 4 (sum and min, to an error MSE(1) of at most 1e-5) into FOLDER, where they are found
again, and certifies each; at width 32 about five minutes in all, on one core. Wanted: a bound of at most twice the worst error
found, within 10 minutes of CPU time.
"""

import sys
import tempfile

import torch

import posattn
from posattn.guarantees import certify_model

TASKS = ("sum", "min")


def main(width: int = 32, folder: str | None = None) -> None:
    torch.set_num_threads(1)
    config = posattn.ModelConfig(4, "scale-exact", embed=width, width=width)
    with tempfile.TemporaryDirectory() as scratch:
        run = posattn.train(
            TASKS,
            config,
            members=2,
            recipe="tuned",
            samples=30_000,
            batch=250,
            epochs=250,
            device="cpu",
            out=folder or scratch,
        )
    errors = run.evaluate([1.0], 20_000)["mse"]
    print(f"{'task':<6}{'MSE(1)':>10}{'certified':>11}{'found':>9}{'ratio':>7}{'cones':>9}{'CPU seconds':>13}")
    for member, name in enumerate(TASKS):
        found = certify_model(run.model(member), name)
        print(
            f"{name:<6}{errors[member]:>10.1e}{found.bound:>11.4f}{found.adversarial:>9.4f}{found.ratio:>7.2f}"
            f"{found.cones:>9}{found.seconds:>13.0f}",
            flush=True,
        )


if __name__ == "__main__":
    main(*(kind(given) for kind, given in zip((int, str), sys.argv[1:], strict=False)))
