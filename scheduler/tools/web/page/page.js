// The page of `stretch web`: runs bundles in turns with their controls, or measures the networks of a profile, and sends both back.

import { Bundle, Processor, memoryOf, now } from "./runner.js";

const $ = (id) => document.getElementById(id);
const median = (values) => {
  const sorted = [...values].sort((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
};
const p90 = (values) => [...values].sort((a, b) => a - b)[Math.floor(0.9 * (values.length - 1))];
const fixed = (value) => (value >= 100 ? value.toFixed(0) : String(Number(value.toPrecision(3))));

const interval = (ratio) => (ratio ? `${fixed(ratio.ratio)} (${fixed(ratio.low)} to ${ratio.high === null ? "more" : fixed(ratio.high)})` : "–");

function element(name, text = "", attributes = {}, space = null) {
  const created = space ? document.createElementNS(space, name) : document.createElement(name);
  created.textContent = text;
  for (const [key, value] of Object.entries(attributes)) created.setAttribute(key, value);
  return created;
}

async function send(address, value) {
  const response = await fetch(address, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(value) });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.problem);
  return answer;
}

function state(text) {
  $("state").textContent = text;
}

// Describes this browser, and what it lacks.
async function look() {
  const lacks = [];
  if (!isSecureContext) lacks.push("a secure origin: open the page by https, as localhost, or through `adb reverse`");
  if (!crossOriginIsolated) lacks.push("shared memory between workers, so CPU and GPU cannot share tensors");
  const adapter = await navigator.gpu?.requestAdapter({ powerPreference: "high-performance" }).catch(() => null);
  if (!adapter) lacks.push(`${navigator.gpu ? "a GPU for WebGPU" : "WebGPU"}: the work of a GPU runs on WebAssembly with one thread instead`);
  // WebNN's processor cannot be chosen: it counts as another processor, of unknown kind, for the work of an NPU or a DSP
  const context = await navigator.ml?.createContext({ powerPreference: "low-power" }).catch(() => null);
  const cores = navigator.hardwareConcurrency || 1;
  return { agent: navigator.userAgent, cores, isolated: crossOriginIsolated, webgpu: Boolean(adapter), fp16: adapter?.features.has("shader-f16") ?? false, webnn: Boolean(context), lacks };
}

function show(list, entries) {
  list.replaceChildren(...Object.entries(entries).flatMap(([term, value]) => [element("dt", term), element("dd", value)]));
}

// Starts a worker for each processor, on WebAssembly with one thread if the browser offers no interface to the processor.
async function processorsFor(names, threads, device) {
  const workers = {};
  for (const name of names) {
    const wanted = name === "cpu" ? "wasm" : name === "gpu" ? (device.webgpu ? "webgpu" : "wasm") : device.webnn ? "webnn" : "wasm";
    try {
      workers[name] = await started(name, wanted, name === "cpu" ? threads : 1);
    } catch (error) {
      if (wanted === "wasm") throw error;
      device.lacks.push(`${wanted} (${error.message}): the work of ${name} runs on WebAssembly with one thread instead`);
      workers[name] = await started(name, "wasm", 1);
    }
  }
  return workers;
}

async function started(name, provider, threads) {
  const processor = new Processor(name);
  const base = new URL("runtime/", location.href).href;
  const module = `${base}${provider === "wasm" ? "ort.wasm.min.mjs" : "ort.webgpu.min.mjs"}`;
  Object.assign(processor, await processor.ask("start", { module, wasm: base, device: provider, threads }), { provider });
  return processor;
}

// Adds a table with one row per name; the returned function fills a row's cells.
function table(parent, caption, columns, names) {
  const rows = Object.fromEntries(names.map((name) => [name, element("tr")]));
  const whole = element("table");
  const head = element("tr");
  head.append(...columns.map((column) => element("th", column, { scope: "col" })));
  whole.append(element("caption", caption), element("thead"), element("tbody"));
  whole.tHead.append(head);
  whole.tBodies[0].append(...Object.values(rows));
  const wide = element("div", "", { class: "wide", tabindex: "0", role: "region", "aria-label": caption });
  wide.append(whole);
  parent.append(wide);
  return (name, ...cells) => rows[name].replaceChildren(...[name.replaceAll("_", " "), ...cells].map((cell, at) => element(at ? "td" : "th", cell, at ? {} : { scope: "row" })));
}

