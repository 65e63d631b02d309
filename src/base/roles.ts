// Owns the roles of a vault's callers.

/** In ascending order: each role includes the earlier ones. */
export const ROLES = ["read", "write", "admin"] as const;
export type Role = (typeof ROLES)[number];

export function isRole(text: string): text is Role {
  return (ROLES as readonly string[]).includes(text);
}

export function mayDo(role: Role, needed: Role): boolean {
  return ROLES.indexOf(role) >= ROLES.indexOf(needed);
}
