//! Owns the instructions that move cache lines to memory; this processor's ones are detected once.

/// Whether this architecture has any.
pub(crate) const EXIST: bool = cfg!(target_arch = "x86_64");

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::asm;
    use std::arch::x86_64::{_mm_clflush, _mm_mfence};
    use std::sync::OnceLock;

    #[derive(Clone, Copy)]
    struct Has {
        clwb: bool,
        clflushopt: bool,
    }

    fn has() -> Has {
        static HAS: OnceLock<Has> = OnceLock::new();
        *HAS.get_or_init(|| {
            let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            let flags = text.lines().find(|line| line.starts_with("flags")).unwrap_or_default();
            let has = |name| flags.split_whitespace().any(|flag| flag == name);
            Has { clwb: has("clwb"), clflushopt: has("clflushopt") }
        })
    }

    /// Name of the instruction that `write_back` uses.
    pub fn write_back_name() -> &'static str {
        match has() {
            Has { clwb: true, .. } => "clwb",
            Has { clflushopt: true, .. } => "clflushopt",
            _ => "clflush",
        }
    }

    fn drop_line(line: *const u8) {
        if has().clflushopt {
            // SAFETY: the processor has it; the caller's line is mapped, and its bytes do not change.
            unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) };
        } else {
            // SAFETY: every x86-64 processor has it; the caller's line is mapped.
            unsafe { _mm_clflush(line) };
        }
    }

    pub fn write_back(line: *const u8) {
        if has().clwb {
            // SAFETY: the processor has it; the caller's line is mapped, and its bytes do not change.
            unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) };
        } else {
            drop_line(line);
        }
    }

    pub fn invalidate(line: *const u8) {
        drop_line(line);
    }

    pub fn fence() {
        // SAFETY: every x86-64 processor has it. An mfence, not an sfence, because reads must wait, too.
        unsafe { _mm_mfence() };
    }
}

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{fence, invalidate, write_back, write_back_name};

/// Stand-ins that are never called, because `map` refuses.
#[cfg(not(target_arch = "x86_64"))]
mod none {
    pub fn write_back_name() -> &'static str {
        "none"
    }
    pub fn write_back(_line: *const u8) {}
    pub fn invalidate(_line: *const u8) {}
    pub fn fence() {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

#[cfg(not(target_arch = "x86_64"))]
pub(crate) use none::{fence, invalidate, write_back, write_back_name};