// Draws the spans of one inference, one row per queue; steps are numbered and listed below, so that nothing depends on colour.
function timeline(parent, title, { ms, start, spans }) {
  const svg = "http://www.w3.org/2000/svg";
  const queues = [...new Set(spans.map((span) => span.queue))];
  const [left, width, row] = [90, 700, 26];
  const picture = element("svg", "", { viewBox: `0 0 ${left + width + 10} ${row * queues.length + 20}`, role: "img", "aria-label": `timeline of ${fixed(ms)} ms` }, svg);
  spans.sort((a, b) => a.start - b.start).forEach((span, at) => {
    const y = row * queues.indexOf(span.queue);
    const x = left + (width * (span.start - start)) / ms;
    const length = Math.max(1, (width * (span.end - span.start)) / ms);
    picture.append(element("rect", "", { x, y: y + 2, width: length, height: row - 4 }, svg));
    if (length > 14) picture.append(element("text", String(at + 1), { x: x + 3, y: y + row / 2 + 4 }, svg));
  });
  queues.forEach((queue, at) => picture.append(element("text", queue, { x: 0, y: row * at + row / 2 + 4 }, svg)));
  picture.append(element("text", `0 to ${fixed(ms)} ms`, { x: left, y: row * queues.length + 14 }, svg));
  const wide = element("div", "", { class: "wide", tabindex: "0", role: "region", "aria-label": `${title}: timeline` });
  wide.append(picture);
  const list = element("ol");
  list.append(...spans.map((span) => element("li", `${span.step} on ${span.queue}: ${fixed(span.start - start)} to ${fixed(span.end - start)} ms`)));
  const details = element("details");
  details.append(element("summary", "Steps"), list);
  parent.append(wide, details);
}

async function compare(stated, processors, rounds, device, threads) {
  const parent = element("section");
  parent.append(element("h2", stated.title));
  $("results").append(parent);
  const bundle = new Bundle(stated, Object.fromEntries(stated.processors.map((name) => [name, processors[name]])));
  await bundle.load((name) => state(`${stated.title}: loading ${name}`));
  const contestants = { branches: async () => (last = await bundle.run()).ms };
  const wholes = {};
  let last;
  for (const [control, file] of Object.entries(stated.controls)) {
    for (const name of stated.processors) {
      const title = `${control} on ${name}`;
      state(`${stated.title}: loading ${title}`);
      wholes[title] = await bundle.whole(control, file, processors[name]);
      contestants[title] = wholes[title].run;
    }
  }
  const names = Object.keys(contestants);
  state(`${stated.title}: first runs`);
  bundle.record = [];
  for (const name of names) await contestants[name]();
  const record = bundle.record;
  bundle.record = null;
  const differences = { branches: await bundle.difference() };
  for (const [title, { outputs }] of Object.entries(wholes)) {
    const control = title.split(" on ")[0];
    differences[title] = await bundle.difference(outputs.map(({ memory }) => memory), control);
  }
  for (const name of names) await contestants[name]();
  const fill = table(parent, `${stated.title}: medians of runs in turns`, ["contestant", "median ms", "p90 ms", "branches' speed over it (95 %)", "rounds", "difference", "MACs ratio"], names);
  const times = Object.fromEntries(names.map((name) => [name, []]));
  const runs = [];
  let ratios = {};
  for (let round = 0; round < rounds; round += 1) {
    for (let at = 0; at < names.length; at += 1) {
      const name = names[(at + round) % names.length];
      times[name].push(await contestants[name]());
      if (name === "branches") runs.push(last);
    }
    if (round % 5 === 4 || round === rounds - 1) ratios = await send("ratios", { times_ms: times });
    for (const name of names) {
      fill(name, fixed(median(times[name])), fixed(p90(times[name])), interval(ratios[name]), String(times[name].length), differences[name].toExponential(1), stated.macs[name.split(" on ")[0]].toFixed(3));
    }
    state(`${stated.title}: round ${round + 1} of ${rounds}`);
    await new Promise((resolve) => setTimeout(resolve));
  }
  const typical = runs.reduce((best, run) => (Math.abs(run.ms - median(times.branches)) < Math.abs(best.ms - median(times.branches)) ? run : best));
  timeline(parent, stated.title, typical);
  const spans = typical.spans.map(({ step, queue, start, end, handover }) => ({
    step,
    queue,
    start_ms: start - typical.start,
    end_ms: end - typical.start,
    handover_ms: handover,
  }));
  const providers = Object.fromEntries(stated.processors.map((name) => [name, processors[name].provider]));
  const result = { bundle: stated.id, device, threads, providers, times_ms: times, differences, spans, record };
  const answer = await send("result", result);
  parent.append(...answer.sentences.map((sentence) => element("p", sentence)));
  for (const { release } of Object.values(wholes)) await release();
}

