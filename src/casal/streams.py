"""Random streams by key: whoever asks for the same key gets the same numbers, so that no stream has to be kept."""

from __future__ import annotations

import numpy as np
import torch

WORDS = 624
"""Words of the state of torch's generator on the CPU (MT19937); they are 64 bits apart, from byte 24 on."""


def stream(seed: int, *key: int | str, device: torch.device | str = "cpu") -> torch.Generator:
    """The random stream of a run with a key, such as (stage, batch) or ("pilot",).

    The seed and the key make 128 bits, and from these all words of the state of the generator are filled.
    ``manual_seed`` takes 32 bits on the CPU: among 20,000 streams of one run two would be equal with a chance of 5 %.

    Args:
        seed: Of the run.
        key: What the stream is for: whole numbers >= 0, or words.
        device: Of the numbers. Off the CPU a generator takes 64 bits, and these are what it gets.
    """
    spawn = tuple(int.from_bytes(part.encode(), "little") if isinstance(part, str) else part for part in key)
    sequence = np.random.SeedSequence(seed, spawn_key=spawn)
    generator = torch.Generator(device)
    if generator.device.type != "cpu":
        return generator.manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
    state = generator.manual_seed(0).get_state()
    words = sequence.generate_state(WORDS).astype(np.uint64)
    state[24 : 24 + 8 * WORDS] = torch.from_numpy(words.view(np.uint8).copy())
    return generator.set_state(state)
