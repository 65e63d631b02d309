// Owns the proof of what a view of a gateway shows in place of a sidecar that does not answer.
import { expect, test } from "vitest";
import { TierkvError } from "../../src/base/errors.ts";
import { besideFleet } from "../../src/control/fleet.ts";
import { STUCK } from "../../src/control/sidecar-link.ts";

const FLEET = { engines: [], waiting: 0 } as never;

const down = (fix: string): Promise<never> =>
  Promise.reject(new TierkvError("SIDECAR_DOWN", { path: "/s.sock", reason: "it is late", fix }));

test("beside a gateway no sidecar is needed, and one that hangs is a fault", async () => {
  expect(await besideFleet(down("start it"), FLEET)).toBeNull();
  await expect(besideFleet(down(STUCK), FLEET)).rejects.toMatchObject({ code: "SIDECAR_DOWN" });
  await expect(besideFleet(down("start it"), null)).rejects.toMatchObject({
    code: "SIDECAR_DOWN",
  });
});
