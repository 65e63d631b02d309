//! Owns how much of a prompt an engine reuses, given which blocks each of its groups holds: the rule of vLLM's own coordinator.

use crate::batch::Spec;

/// One group of layers, as far as the rule needs it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// How the group's blocks are used.
    pub spec: Spec,
    /// Tokens of a block of the group.
    pub size: u32,
}

/// A prompt, cut into the blocks that have hashes.
struct Cut {
    /// Tokens of a block that has a hash.
    unit: u32,
    /// Lengths of hits are multiples of it.
    align: u32,
    is_fine: bool,
}

impl Cut {
    fn of(parts: &[Part], unit: u32) -> Self {
        let is_fine = parts.iter().any(|part| part.spec == Spec::State && part.size > unit)
            && parts.len() > 1;
        let common = parts.iter().fold(1, |all, part| lcm(all, part.size.max(1)));
        Self { unit, align: if is_fine { unit } else { common }, is_fine }
    }

    /// Index of the hash at so many tokens.
    fn hash_at(&self, tokens: u32) -> usize {
        (tokens / self.unit) as usize - 1
    }

    fn aligned(&self, tokens: u32) -> u32 {
        tokens / self.align * self.align
    }
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn lcm(a: u32, b: u32) -> u32 {
    (a / gcd(a, b)).saturating_mul(b)
}

/// Returns the most tokens, up to `most`, that every part holds what it needs for. `has(part, at)`: whether a part holds the
/// block that ends where the hash number `at` ends; `unit` is the tokens between two hashes.
pub fn hit(parts: &[Part], unit: u32, most: u32, mut has: impl FnMut(usize, usize) -> bool) -> u32 {
    if unit == 0
        || parts.is_empty()
        || parts.iter().any(|part| part.size == 0 || part.size % unit != 0)
    {
        return 0;
    }
    let cut = Cut::of(parts, unit);
    let mut now = most;
    for (at, part) in parts.iter().enumerate() {
        if part.spec == Spec::Whole {
            now = now.min(run(&cut, part.size, now, |end| has(at, end)));
        }
    }
    loop {
        let before = now;
        for (at, part) in parts.iter().enumerate() {
            now = match part.spec {
                Spec::Window(window) => {
                    last_window(&cut, part.size, window, now, |end| has(at, end))
                }
                Spec::State => last_state(&cut, part.size, now, |end| has(at, end)),
                Spec::Whole | Spec::Apart => cut.aligned(now),
            };
        }
        if now == before || now == 0 {
            return now;
        }
    }
}

/// The longest run of blocks from the first on.
fn run(cut: &Cut, size: u32, most: u32, mut has: impl FnMut(usize) -> bool) -> u32 {
    let mut found = 0;
    while found + size <= most && has(cut.hash_at(found + size)) {
        found += size;
    }
    if cut.is_fine && size > cut.unit {
        let mut end = cut.aligned(most.min(found + size - cut.unit));
        while end > found {
            if has(cut.hash_at(end)) {
                return end;
            }
            end -= cut.unit;
        }
    }
    cut.aligned(found)
}

/// The last aligned boundary before which a whole window is held, or the blocks from the first on.
fn last_window(
    cut: &Cut,
    size: u32,
    window: u32,
    most: u32,
    mut has: impl FnMut(usize) -> bool,
) -> u32 {
    let need = window.saturating_sub(1).div_ceil(size);
    let mut run = 0;
    let mut end = most / size * size;
    if need == 0 {
        return cut.aligned(end);
    }
    while end > 0 {
        let is_edge = run > 0 || end.is_multiple_of(cut.align);
        if is_edge && has(cut.hash_at(end)) {
            run += 1;
            if run == need {
                return end + (run - 1) * size;
            }
        } else {
            run = 0;
        }
        end -= size;
    }
    cut.aligned(run * size)
}

/// The last aligned boundary whose state is held.
fn last_state(cut: &Cut, size: u32, most: u32, mut has: impl FnMut(usize) -> bool) -> u32 {
    let step = if cut.is_fine { cut.unit } else { size };
    let mut end = most / step * step;
    while end > 0 {
        if end.is_multiple_of(cut.align) && has(cut.hash_at(end)) {
            return end;
        }
        end -= step;
    }
    0
}
