"""MPC to PCOC (Lemma B.1): routing messages with data-dependent addresses over a network that is fixed.

A round of MPC becomes the 2k - 1 steps of a Beneš network on P = 2^k ≥ N machines. A message is cut into *tuples* of a word
and a key. The key is the integer ((r(j) P + i) M + m) B + pos: r(j) is the destination j with its bits reversed, i the sender,
m the number of the message at its sender, pos the place of the word in the message. Keys are ordered by destination, and at
the receiver by sender, message and word. Because bits are reversed, each step of the collection needs one comparison.

Every machine holds 2S tuples. Before each step local computation sorts them, so that the oracle need not see them. In the
fragmentation phase they are sorted by destination; even places go to the first half of the memory and odd ones to the second.
In the collection phase tuples that stay go to the first half and tuples that leave to the second. A machine receives the first
half from itself and the second from its partner. By Facts B.1 and B.2 no machine holds more than S tuples if every message has
a multiple of 2^(k-1) of them, so messages are padded to B tuples.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from posattn.compiler.analysis import BLANK, Analysis, Known
from posattn.compiler.benes import Benes, size_for
from posattn.compiler.expressions import (
    Assume,
    Expression,
    Memory,
    as_expression,
    both,
    by_machine,
    either,
    linear,
    select,
    sort_records,
)
from posattn.compiler.machine_memory import MISADDRESSES, OVERFLOWS, PASSES_ON, RECEIVES, SENDS
from posattn.compiler.mpc import MPC, Machine, Message
from posattn.compiler.pcoc import PCOC, Excess, Guard, Local, Round
from posattn.compiler.program_messages import Place
from posattn.compiler.traces import Labels, answer_columns
from posattn.errors import UsageError

CELLS = 2  # a tuple is a key and a word


@dataclass(frozen=True)
class Layout:
    """The sizes of a program's routing: the network, the tuples and the parts of a key."""

    program: MPC
    network: Benes
    messages: int  # M: the largest number of messages that a machine lists in a round

    @property
    def padded(self) -> int:
        """B: tuples per message, the next multiple of 2^(k-1)."""
        least = 1 << (self.network.k - 1)
        return -(-self.program.longest // least) * least

    @property
    def tuples(self) -> int:
        """S: tuples that a machine may send and receive."""
        return self.program.places * self.padded

    @property
    def factor(self) -> float:
        """The factor by which padding enlarges the memory: S / s."""
        return self.tuples / self.program.memory

    @property
    def per_destination(self) -> int:
        return self.network.machines * self.messages * self.padded

    @property
    def blank(self) -> int:
        """The first key that stands for no tuple."""
        return self.network.machines * self.per_destination

    @property
    def memory(self) -> int:
        """Memory positions per machine: 2S tuples of two."""
        return 2 * self.tuples * CELLS

    def tuples_of(self, memory: Memory) -> list[list[Expression]]:
        """(key, word) of every place; the first S places are the first half."""
        return [[memory[CELLS * place], memory[CELLS * place + 1]] for place in range(2 * self.tuples)]

    def reversed_number(self, i: int, bits: int) -> int:
        """r(i), with all but the lowest ``bits`` bits of i taken as 0."""
        return sum((i >> bit & 1) << (self.network.k - 1 - bit) for bit in range(bits))


def layout(program: MPC) -> Layout:
    view = program.view()
    most = max((len(program.messages(r, view)) for r in range(len(program.rounds))), default=1)
    return Layout(program, size_for(program.machines), max(1, most))


def fixed_communication(program: PCOC | MPC) -> PCOC:
    """A PCOC program that gives the same answers: the program itself, or for MPC that of Lemma B.1."""
    return simulate(program) if isinstance(program, MPC) else program


def simulate(program: MPC) -> PCOC:
    """The PCOC program that gives the same answers, in (2k - 1) R rounds with 2S tuples of memory."""
    plan = layout(program)
    words = [known.join(BLANK) for known in program.inputs] + [BLANK] * (program.longest - len(program.inputs))
    computes: list[tuple[Local, Guard]] = []  # the program's own, before every delivery and after the last
    for r in range(len(program.rounds)):
        computes.append(_own(plan, r, words))
        words = _sent_knowledge(program, r, words)
    (start, start_guard), *others = [*computes, _own(plan, len(program.rounds), words)]
    *inner, last = plan.network.steps
    placing = [Round(_receive(plan, step), _placing(plan, step + 1), lambda memory: [_held(plan, memory)]) for step in inner]
    rounds = [each for own in others for each in (*placing, Round(_receive(plan, last), *own))]
    answers = len(program.answers(program.view()))
    return PCOC(
        machines=plan.network.machines,
        memory=plan.memory,
        inputs=program.inputs,
        rounds=tuple(rounds),
        outputs=tuple(range(answers)),
        start=start,
        start_guard=start_guard,
        name=program.name,
        spare=plan.network.machines - program.length,
        labels=_labels(program, len(plan.network.steps), answers) if program.names else None,
    )


def _labels(program: MPC, steps: int, answers: int) -> Labels:
    """Only the answers have columns of their own: during routing any word may lie anywhere."""
    rounds = [program.names[0]]
    for before, name in pairwise(program.names):
        rounds += [*(f"{before}, step {step} of routing" for step in range(1, steps)), name]
    return Labels(tuple(rounds), (*({} for _ in rounds[1:]), answer_columns(answers)))


def _receive(plan: Layout, step: int) -> Callable[[int], list[tuple[int, range]]]:
    """The oracle: machine i receives the first half from itself and the second from its partner, whatever the data."""
    half = plan.tuples * CELLS
    return lambda i: [(i, range(half)), (plan.network.partner(step, i), range(half, 2 * half))]


# --- local computation between the steps ------------------------------------------------------------------------------


def _placing(plan: Layout, step: int) -> Local:
    """Sorts the received tuples into the halves that ``step`` needs."""

    def compute(memory: Memory) -> list[Expression]:
        tuples = plan.tuples_of(memory)
        return _placed(plan, step, memory.me, sort_records(tuples) if plan.network.fragments(step) else tuples)

    return compute


def _placed(plan: Layout, step: int, me: Expression, tuples: list[list[Expression]]) -> list[Expression]:
    """The tuples in the halves of memory that stay and that leave in ``step``.

    Fragmentation: of the tuples, sorted by destination, even ones stay and odd ones leave. Collection: a tuple stays if the
    next bit of its destination is the machine's own; blanks fill the middle.
    """
    if plan.network.fragments(step):
        return [part for each in (*tuples[::2], *tuples[1::2]) for part in each]
    machines, k, bit = range(plan.network.machines), plan.network.k, step - plan.network.k
    # All tuples here agree with the machine in the lower bits, so one comparison decides the next bit.
    threshold = by_machine(
        (plan.reversed_number(i, bit) + (1 << (k - 1 - bit))) * plan.per_destination for i in machines
    )
    own = by_machine(i >> bit & 1 for i in machines)
    records = []
    for key, word in tuples:
        theirs = key >= threshold
        leaves = select(own, 1 - theirs, theirs)
        side = select(key >= plan.blank, 1, 2 * leaves)
        records.append([side, key, word])
    return [part for _, key, word in sort_records(records) for part in (key, word)]


def _held(plan: Layout, memory: Memory) -> Excess:
    """Tuples that a machine holds beyond S during routing: by Facts B.1 and B.2 none, if no machine receives too much."""
    held = ((key < plan.blank, 1.0) for key, _ in plan.tuples_of(memory))
    return Excess(linear(*held, constant=-float(plan.tuples)), PASSES_ON)


# --- local computation of the program's own rounds --------------------------------------------------------------------


def _machine(plan: Layout, r: int, memory: Memory, words: Sequence[Known]) -> Machine:
    """A machine in the program's own round ``r``. Its first inbox holds one message, the input.

    Later tuples, sorted by sender, message and word, are messages again (recombination).
    """
    program, zero = plan.program, as_expression(0.0)
    if r == 0:
        given = memory[: len(program.inputs)] + [zero] * (program.longest - len(program.inputs))
        none = Place(zero, (zero,) * program.longest)
        return Machine(memory.me, (Place(memory.me < program.length, tuple(given)), *[none] * (program.places - 1)))
    boxes = []
    for block in _blocks(plan, memory)[: program.places]:
        pairs = zip((word for _, word in block), words, strict=False)
        boxes.append(Place(block[0][0] < plan.blank, tuple(Assume(word, k.lo, k.hi, k.integer) for word, k in pairs)))
    return Machine(memory.me, tuple(boxes))


def _blocks(plan: Layout, memory: Memory) -> list[list[list[Expression]]]:
    """The tuples that have arrived, grouped by message: up to twice as many messages as fit into the inbox."""
    ordered = sort_records(plan.tuples_of(memory))
    return [ordered[start : start + plan.padded] for start in range(0, len(ordered), plan.padded)]


def _received(plan: Layout, memory: Memory) -> Excess:
    """Words that a machine receives beyond s."""
    counted = ((block[0][0] < plan.blank, float(plan.program.longest)) for block in _blocks(plan, memory))
    return Excess(linear(*counted, constant=-float(plan.program.memory)), RECEIVES)


def _own(plan: Layout, r: int, words: Sequence[Known]) -> tuple[Local, Guard]:
    """The program's own round ``r``, or its finish: the computation that writes messages or answers, and the guard."""
    program, finish = plan.program, r == len(plan.program.rounds)

    def compute(memory: Memory) -> list[Expression]:
        machine = _machine(plan, r, memory, words)
        if not finish:
            return _as_tuples(plan, memory.me, program.messages(r, machine))
        answers = program.answers(machine)
        return answers + [as_expression(0.0)] * (plan.memory - len(answers))

    def guard(memory: Memory) -> list[Excess]:
        machine = _machine(plan, r, memory, words)
        found = [_received(plan, memory)] if r else []
        found += [Excess(count, OVERFLOWS) for count in program.checks(r, machine)]
        if finish:
            return found
        messages = program.messages(r, machine)
        sent = [both(each.when >= 1, memory.me < program.machines) for each in messages]
        lost = [
            both(bit, either(each.to < 0, each.to >= program.machines))
            for bit, each in zip(sent, messages, strict=True)
        ]
        counted = ((bit, float(program.longest)) for bit in sent)
        found.append(Excess(linear(*counted, constant=-float(program.memory)), SENDS))
        return [*found, Excess(linear(*((bit, 1.0) for bit in lost)), MISADDRESSES)]

    return compute, guard


def _as_tuples(plan: Layout, me: Expression, messages: list[Message]) -> list[Expression]:
    """The messages in the order of destinations, cut into tuples and placed for the first step."""
    records = [_record(plan, me, m, sent) for m, sent in enumerate(messages)]
    kept = sort_records(records)[: plan.program.places]
    tuples = [
        [group * plan.padded + pos, carried[pos] if pos < len(carried) else as_expression(0.0)]
        for group, *carried in kept
        for pos in range(plan.padded)
    ]
    nothing = [as_expression(float(plan.blank)), as_expression(0.0)]
    tuples += [nothing] * (2 * plan.tuples - len(tuples))
    return _placed(plan, plan.network.steps[0], me, tuples)


def _record(plan: Layout, me: Expression, m: int, message: Message) -> list[Expression]:
    """A message as a record: (r(j) P + i) M + m, or a blank, and its words. Machines beyond the program's own send none."""
    sent = both(message.when, me < plan.program.machines)
    origin = me * plan.messages + m
    group = _reversed_bits(message.to, plan.network.k) * (plan.network.machines * plan.messages) + origin
    blank = plan.blank // plan.padded
    return [select(sent, group, blank), *(select(sent, word, 0) for word in message.words)]


def _reversed_bits(number: Expression, k: int) -> Expression:
    """r(j) for j = ``number``: takes the most significant bit of the rest, k times."""
    total = as_expression(0.0)
    for bit in reversed(range(k)):
        digit = number >= (1 << bit)
        number = number - digit * (1 << bit)
        total = total + digit * (1 << (k - 1 - bit))
    return total


# --- ranges of words ---------------------------------------------------------------------------------------------------
# In a machine's memory any word may lie at any place, so the ranges of words mix. In the program they do not: word w of the
# messages of one round has its own range. It is computed here, and the receivers assume it.


def _sent_knowledge(program: MPC, r: int, words: Sequence[Known]) -> list[Known]:
    """What is known of each word of round ``r``'s messages, given that of the round before; a place may be empty."""
    cells = [known for _ in range(program.places) for known in (Known(0.0, 1.0, True), *words)]
    analysis = Analysis(cells, program.machines, place=f"{program.place(r)}: ")
    found = [BLANK] * program.longest
    for m, message in enumerate(program.messages(r, program.view()), start=1):
        if not analysis.known(message.to).integer:
            raise UsageError(
                f"{analysis.place}message {m} is for a machine whose number need not be whole; "
                f"it must be 0 to {program.machines - 1}."
            )
        analysis.check_bit(analysis.known(message.when), f"when of message {m}")
        found = [k.join(analysis.known(word)) for k, word in zip(found, message.words, strict=True)]
    return found
