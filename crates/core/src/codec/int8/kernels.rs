//! Owns the choice of instruction set, made once per process among those of this processor.

use std::sync::LazyLock;

use super::portable;
use super::scale::{BF16, F16, F32};
use super::turned::{self, Turned};
use crate::codec_id::SCALE_BYTES;

#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512, avx512bf16, turned_avx2, turned_avx512};

#[cfg(target_arch = "aarch64")]
use super::neon;

/// A scale as stored in the payload.
pub type Scale = [u8; SCALE_BYTES];

/// Head vectors in memory: `dim` elements each, `stride` bytes apart.
#[derive(Debug, Clone, Copy)]
pub struct Rows {
    pub stride: usize,
    pub dim: usize,
}

/// The two kernels of one instruction set and dtype. Rows and scales have the same number.
#[derive(Debug, Clone, Copy)]
pub struct Kernels {
    /// Turns the rows at the first pointer into scales and codes, and prefetches those at the second. Returns false where
    /// an element is not finite. Unsafe: the rows must be readable.
    pub encode: unsafe fn(*const u8, Rows, *const u8, &mut [Scale], &mut [u8]) -> bool,
    /// Turns scales and codes into rows, past the cache if the flag is set. Unsafe: the rows must be writable, and consist
    /// of whole cache lines to bypass the cache.
    pub decode: unsafe fn(&[Scale], &[u8], *mut u8, Rows, bool),
}

/// An instruction set that this processor has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Isa(Name);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Name {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "x86_64")]
    Avx512Bf16,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Isa {
    /// Works on any processor.
    pub const PORTABLE: Self = Self(Name::Portable);

    /// The fastest instruction set of this processor.
    #[must_use]
    pub fn best() -> Self {
        static BEST: LazyLock<Isa> = LazyLock::new(|| Isa::all().pop().unwrap_or(Isa::PORTABLE));
        *BEST
    }

    /// All instruction sets of this processor, the fastest last.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = vec![Self::PORTABLE];
        all.extend(detected().into_iter().map(Self));
        all
    }

    /// Name in figures and in `coreInfo`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.0 {
            Name::Portable => "portable",
            #[cfg(target_arch = "x86_64")]
            Name::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Name::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Name::Avx512Bf16 => "avx512bf16",
            #[cfg(target_arch = "aarch64")]
            Name::Neon => "neon",
        }
    }

    pub(super) fn kernels(self, dtype: u8) -> Kernels {
        match dtype {
            BF16 => self.kernels_of::<BF16>(),
            F16 => self.kernels_of::<F16>(),
            _ => self.kernels_of::<F32>(),
        }
    }

    /// The kernels of codec 4.
    pub(super) fn turned(self, dtype: u8) -> Turned {
        match dtype {
            BF16 => self.turned_of::<BF16>(),
            F16 => self.turned_of::<F16>(),
            _ => self.turned_of::<F32>(),
        }
    }

    fn turned_of<const D: u8>(self) -> Turned {
        match self.0 {
            // Every 64-bit Arm processor has NEON, and the compiler uses it by itself.
            #[cfg(target_arch = "aarch64")]
            Name::Neon => turned::portable::<D>(),
            Name::Portable => turned::portable::<D>(),
            #[cfg(target_arch = "x86_64")]
            Name::Avx2 => turned_avx2::kernels::<D>(),
            #[cfg(target_arch = "x86_64")]
            Name::Avx512 => turned_avx512::kernels::<D, false>(),
            #[cfg(target_arch = "x86_64")]
            Name::Avx512Bf16 => turned_avx512::kernels::<D, true>(),
        }
    }

    fn kernels_of<const D: u8>(self) -> Kernels {
        match self.0 {
            Name::Portable => portable::kernels::<D>(),
            #[cfg(target_arch = "x86_64")]
            Name::Avx2 => avx2::kernels::<D>(),
            #[cfg(target_arch = "x86_64")]
            Name::Avx512 => avx512::kernels::<D>(),
            #[cfg(target_arch = "x86_64")]
            Name::Avx512Bf16 => avx512bf16::kernels::<D>(),
            #[cfg(target_arch = "aarch64")]
            Name::Neon => neon::kernels::<D>(),
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn detected() -> Vec<Name> {
    let mut names = Vec::new();
    if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c") {
        names.push(Name::Avx2);
    }
    // The AVX-512 kernels leave short blocks to those of AVX2.
    let wide = !names.is_empty()
        && is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    if wide {
        names.push(Name::Avx512);
        if is_x86_feature_detected!("avx512bf16") {
            names.push(Name::Avx512Bf16);
        }
    }
    names
}

#[cfg(target_arch = "aarch64")]
fn detected() -> Vec<Name> {
    // Every 64-bit Arm processor that runs this has NEON.
    vec![Name::Neon]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detected() -> Vec<Name> {
    Vec::new()
}

/// Makes streaming stores visible before anything that follows.
pub fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every 64-bit x86 processor has SSE.
    unsafe {
        std::arch::x86_64::_mm_sfence();
    }
}
