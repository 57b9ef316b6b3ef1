// Runs a bundle's plan on workers, and whole files on one of them.

import { CALLING_THREAD, Machine } from "./machine.js";

const SIZES = { float32: 4, float16: 2, int8: 1, uint8: 1 };
const ARRAYS = { float32: Float32Array, float16: Uint16Array, int8: Int8Array, uint8: Uint8Array };
export const now = () => performance.timeOrigin + performance.now();

// A worker that answers tasks; if the worker is lost, all waiting tasks fail.
export class Processor {
  constructor(name) {
    this.name = name;
    this.waiting = new Map();
    this.next = 0;
    this.worker = new Worker("worker.js", { type: "module", name });
    this.worker.onmessage = ({ data }) => {
      const { resolve, reject } = this.waiting.get(data.id);
      this.waiting.delete(data.id);
      if (data.error === undefined) resolve(data.answer);
      else reject(new Error(data.error));
    };
    this.worker.onerror = (event) => {
      for (const { reject } of this.waiting.values()) reject(new Error(event.message || "the worker ended"));
      this.waiting.clear();
    };
  }

  ask(task, rest = {}) {
    return new Promise((resolve, reject) => {
      const id = this.next++;
      this.waiting.set(id, { resolve, reject });
      this.worker.postMessage({ id, task, ...rest });
    });
  }
}

export const memoryOf = ({ shape, dtype }) => new SharedArrayBuffer(SIZES[dtype] * shape.reduce((a, b) => a * b, 1));

async function filled(url, memory) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  new Uint8Array(memory).set(new Uint8Array(await response.arrayBuffer()));
  return memory;
}

// A bundle on processors: its branches, and the whole networks for comparison.
export class Bundle {
  constructor(stated, processors) {
    this.stated = stated;
    this.processors = processors; // worker of each processor of the bundle, by its name
    this.tensors = new Map(stated.tensors.map((tensor) => [tensor.name, tensor]));
    this.queues = Object.fromEntries(stated.subgraphs.map((step) => [step.name, processors[step.processor].name]));
    this.memory = new Map();
    this.record = null; // events and instructions of a run, if requested
  }

  async load(step) {
    const { stated } = this;
    const readers = (tensor) => stated.subgraphs.filter((other) => other.inputs.includes(tensor));
    const joined = new Set(stated.joins.flatMap((join) => join.inputs));
    const written = new Set(stated.subgraphs.flatMap((subgraph) => subgraph.outputs));
    this.stays = new Set(
      [...written].filter((tensor) => {
        const owner = this.queues[stated.subgraphs.find((subgraph) => subgraph.outputs.includes(tensor)).name];
        const needed = stated.outputs.includes(tensor) || joined.has(tensor);
        return !needed && readers(tensor).every((reader) => this.queues[reader.name] === owner && !reader.rows[tensor]);
      }),
    );
    for (const [name, tensor] of this.tensors) if (!this.stays.has(name)) this.memory.set(name, memoryOf(tensor));
    for (const name of stated.inputs) await filled(`${stated.address}/tensors/${name}`, this.memory.get(name));
    for (const subgraph of stated.subgraphs) {
      step(subgraph.name);
      const stays = subgraph.outputs.filter((tensor) => this.stays.has(tensor));
      const task = { name: `${stated.id}:${subgraph.name}`, url: `${stated.address}/files/${subgraph.file}`, stays };
      await this.processors[subgraph.processor].ask("load", task);
    }
  }

  // Runs one inference in branches: {ms, start, spans}.
  async run() {
    const { stated } = this;
    const machine = new Machine(stated, this.queues);
    const steps = new Map(stated.subgraphs.map((step) => [step.name, step]));
    const joins = new Map(stated.joins.map((join) => [join.name, join]));
    const spans = [];
    const start = now();
    return new Promise((resolve, reject) => {
      const handle = (event) => {
        const instructions = machine.handle(event);
        this.record?.push({ event, instructions });
        const joining = [];
        for (const item of instructions) {
          if (item.type === "Submit") this.#submit(steps.get(item.step), item.queue, spans, handle);
          else if (item.type === "Join") joining.push(item);
          else if (item.type === "Finish") resolve({ ms: now() - start, start, spans });
          else if (item.type === "Fail") reject(new Error(`${item.step}: ${item.error}`));
        }
        for (const { step } of joining) {
          const began = now();
          this.#join(joins.get(step));
          spans.push({ step, queue: CALLING_THREAD, start: began, end: now(), handover: 0 });
          handle({ type: "StepDone", lane: 0, step, queue: CALLING_THREAD });
        }
      };
      handle({ type: "InputReady", lane: 0 });
    });
  }

