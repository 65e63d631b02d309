// Owns the declaration of a command: commander's, with remarks and examples below its help, and its body.
import { Command as Plain } from "commander";
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
      const outcome = await perform(run, new Call<Options>(options, io, this.args));
      onCode(typeof outcome === "number" ? outcome : Number(outcome === false));
    });
  }
}
