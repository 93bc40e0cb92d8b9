"""What a trained network says to one sequence or prompt, beside the truth, in words."""

from posattn.errors import UsageError
from posattn.tasks import MixedTask, TokenTask, task
from posattn.training.run import Run


def answer_tokens(run: Run, member: int, text: str) -> str:
    """The answer of one network to a sequence (khop) or a prompt (mixed), the true one, and how far they differ."""
    run.check_member(member)
    asked = task(run.spec.members[member].task)
    if not isinstance(asked, TokenTask):
        raise UsageError(f"the task {asked.name} has no tokens.")
    x = asked.encode(text)
    truth = asked.target(x)
    out = run.answer(x, member)
    if isinstance(asked, MixedTask):
        said, right = out.item(), truth.item()
        return f"prompt {asked.decode(x)}\nmodel  {said:.4f}\ntrue   {right:.2f}\nerror  {said - right:+.4f}"
    said_tokens = out.argmax(dim=-1)
    right_ones = int((said_tokens == truth)[1:].sum())
    lines = zip(("input", "model", "true"), (x, said_tokens, truth), strict=True)
    shown = "\n".join(f"{name:<6} {asked.decode(tokens)}" for name, tokens in lines)
    return f"{shown}\nright  {right_ones} of {len(x) - 1} letters"
