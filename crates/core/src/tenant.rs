//! Owns whose a tenant is: each belongs to the credential that stored for it, whatever name a peer gives the tenant.

pub(crate) mod interned;

/// Bits of a tenant's number that a peer chooses; those above are its account.
const SALT_BITS: u32 = 32;
const SALT_MASK: u64 = (1 << SALT_BITS) - 1;

/// The number of a tenant (48 bits) within an account. `salt`: as a peer names it, 48 bits; 0: the account's own.
#[must_use]
pub fn tenant_of(account: u16, salt: u64) -> u64 {
    let folded = (salt >> SALT_BITS ^ salt) & SALT_MASK;
    // Somebody stays somebody.
    let within = if folded == 0 && salt != 0 { 1 } else { folded };
    own_tenant(account) | within
}

/// The account of a tenant's number.
#[must_use]
pub(crate) fn account_of(tenant: u64) -> u16 {
    u16::try_from(tenant >> SALT_BITS & u64::from(u16::MAX)).unwrap_or(0)
}

/// Whose a record is within its account.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "the account stands above")]
pub fn salt_of(tenant: u64) -> u32 {
    tenant as u32
}

/// What an account has without any salt, and what further salts than are told apart share.
#[must_use]
pub(crate) fn own_tenant(account: u16) -> u64 {
    u64::from(account) << SALT_BITS
}
