// Owns the declaration of a command: commander's, with remarks and examples below its help, and its body.
import { Command as Plain } from "commander";
import { TierkvError } from "../../base/errors.ts";
import { Call } from "./call.ts";
import type { CommonOptions, Perform, Run } from "./call.ts";
import type { Io } from "./io.ts";

/** State that all commands of one program share. */
interface Program {
  io: Io;
  perform: Perform;
  onCode(code: number): void;
}

export class Command extends Plain {
  readonly #program: Program;
  declare readonly commands: readonly Command[];
  readonly remarks: string[] = [];
  readonly examples: string[] = [];

  constructor(name: string | undefined, program: Program) {
    super(name);
    this.#program = program;
  }

  override createCommand(name?: string): Command {
    return new Command(name, this.#program);
  }

  /** Adds a paragraph after the options in help. */
  remark(text: string): this {
    this.remarks.push(text);
    return this.addHelpText("after", `\n${text}`);
  }

  example(...lines: readonly string[]): this {
    this.examples.push(...lines);
    return this.addHelpText(
      "after",
      ["\nExample:", ...lines.map((line) => `  ${line}`)].join("\n"),
    );
  }

  does<Options extends object>(run: Run<Options>): this {
    const { io, perform, onCode } = this.#program;
    return this.action(async () => {
      const options = this.optsWithGlobals<CommonOptions & Options>();
      this.#refuseEmpty(options);
      const outcome = await perform(run, new Call<Options>(options, io, this.args));
      onCode(typeof outcome === "number" ? outcome : Number(outcome === false));
    });
  }

  /** Throws USAGE for an empty text, mostly an unset variable of a shell: to some commands no text means all. */
  #refuseEmpty(values: object): void {
    const fix = "give a value, or leave it out; is a variable of the shell not set?";
    if (this.args.includes("")) {
      throw new TierkvError("USAGE", { reason: `an argument is empty: ${fix}` });
    }
    const empty = Object.entries(values).find(([, value]) => value === "");
    if (empty === undefined) return;
    const known = [...this.options, ...(this.parent?.options ?? [])];
    const flag = known.find((option) => option.attributeName() === empty[0])?.long ?? empty[0];
    throw new TierkvError("USAGE", { reason: `${flag} is empty: ${fix}` });
  }
}
