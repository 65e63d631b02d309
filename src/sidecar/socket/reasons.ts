// Owns the reasons for a request's result: one word for counters and machines, one sentence for people.

/** The engine sent no prefetch; its shim gives the reason in `counts`. */
const UNASKED_TEXTS = {
  own_cache: "the engine's own cache holds it, so there was nothing to look up",
  shared:
    "another request loaded the same prompt, and this request found it in the engine's own cache",
  max_load_tokens: "the request lets no block be restored (`max_load_tokens`)",
  below_block: "the prompt is not longer than one block, and only whole blocks can be restored",
  not_worth_asking: "the prompt is so short that computing it takes less time than a look-up",
  not_cacheable:
    "its blocks depend on more than its tokens (an adapter, embeddings, pooling), so it is never stored or restored",
  producer: "its engine computes prompts for others (kv_role = kv_producer) and restores none",
  not_reading:
    "the request asks that no prefix cache is read, or for logprobs of its prompt, for which vLLM reads none",
  unnamed:
    "the engine's blocks have no name yet: it is hashing its model's weights, or `tierkv status` shows why it stores nothing",
  too_many: "more requests are under way at the engine than the connector counts",
} as const;

export type UnaskedReason = keyof typeof UNASKED_TEXTS;
export const UNASKED_REASONS: readonly UnaskedReason[] = Object.keys(
  UNASKED_TEXTS,
) as UnaskedReason[];

/** Why the first missing block is missing. */
const MISS_TEXTS = {
  never_stored:
    "its first missing block was never stored since this sidecar started: the prompt is new, its request or engine stores nothing, the engine has held it in its own cache since before, or it lies on a vault that owned it before the list of vaults changed",
  evicted: "the first missing block was stored, and the vault has dropped it since",
  flushed:
    "an operator flushed the first missing block, and the vaults that were asked do not have it",
  lost: "the first missing block was stored; a vault has restarted since, and the vaults that were asked do not have it",
  other_namespace:
    "the first missing block was stored by an engine of another namespace (other weights or settings)",
  state_not_handed_over:
    "the attention blocks are held, but no recurrent state was saved at that place",
  vault_down: "the vault did not answer",
  vault_refused:
    "the vault is not used: it or this machine refuses the connection, for credentials, certificate, encryption, class or release; `tierkv status` says which",
  no_vault:
    "no vault for blocks of that class is known: none is configured, or no list of vaults has come (`tierkv status`)",
} as const;

export type MissReason = keyof typeof MISS_TEXTS;

/** Why an offered block was not stored; the names follow `dropped_`. */
const DROP_TEXTS = {
  no_namespace: "the engine had not named its blocks yet",
  queue_full: "the queue of saves was full",
  shed: "the queue of saves was full, and blocks nearer to the prompt's start went first",
  slow_link: "on this link it could not be restored sooner than computed",
  no_vault: "no vault for blocks of that class was known",
  shutdown: "its engine or the sidecar was stopped",
  encode_failed: "it could not be made into a record",
  vault_down: "the vault did not answer",
  vault_deadline: "the vault took too long",
  vault_denied: "this machine's token may only read from the vault",
  read_only: "this machine's role at the vault may only read",
  vault_busy: "the vault was busy",
  over_budget: "the vault had no room for it",
  draining: "the vault is draining and refuses new records",
  too_large: "the vault takes no record of that size",
  bad_record: "the vault found the record damaged",
  flushed: "it was flushed before it was stored",
  quarantined: "stored blocks of this model differ from what an engine computes",
} as const;

/** Why a block was not stored; a vault's error code may stand in its place. */
export type DropReason = keyof typeof DROP_TEXTS;

/** Reasons that a shim gives where its engine went on without blocks that had come. */
export const LEFT_REASONS = ["weights_unread", "unnamed"] as const;

/** The decision about held blocks, and how the plan ended. */
const DECISION_TEXTS = {
  cold: "the link or the engine was not measured yet, so the restore was tried",
  cheaper: "restoring answers first",
  slow_link: "the link is too slow: computing answers first",
  slow_load: "loading takes longer than computing",
  too_short: "computing it takes less time than the vault's answer",
  always: "[restore] when = always",
  handed_over: "another engine computed it for this one",
  nothing_held: "nothing beyond the engine's own cache is held",
  slower: "computing the rest answered sooner, so the look-up or the restore was stopped",
  no_slot: "shared memory had no room for it",
  deadline: "[restore] wait_ms had passed",
  bad_records: "a record did not verify",
  not_ready: "the engine's shared memory was not ready yet",
  overload: "too many look-ups were under way",
  quarantined:
    "stored blocks of this model differ from what the engine computes; they are not used until they are flushed",
  weights_unread:
    "its caches were emptied, and the engine was still reading its weights to see whether they are the same",
  undecided: "it is still being looked up",
  let_go: "the engine went on without it, or the request ended, before the vaults had answered",
} as const;

const DROPPED = "dropped_";

/** Every reason, with its sentence. */
export const REASONS: Readonly<Record<string, string>> = {
  ...UNASKED_TEXTS,
  ...MISS_TEXTS,
  ...DECISION_TEXTS,
  ...Object.fromEntries(
    Object.entries(DROP_TEXTS).map(([name, text]) => [
      DROPPED + name,
      `the first missing block was offered and not stored: ${text}`,
    ]),
  ),
};

/** Returns the sentence; an unlisted word, such as a vault's error code, is returned as it is. */
export function reasonText(reason: string): string {
  const known = REASONS[reason];
  if (known !== undefined) return known;
  const rest = reason.startsWith(DROPPED) ? reason.slice(DROPPED.length) : null;
  return rest === null ? reason : `the first missing block was offered and not stored: ${rest}`;
}

/** Fields of an account that the reason depends on. */
export interface Outcome {
  choice: string;
  why: string;
  end: string | null;
  miss: string | null;
  startTokens: number;
  askedTokens: number;
  placedTokens: number | null;
  /** null: the engine has not released it yet. */
  loadedTokens: number | null;
}

/** Reasons by how a plan ended, where the decision does not say it all. */
const END_REASONS: Readonly<Record<string, string>> = {
  no_slot: "no_slot",
  deadline: "deadline",
  bad_record: "bad_records",
  not_ready: "not_ready",
  overload: "overload",
  slower: "slower",
  flushed: "flushed",
  quarantined: "quarantined",
  vault_down: "vault_down",
};

/** Returns why a plan restores nothing, or no more: a word of REASONS where there is one; null: its end says it. */
export function whyNoMore(whyNot: string | null, end: string, miss: string | null): string | null {
  if (whyNot !== null || end === "complete") return whyNot;
  return END_REASONS[end] ?? miss;
}

/** Returns the one reason that answers "why did this request get what it got?". */
export function reasonOf(outcome: Outcome): string {
  const { choice, why, end, startTokens, placedTokens } = outcome;
  if (choice === "unasked" || (choice === "recomputed" && why !== "nothing_held")) return why;
  if ((placedTokens ?? 0) > startTokens) return why;
  const ended = END_REASONS[end ?? ""];
  if (choice === "undecided" || why === "nothing_held") return unheld(outcome, ended);
  return ended ?? why;
}

/** Returns the reason for a request without held blocks, or without a decision yet. */
function unheld(outcome: Outcome, ended?: string): string {
  const { choice, miss, startTokens, askedTokens, loadedTokens } = outcome;
  const known = miss ?? ended;
  if (known !== undefined) return known;
  if (choice === "undecided") return loadedTokens === null ? "undecided" : "let_go";
  return askedTokens <= startTokens ? "own_cache" : "nothing_held";
}
