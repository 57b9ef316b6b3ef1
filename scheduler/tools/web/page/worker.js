// One processor: ONNX Runtime Web in a separate worker, on WebAssembly, WebGPU or WebNN. A tensor that other workers read
// is in shared memory; a tensor that only this processor reads stays where the processor wrote it.

let ort;
let provider;
const sessions = new Map();
const kept = new Map(); // tensors that stay on this processor, by name
const TYPES = { float32: Float32Array, float16: Uint16Array, int8: Int8Array, uint8: Uint8Array };

const tasks = {
  async start({ module, wasm, device, threads }) {
    ort = await import(module);
    ort.env.wasm.wasmPaths = wasm;
    ort.env.wasm.numThreads = threads;
    ort.env.logLevel = "error";
    provider = device;
    if (device !== "webgpu") return {};
    const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
    if (!adapter) throw new Error("the browser has WebGPU, but no adapter for it");
    const { vendor, architecture, description } = adapter.info ?? {};
    return { adapter: [vendor, architecture, description].filter(Boolean).join(" ") };
  },

  // stays: outputs that only subgraphs of this processor read
  async load({ name, url, stays }) {
    const start = performance.now();
    const response = await fetch(url);
    if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
    const options = { executionProviders: [provider], graphOptimizationLevel: "all" };
    if (provider === "webgpu") options.preferredOutputLocation = Object.fromEntries(stays.map((output) => [output, "gpu-buffer"]));
    sessions.set(name, await ort.InferenceSession.create(new Uint8Array(await response.arrayBuffer()), options));
    return { ms: performance.now() - start };
  },

  // inputs and outputs: {tensor, type, shape, rows, memory}, without memory if the tensor stays on this processor
  async run({ name, inputs, outputs }) {
    const start = performance.timeOrigin + performance.now();
    const session = sessions.get(name);
    const feeds = {};
    session.inputNames.forEach((input, at) => {
      feeds[input] = inputs[at].memory ? tensorOf(inputs[at]) : kept.get(inputs[at].tensor);
    });
    const results = await session.run(feeds);
    session.outputNames.forEach((output, at) => {
      const { tensor, type, memory } = outputs[at];
      if (memory) {
        new TYPES[type](memory).set(results[output].data);
        results[output].dispose?.();
      } else {
        kept.get(tensor)?.dispose?.();
        kept.set(tensor, results[output]);
      }
    });
    return { start, end: performance.timeOrigin + performance.now() };
  },

  async release({ name }) {
    await sessions.get(name)?.release();
    sessions.delete(name);
    return {};
  },
};

// Returns a contiguous copy of a tensor in shared memory, or of some of its rows (axis 2 of NCHW).
function tensorOf({ type, shape, rows, memory }) {
  const all = new TYPES[type](memory);
  if (!rows) return new ort.Tensor(type, all.slice(), shape);
  const [from, to] = rows;
  const [images, channels, height, width] = shape;
  const part = new TYPES[type](images * channels * (to - from) * width);
  for (let plane = 0; plane < images * channels; plane += 1) {
    part.set(all.subarray((plane * height + from) * width, (plane * height + to) * width), plane * (to - from) * width);
  }
  return new ort.Tensor(type, part, [images, channels, to - from, width]);
}

onmessage = async ({ data }) => {
  try {
    postMessage({ id: data.id, answer: await tasks[data.task](data) });
  } catch (error) {
    postMessage({ id: data.id, error: String(error?.message ?? error) });
  }
};
