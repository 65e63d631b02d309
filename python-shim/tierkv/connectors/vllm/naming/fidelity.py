"""Owns the reason why an engine with rounded blocks has no name before a sidecar that stores another form."""

#: Shown by `tierkv status` and logged. What the engine computed from rounded blocks lies in its own cache.
OTHER_FIDELITY = (
    "the engine holds blocks that were rounded, and its sidecar now stores blocks in another form;"
    " restart the engine, or the sidecar with its earlier [turbo_quant], [codec] and certificates"
)


def other_fidelity(past: int, now: int | None) -> str:
    """Return the reason if the engine holds rounded blocks of fidelity `past` and the sidecar stores another, else "".

    `past` 0: the engine holds no rounded block. `now` None: the sidecar has not decided.
    """
    return OTHER_FIDELITY if past and now is not None and now != past else ""
