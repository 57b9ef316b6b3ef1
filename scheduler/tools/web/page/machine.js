// The state machine of scheduler/runtime/machine.py for one client with one lane, whose calling thread joins and whose
// other queues block: the same events give the same instructions, so that Python can replay a page's record.

export const CALLING_THREAD = "calling thread";

// plan: {inputs, outputs, subgraphs, joins, order}, `order` being topological; queues: the queue of each subgraph.
export class Machine {
  constructor(plan, queues) {
    this.steps = new Map();
    const joins = new Set(plan.joins.map((join) => join.name));
    for (const step of [...plan.subgraphs, ...plan.joins]) this.steps.set(step.name, { ...step, join: joins.has(step.name) });
    this.order = new Map(plan.order.map((name, position) => [name, position]));
    this.queueOf = queues;
    this.queues = [...new Set(plan.subgraphs.map((step) => queues[step.name])), CALLING_THREAD];
    this.inputs = plan.inputs;
    this.running = new Map();
    this.inference = null;
  }

  handle(event) {
    if (event.type === "InputReady") {
      const missing = new Map();
      for (const [name, step] of this.steps) missing.set(name, new Set(step.inputs).size);
      this.inference = { missing, left: this.steps.size, ready: [], failure: null };
      for (const tensor of this.inputs) this.#arrived(tensor);
      return this.#advance();
    }
    if (this.running.get(event.queue) !== event.step) throw new Error(`${event.step} is not running on ${event.queue}`);
    this.running.delete(event.queue);
    if (event.type === "StepDone") {
      this.inference.left -= 1;
      const step = this.steps.get(event.step);
      for (const tensor of step.join ? [step.output] : step.outputs) this.#arrived(tensor);
    } else {
      this.inference.failure ??= { step: event.step, error: event.error };
    }
    return this.#advance();
  }

  #arrived(tensor) {
    for (const [name, step] of this.steps) {
      if (!step.inputs.includes(tensor)) continue;
      const missing = this.inference.missing.get(name) - 1;
      this.inference.missing.set(name, missing);
      if (missing === 0) this.inference.ready.push(name);
    }
    this.inference.ready.sort((a, b) => this.order.get(a) - this.order.get(b));
  }

  #advance() {
    const { ready, failure } = this.inference;
    const instructions = [];
    for (const queue of this.queues) {
      if (this.running.has(queue) || failure) continue;
      const able = (name) => (queue === CALLING_THREAD ? this.steps.get(name).join : this.queueOf[name] === queue);
      const step = ready.find(able);
      if (step === undefined) continue;
      ready.splice(ready.indexOf(step), 1);
      this.running.set(queue, step);
      instructions.push({ type: this.steps.get(step).join ? "Join" : "Submit", lane: 0, step, queue });
    }
    if (this.running.size === 0 && (failure || this.inference.left === 0)) {
      instructions.push(failure ? { type: "Fail", lane: 0, ...failure } : { type: "Finish", lane: 0 });
    } else if (this.running.size && !this.running.has(CALLING_THREAD)) {
      instructions.push({ type: "Wait", running: Object.fromEntries(this.running) });
    }
    return instructions;
  }
}