  #ends(names, rows = {}) {
    return names.map((name) => {
      const { dtype, shape } = this.tensors.get(name);
      return { tensor: `${this.stated.id}:${name}`, type: dtype, shape, rows: rows[name], memory: this.memory.get(name) };
    });
  }

  #submit(step, queue, spans, handle) {
    const task = {
      name: `${this.stated.id}:${step.name}`,
      inputs: this.#ends(step.inputs, step.rows),
      outputs: this.#ends(step.outputs),
    };
    const posted = now();
    this.processors[step.processor].ask("run", task).then(
      ({ start, end }) => {
        spans.push({ step: step.name, queue, start, end, handover: now() - posted - (end - start) });
        handle({ type: "StepDone", lane: 0, step: step.name, queue });
      },
      (error) => handle({ type: "StepFailed", lane: 0, step: step.name, queue, error: error.message }),
    );
  }

  // Joins as scheduler/runtime does with numpy: adds the inputs, or concatenates them along an axis.
  #join(join) {
    const view = (name) => new ARRAYS[this.tensors.get(name).dtype](this.memory.get(name));
    const out = view(join.output);
    if (join.axis === null) {
      out.fill(0);
      for (const name of join.inputs) view(name).forEach((value, at) => (out[at] += value));
      return;
    }
    const shapes = join.inputs.map((name) => this.tensors.get(name).shape);
    const count = (shape, from, to) => shape.slice(from, to).reduce((a, b) => a * b, 1);
    const row = count(this.tensors.get(join.output).shape, join.axis);
    const pieces = count(shapes[0], 0, join.axis);
    let offset = 0;
    join.inputs.forEach((name, at) => {
      const part = view(name);
      const length = count(shapes[at], join.axis);
      for (let piece = 0; piece < pieces; piece += 1) {
        out.set(part.subarray(piece * length, (piece + 1) * length), piece * row + offset);
      }
      offset += length;
    });
  }

  // Loads a whole network on one processor, with the bundle's inputs, for comparison.
  async whole(name, file, processor) {
    const key = `${this.stated.id}:${name} on ${processor.name}`;
    await processor.ask("load", { name: key, url: `${this.stated.address}/files/${file}`, stays: [] });
    const outputs = this.stated.outputs.map((output) => ({ ...this.tensors.get(output), memory: memoryOf(this.tensors.get(output)) }));
    const task = {
      name: key,
      inputs: this.#ends(this.stated.inputs),
      outputs: outputs.map(({ name: tensor, dtype, memory }) => ({ tensor, type: dtype, memory })),
    };
    const run = async () => {
      const start = now();
      await processor.ask("run", task);
      return now() - start;
    };
    return { run, outputs, release: () => processor.ask("release", { name: key }) };
  }

  // Returns the largest difference from the outputs of the server's runtime, relative to their largest element.
  async difference(memories = this.stated.outputs.map((name) => this.memory.get(name)), of = "outputs") {
    let most = 0;
    for (const [at, name] of this.stated.outputs.entries()) {
      const tensor = this.tensors.get(name);
      const Type = ARRAYS[tensor.dtype];
      const want = new Type(await filled(`${this.stated.address}/${of}/${name}`, memoryOf(tensor)));
      const got = new Type(memories[at]);
      let [far, large] = [0, 0];
      want.forEach((value, i) => {
        far = Math.max(far, Number.isFinite(got[i]) ? Math.abs(got[i] - value) : Infinity);
        large = Math.max(large, Math.abs(value));
      });
      most = Math.max(most, far / (large || 1));
    }
    return most;
  }
}