// Measures the networks of a profile, each on each processor, in turns with the others of its batch.
async function profile(device, threads) {
  const section = element("section");
  section.append(element("h2", "Profile of this device"));
  $("results").append(section);
  const workers = {};
  let answer = await send("networks", { device, threads, times: {} });
  while (!answer.done) {
    state(answer.state);
    const times = {};
    for (const { place, provider, threads: count, file } of answer.places) {
      workers[place] ??= await started(place, provider, count);
      times[place] = await timed(workers[place], answer, file);
    }
    const together = answer.together ? await overlap(workers, answer) : null;
    answer = await send("networks", { device, threads, times, together });
  }
  section.append(...answer.sentences.map((sentence) => element("p", sentence)));
  state("");
}

function taskOf(network) {
  const ends = (tensor, shape) => ({ tensor, type: "float32", shape, memory: memoryOf({ shape, dtype: "float32" }) });
  return { name: network.name, inputs: [ends("x", network.input)], outputs: [ends("y", network.output)] };
}

async function timed(worker, { networks, rounds }, file) {
  const tasks = networks.map(taskOf);
  const times = Object.fromEntries(networks.map(({ name }) => [name, []]));
  for (const { name, url } of networks) await worker.ask("load", { name, url: url + file, stays: [] });
  for (let round = -2; round < rounds; round += 1) {
    for (const task of tasks) {
      const start = now();
      await worker.ask("run", task);
      if (round >= 0) times[task.name].push(now() - start);
    }
  }
  for (const { name } of networks) await worker.ask("release", { name });
  return times;
}

// Times each network on two processors at once: each one computes without pauses while the other is timed.
async function overlap(workers, { places, networks, rounds }) {
  const [first, second] = places.map(({ place }) => place);
  const result = {};
  for (const network of networks) {
    const tasks = [taskOf(network), taskOf(network)];
    const pair = [workers[first], workers[second]];
    for (const worker of pair) await worker.ask("load", { name: network.name, url: network.url, stays: [] });
    const times = [[], []];
    let going = 2;
    await Promise.all(
      pair.map(async (worker, at) => {
        let own = 0;
        while (going > 0) {
          const start = now();
          await worker.ask("run", tasks[at]);
          own += 1;
          if (own > 2 && own <= 2 + rounds) times[at].push(now() - start);
          if (own === 2 + rounds) going -= 1;
        }
      }),
    );
    for (const worker of pair) await worker.ask("release", { name: network.name });
    result[network.name] = { [first]: times[0], [second]: times[1] };
  }
  return result;
}

async function main() {
  const page = await (await fetch("page.json")).json();
  $("purpose").textContent = page.purpose;
  const device = await look();
  const facts = { Browser: device.agent, Cores: String(device.cores), WebGPU: device.webgpu ? "offered" : "not offered", WebNN: device.webnn ? "offered" : "not offered" };
  show($("device"), device.lacks.length ? { ...facts, Lacks: device.lacks.join("; ") } : facts);
  $("threads").max = device.cores;
  $("threads").value = Math.min(4, Math.max(1, device.cores - 1));
  if (!device.isolated) throw new Error(`this browser cannot run branches at the same time: ${device.lacks.join("; ")}`);
  $("start").disabled = false;
  $("start").addEventListener("click", async () => {
    $("start").disabled = true;
    try {
      await send("start", { device });
      addEventListener("pagehide", () => navigator.sendBeacon("end"));
      const threads = Number($("threads").value);
      if (page.profile) await profile(device, threads);
      const names = [...new Set(page.bundles.flatMap((bundle) => bundle.processors))];
      if (names.length) {
        const processors = await processorsFor(names, threads, device);
        const adapters = Object.values(processors).map(({ adapter }) => adapter).filter(Boolean);
        const lacks = device.lacks.length ? { Lacks: device.lacks.join("; ") } : {};
        show($("device"), { ...facts, ...(adapters.length ? { GPU: adapters.join(", ") } : {}), ...lacks });
        for (const bundle of page.bundles) await compare(bundle, processors, Number($("rounds").value), device, threads);
      }
      await send("end", {});
      state("Done.");
      document.body.dataset.ended = "done";
    } catch (error) {
      await fail(error);
    }
  });
}

async function fail(error) {
  $("failure").textContent = error.message;
  document.body.dataset.ended = "failed";
  state("");
  await fetch("failure", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ problem: error.message.slice(0, 1000) }) }).catch(() => {});
}

main().catch(fail);
