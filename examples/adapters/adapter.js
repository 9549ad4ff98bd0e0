// An adapter in JavaScript: islices conform --command "node adapter.js", islices judge --command "node adapter.js".
// The adapter needs only node.
"use strict";
const TYPES = { float32: Float32Array, float64: Float64Array, int32: Int32Array, int64: BigInt64Array };
class Unsupported extends Error {}
class Refusal extends Error {
  constructor(kind, message) { super(message); this.kind = kind; }
}

function read(x) {  // little-endian bytes as hexadecimal digits -> a typed array
  if (!(x.array in TYPES)) throw new Unsupported(x.array);
  const bytes = Uint8Array.from(Buffer.from(x.bits, "hex"));
  return new TYPES[x.array](bytes.buffer);
}
const write = (name, shape, data) =>
  ({ array: name, shape, bits: Buffer.from(data.buffer, data.byteOffset, data.byteLength).toString("hex") });
const product = (shape) => shape.reduce((a, b) => a * b, 1);

function checked(s) {
  if (s?.array) throw new Unsupported("dense arrays");
  if (!s?.slices) throw new Refusal("TypeError", `got ${JSON.stringify(s)}; accepted are slices`);
  return s;
}

function summed(s) {  // SPEC clause 4: ascending rows, each summed in order of occurrence and rounded to its type
  const values = read(checked(s).slices), indices = read(s.indices), width = product(s.slices.shape.slice(1));
  const limit = s.dense_shape[0], rows = new Map();
  if (values instanceof BigInt64Array) throw new Unsupported("int64 values");
  indices.forEach((at, k) => {
    const index = Number(at);
    if (s.padded && index === limit) return;
    if (index < 0 || (limit !== null && index >= limit)) throw new Refusal("IndexError", `indices: got ${at}`);
    const row = values.subarray(k * width, (k + 1) * width);
    if (!rows.has(index)) rows.set(index, row.slice());
    else row.forEach((value, j) => { rows.get(index)[j] += value; });
  });
  return [...rows].sort(([a], [b]) => a - b);
}

function coalesce(s) {
  const rows = summed(s), name = s.indices.array, width = product(s.slices.shape.slice(1));
  const values = new TYPES[s.slices.array](rows.length * width);
  rows.forEach(([, row], k) => values.set(row, k * width));
  const indices = TYPES[name].from(rows.map(([index]) => (name === "int64" ? BigInt(index) : index)));
  return {
    slices: write(s.slices.array, [rows.length, ...s.slices.shape.slice(1)], values),
    indices: write(name, [rows.length], indices), dense_shape: s.dense_shape, coalesced: true,
  };
}

function to_dense(s) {
  if (checked(s).dense_shape[0] === null) throw new Refusal("ValueError", "dense_shape: got unknown rows");
  const width = product(s.slices.shape.slice(1)), rows = summed(s);
  let dense;
  try { dense = new TYPES[s.slices.array](s.dense_shape[0] * width); }
  catch { throw new Refusal("MemoryError", "no memory for the result"); }
  rows.forEach(([index, row]) => dense.set(row, index * width));
  return write(s.slices.array, s.dense_shape, dense);
}

// torch.SGD for `islices judge`, with or without momentum: float64 arithmetic, rounded when a result is stored.
function formula_step(formula, t, options, weights, gradient, state) {
  const h = options.dict, number = (name) => Buffer.from(h[name].float, "hex").readDoubleLE();
  if (formula !== "torch.SGD") throw new Unsupported(formula);
  if (h.nesterov || number("dampening") || number("weight_decay")) throw new Unsupported("nesterov, dampening, decay");
  const [w, g] = [weights, gradient].map(read), lr = number("lr"), mu = number("momentum");
  const b = mu ? read(state.dict.momentum).map((x, k) => mu * x + g[k]) : g;
  const moved = { weights: write("float32", weights.shape, w.map((x, k) => x - lr * b[k])) };
  return { dict: mu ? { ...moved, momentum: write("float32", weights.shape, b) } : moved };
}

const OPERATIONS = { coalesce, to_dense, formula_step };

require("node:readline").createInterface({ input: process.stdin }).on("line", (line) => {
  const { hello, call, op, args } = JSON.parse(line);
  let answer;
  if (hello) answer = { hello: "adapter.js", version: process.version, protocol: 1, ops: Object.keys(OPERATIONS) };
  else {
    try { answer = { call, ok: OPERATIONS[op](...args) }; }
    catch (error) {
      if (error instanceof Unsupported) answer = { call, unsupported: error.message };
      else if (error instanceof Refusal) answer = { call, error: error.kind, message: error.message };
      else throw error;  // a fault of this program: the program ends, and the suite reports it
    }
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
});
