//! Owns the ids of tenants: each belongs to the account that stored for it, whatever name a peer gives it.

pub(crate) mod interned;

/// Bits of a tenant's id that a peer chooses; the bits above are its account.
const SALT_BITS: u32 = 32;
const SALT_MASK: u64 = (1 << SALT_BITS) - 1;

/// Id of a tenant (48 bits) within an account. `salt` is the peer's 48-bit name for it; 0 is the account's own tenant.
#[must_use]
pub fn tenant_of(account: u16, salt: u64) -> u64 {
    let folded = (salt >> SALT_BITS ^ salt) & SALT_MASK;
    // A named tenant must not fold into the account's own.
    let within = if folded == 0 && salt != 0 { 1 } else { folded };
    own_tenant(account) | within
}

/// Account of a tenant's id.
#[must_use]
pub(crate) fn account_of(tenant: u64) -> u16 {
    u16::try_from(tenant >> SALT_BITS & u64::from(u16::MAX)).unwrap_or(0)
}

/// Salt of a tenant's id.
#[must_use]
#[expect(clippy::cast_possible_truncation, reason = "the account stands above")]
pub fn salt_of(tenant: u64) -> u32 {
    tenant as u32
}

/// Tenant of an account's records without a salt, shared by salts above the limit.
#[must_use]
pub(crate) fn own_tenant(account: u16) -> u64 {
    u64::from(account) << SALT_BITS
}
