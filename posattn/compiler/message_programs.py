"""Programs of MPC, in which the data decides where messages go: grouped sums, list ranking, induction heads.

A machine keeps a word by sending it to itself. Where machines receive several kinds of message, its first word is the kind.
"""

from collections.abc import Callable, Iterable, Sequence

from posattn.compiler.analysis import Known
from posattn.compiler.expressions import Expression, as_expression, both, by_machine, either, equal, linear, select
from posattn.compiler.mpc import MPC, Machine, Message, Received
from posattn.compiler.programs import bitonic_steps, doublings

Send = Callable[[Machine], list[Message]]


def pick(inbox: Sequence[Received], kind: int) -> Received:
    """The one message of a kind, without its first word; zeros where there is none."""
    hits = [both(box.present, equal(box.words[0], kind)) for box in inbox]
    words = [as_expression(0.0)] * (len(inbox[0].words) - 1)
    for hit, box in zip(hits, inbox, strict=True):
        words = [select(hit, new, old) for new, old in zip(box.words[1:], words, strict=True)]
    return Received(either(*hits), tuple(words))


def _sum(parts: Iterable[Expression]) -> Expression:
    return linear(*((part, 1.0) for part in parts))


# --- grouped sum by key -----------------------------------------------------------------------------------------------


def word_count(machines: int, bound: float) -> MPC:
    """Every machine has a key, 0 to N - 1, and a value; machine j ends with the sum of the values with key j.

    In round r a pair moves to the machine that agrees with its key in bit r, and pairs of equal keys are added up. So
    no machine ever holds more than min(2^r, N / 2^r) keys, whatever the keys are.
    """
    size = 1 << (machines - 1).bit_length()
    most = max((min(2 * reach, size // reach) for reach in doublings(size)), default=1)
    absent = size

    def merged(machine: Machine) -> list[tuple[Expression, Expression]]:
        """(key, sum) per message of the inbox: the first of equal keys gets the sum, the others become absent."""
        keys = [select(box.present, box.words[0], absent) for box in machine.inbox]
        pairs = []
        for q, key in enumerate(keys):
            same = [equal(key, other) for other in keys]
            first = _sum(same[:q]) < 1
            total = _sum(select(bit, box.words[1], 0) for bit, box in zip(same, machine.inbox, strict=True))
            pairs.append((select(first, key, absent), total))
        return pairs

    def step(reach: int) -> Send:
        def send(machine: Machine) -> list[Message]:
            pairs = merged(machine) if reach > 1 else [given(machine)]
            return [
                Message(_with_bit(machine.me, key, reach, size), (key, value), key < absent) for key, value in pairs
            ]

        return send

    def given(machine: Machine) -> tuple[Expression, Expression]:
        key, value = machine.inbox[0].words[:2]
        return select(machine.inbox[0].present, key, absent), value

    def finish(machine: Machine) -> list[Expression]:
        return [_sum(select(box.present, box.words[1], 0) for box in machine.inbox)]

    return MPC(
        machines=size,
        memory=2 * most,
        longest=2,
        inputs=(Known(0, machines - 1, True), Known(-bound, bound)),
        rounds=tuple(step(reach) for reach in doublings(size)),
        finish=finish,
        name="word-count",
        spare=size - machines,
    )


def _with_bit(me: Expression, key: Expression, reach: int, size: int) -> Expression:
    """The machine's number with the bit of value ``reach`` taken from ``key``."""
    mine = by_machine(float(bool(i & reach)) for i in range(size))
    return me + (_bit(key, reach, size) - mine) * reach


def _bit(number: Expression, reach: int, size: int) -> Expression:
    """The bit of value ``reach`` of an integer below 2 · ``size``."""
    value = size
    while value > reach:
        number = number - (number >= value) * value
        value //= 2
    return number >= reach


# --- list ranking by pointer jumping ----------------------------------------------------------------------------------

STATE, ASK, ANSWER = 0, 1, 2


def list_ranking(machines: int, bound: float) -> MPC:
    """Every machine is a node of a linked list and has the number of the next node, or N at the end of the list.

    It ends with its distance from the end. Each node asks its next node for that one's next and distance, which doubles its
    reach every two rounds.
    """
    nil = machines

    def state(machine: Machine) -> tuple[Expression, Expression]:
        """(next, distance) after the answer is taken in."""
        own, told = pick(machine.inbox, STATE), pick(machine.inbox, ANSWER)
        return select(told.present, told.words[0], own.words[0]), own.words[1] + told.words[1]

    def asking(follows: Expression, distance: Expression, me: Expression) -> list[Message]:
        keep = Message(me, (STATE, follows, distance))
        return [keep, Message(follows, (ASK, me, 0), follows < nil)]

    def begin(machine: Machine) -> list[Message]:
        follows = machine.inbox[0].words[0]
        return asking(follows, follows < nil, machine.me)

    def ask(machine: Machine) -> list[Message]:
        return asking(*state(machine), machine.me)

    def answer(machine: Machine) -> list[Message]:
        (follows, distance), asked = state(machine), pick(machine.inbox, ASK)
        keep = Message(machine.me, (STATE, follows, distance))
        return [keep, Message(asked.words[0], (ANSWER, follows, distance), asked.present)]

    jumps = len(doublings(machines))
    rounds = [begin, answer, *[ask, answer] * (jumps - 1)] if jumps else []

    def finish(machine: Machine) -> list[Expression]:
        return [state(machine)[1] if jumps else as_expression(0.0)]

    return MPC(machines, 6, 3, (Known(0, nil, True),), tuple(rounds), finish, name="list-ranking")


# --- k-hop induction heads --------------------------------------------------------------------------------------------

HOPS = 3
LETTERS = 26


def khop(machines: int, bound: float) -> MPC:
    """Every machine has a letter, 0 to 25, and the hop count k, 0 to 3; it ends with the letter k hops away, or -1.

    One hop goes from a position to the one after the latest earlier occurrence of its letter. Sorting by letter and place
    makes that occurrence the left neighbour. Then every machine asks, up to three times, where the next hop leads. No two
    machines ask the same one, because different positions have different latest earlier occurrences.
    """
    size = 1 << (machines - 1).bit_length()
    none = size
    steps = bitonic_steps(size)

    # Sorting: a record is (letter · size + place, letter, k).
    def given(machine: Machine) -> list[Expression]:
        letter, hops = machine.inbox[0].words[:2]
        letter = select(machine.inbox[0].present, letter, LETTERS)  # spare machines sort to the end
        return [letter * size + machine.me, letter, hops]

    def kept(machine: Machine, block: int, reach: int) -> list[Expression]:
        """The record that the machine keeps of the two that an exchange brought."""
        a, b = (box.words[:3] for box in machine.inbox[:2])
        wants_less = by_machine(float(bool(i & reach) == bool(i & block)) for i in range(size))
        takes_first = equal(wants_less, a[0] < b[0])
        return [select(takes_first, one, other) for one, other in zip(a, b, strict=True)]

    def sorting(r: int) -> Send:
        partner = by_machine(i ^ steps[r][1] for i in range(size))

        def send(machine: Machine) -> list[Message]:
            record = kept(machine, *steps[r - 1]) if r else given(machine)
            return [Message(machine.me, _filled(record)), Message(partner, _filled(record))]

        return send

    def to_next_door(machine: Machine) -> list[Message]:
        record = kept(machine, *steps[-1]) if steps else given(machine)
        return [
            Message(machine.me, _filled(record)),
            Message(machine.me + 1, _filled(record), machine.me < size - 1),
        ]

    def to_its_place(machine: Machine) -> list[Message]:
        """Tells the machine at the record's place where its hop leads."""
        before, after = (box.words[:3] for box in machine.inbox[:2])
        two = machine.inbox[1].present
        key, letter, hops = (select(two, late, early) for early, late in zip(before, after, strict=True))
        same = both(two, equal(before[1], letter))
        hop = select(same, before[0] - letter * size + 1, none)
        return [Message(key - letter * size, _filled([hop, letter, hops]))]

    # Asking: the state is (hop, letter, k, answer), and ``at`` is the position that the machine's hops have reached.
    def begin(machine: Machine) -> list[Message]:
        hop, letter, hops = machine.inbox[0].words[:3]
        answer = select(hops < 1, letter, -1)
        return _asking(machine.me, (hop, letter, hops, answer), select(hops >= 1, hop, none), none)

    def answering(machine: Machine) -> list[Message]:
        state, asked = pick(machine.inbox, STATE).words[:4], pick(machine.inbox, ASK)
        return [
            Message(machine.me, (STATE, *state)),
            Message(asked.words[0], _filled([ANSWER, state[0], state[1]]), asked.present),
        ]

    def told(machine: Machine, hops_done: int) -> tuple[tuple[Expression, ...], Expression]:
        """The state after an answer, and where the next hop leads."""
        hop, letter, hops, answer = pick(machine.inbox, STATE).words[:4]
        news = pick(machine.inbox, ANSWER)
        arrived = both(news.present, equal(hops, hops_done))
        onward = both(news.present, hops > hops_done)
        state = (hop, letter, hops, select(arrived, news.words[1], answer))
        return state, select(onward, news.words[0], none)

    def asking(hops_done: int) -> Send:
        return lambda machine: _asking(machine.me, *told(machine, hops_done), none)

    hopping: list[Send] = [begin, answering]
    for done in range(1, HOPS):
        hopping += [asking(done), answering]
    return MPC(
        machines=size,
        memory=2 * _LENGTH,
        longest=_LENGTH,
        inputs=(Known(0, LETTERS - 1, True), Known(0, HOPS, True)),
        rounds=(*(sorting(r) for r in range(len(steps))), to_next_door, to_its_place, *hopping),
        finish=lambda machine: [told(machine, HOPS)[0][3]],
        name="khop",
        spare=size - machines,
    )


_LENGTH = 5  # words of every message of khop


def _filled(words: Sequence[Expression | float]) -> list[Expression | float]:
    """Pads a message: if one were shorter, more would fit into a memory, and the inbox would have to be larger."""
    return [*words, *[0.0] * (_LENGTH - len(words))]


def _asking(me: Expression, state: Sequence[Expression], at: Expression, none: int) -> list[Message]:
    return [Message(me, (STATE, *state)), Message(at, _filled([ASK, me]), at < none)]
