//! Owns the Hadamard transform of codec 4 in plain Rust, compiled per instruction set.
//!
//! The order of additions is part of the format, and the compiler keeps it. Sums of codes are integers, exact in any order.

/// Most elements transformed together, because sums of that many codes fit 16 bits.
const BLOCK_MAX: usize = 256;

/// Elements transformed together: the largest power of two that divides the head dim, at most `BLOCK_MAX`.
#[must_use]
pub fn block_of(dim: usize) -> usize {
    (1 << dim.trailing_zeros().min(usize::BITS - 1)).min(BLOCK_MAX)
}

/// Element type of a transform: f32 forth, i16 back. Codes of -128, which no writer makes, may wrap; every kernel wraps them alike.
pub trait Number: Copy {
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
}

impl Number for f32 {
    #[inline]
    fn plus(self, other: Self) -> Self {
        self + other
    }
    #[inline]
    fn minus(self, other: Self) -> Self {
        self - other
    }
}

impl Number for i16 {
    #[inline]
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    #[inline]
    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }
}

/// Hadamard transform in place: pairs half the length apart become sum and difference, then pairs a quarter apart, down to
/// neighbours. A register has `LANES` elements.
#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
pub fn transform<N: Number, const LANES: usize>(values: &mut [N]) {
    let (registers, rest) = values.as_chunks_mut::<LANES>();
    halves(registers, plus, minus);
    for register in registers {
        *register = within(*register);
    }
    // The rest is a block shorter than a register.
    halves(rest, N::plus, N::minus);
}

/// The steps between whole values, which do not look inside them.
#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
fn halves<T: Copy>(values: &mut [T], plus: impl Fn(T, T) -> T, minus: impl Fn(T, T) -> T) {
    let mut apart = values.len() / 2;
    // Two steps at once, which halves the memory traffic.
    while apart > 1 {
        for part in values.chunks_exact_mut(2 * apart) {
            let (low, high) = part.split_at_mut(apart);
            let (low, middle) = low.split_at_mut(apart / 2);
            let (next, last) = high.split_at_mut(apart / 2);
            for (((a, b), c), d) in low.iter_mut().zip(middle).zip(next).zip(last) {
                let [upper, lower] = [(plus(*a, *c), plus(*b, *d)), (minus(*a, *c), minus(*b, *d))];
                (*a, *b) = (plus(upper.0, upper.1), minus(upper.0, upper.1));
                (*c, *d) = (plus(lower.0, lower.1), minus(lower.0, lower.1));
            }
        }
        apart /= 4;
    }
    if apart == 1 {
        for [low, high] in values.as_chunks_mut::<2>().0 {
            (*low, *high) = (plus(*low, *high), minus(*low, *high));
        }
    }
}

#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
fn plus<N: Number, const LANES: usize>(one: [N; LANES], other: [N; LANES]) -> [N; LANES] {
    std::array::from_fn(|lane| one[lane].plus(other[lane]))
}

#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
fn minus<N: Number, const LANES: usize>(one: [N; LANES], other: [N; LANES]) -> [N; LANES] {
    std::array::from_fn(|lane| one[lane].minus(other[lane]))
}

/// The steps within a register.
#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
fn within<N: Number, const LANES: usize>(register: [N; LANES]) -> [N; LANES] {
    let mut register = register;
    if LANES >= 16 {
        register = neighbours::<8, N, LANES>(register);
    }
    register = neighbours::<4, N, LANES>(register);
    register = neighbours::<2, N, LANES>(register);
    neighbours::<1, N, LANES>(register)
}

#[expect(clippy::inline_always, reason = "it is compiled for the instruction set of its caller")]
#[inline(always)]
fn neighbours<const APART: usize, N: Number, const LANES: usize>(
    register: [N; LANES],
) -> [N; LANES] {
    std::array::from_fn(|lane| {
        let (one, other) = (register[lane], register[lane ^ APART]);
        if lane & APART == 0 { one.plus(other) } else { other.minus(one) }
    })
}
