"use strict";
// What the page carries, as typed arrays. A run's arrays are [token][loop], loop 0 … T.

async function inflate(text) {
  const bytes = Uint8Array.from(atob(text), c => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

async function unpack(packed) {
  const planes = await inflate(packed.data);
  const size = Number(packed.type.slice(1)), count = planes.length / size;
  const bytes = new Uint8Array(planes.length);
  for (let plane = 0; plane < size; plane++) {
    for (let k = 0; k < count; k++) bytes[k * size + plane] = planes[plane * count + k];
  }
  return packed.type[0] === "f" ? new Float32Array(bytes.buffer) : new Uint32Array(bytes.buffer);
}

const ROW_ARRAYS = ["nll", "final", "entropy", "kl_last", "kl", "answer"];

/** A run before its readouts: rows that are not there yet hold not-a-number. */
async function beginRun(head) {
  const rows = head.ids.length, columns = head.loops + 1;
  const run = {
    label: head.label, family: head.family, equation: head.equation, loops: head.loops, total: head.total,
    rows, columns, ids: head.ids, targets: head.targets, truth: head.truth, answersAsked: head.answers_asked, words: new Map(),
    noAnchor: head.no_anchor, arrays: {}, known: new Uint8Array(rows), attention: null, packedAttention: null,
    candidates: new Uint32Array(0), chances: new Float32Array(0), kept: 0, memory: new Map(),
  };
  learn(run, head.words);
  for (const [name, packed] of Object.entries(head.arrays)) run.arrays[name] = await unpack(packed);
  for (const name of ROW_ARRAYS) run.arrays[name] = new Float32Array(rows * columns).fill(NaN);
  run.anchor = head.anchor ? await unpack(head.anchor) : null;
  return run;
}

function learn(run, words) {
  for (const [id, word] of Object.entries(words)) run.words.set(Number(id), word);
}

async function addPart(run, part) {
  learn(run, part.words);
  for (const name of ROW_ARRAYS) run.arrays[name].set(await unpack(part.arrays[name]), part.start * run.columns);
  const candidates = await unpack(part.candidates), chances = await unpack(part.chances);
  if (!run.kept) {
    run.kept = candidates.length / part.rows;
    run.candidates = new Uint32Array(run.rows * run.kept);
    run.chances = new Float32Array(run.rows * run.kept * run.columns);
  }
  run.candidates.set(candidates, part.start * run.kept);
  run.chances.set(chances, part.start * run.kept * run.columns);
  run.known.fill(1, part.start, part.start + part.rows);
  run.memory.clear();
}

/** Attention is large, and is unpacked when somebody looks at it: steps of the square root, as differences. */
async function openAttention(run) {
  const packed = run.packedAttention;
  if (run.attention || !packed) return;
  const steps = await inflate(packed.data);
  const [applications, heads, loops, cells] = packed.shape;
  for (let group = 0; group < applications * heads; group++) {
    for (let k = 1; k < loops; k++) {
      const here = (group * loops + k) * cells;
      for (let cell = 0; cell < cells; cell++) steps[here + cell] += steps[here - cells + cell];
    }
  }
  run.attention = { steps, applications, heads, loops: packed.loops, cells, levels: packed.levels };
}

/** The weights of token i over tokens 0 … i at loop t, of one head or (head < 0) the mean of all; null if none. */
function attentionRow(run, application, head, t, i) {
  const a = run.attention, place = a ? a.loops.indexOf(t) : -1;
  if (place < 0) return null;
  const weights = new Float64Array(i + 1), chosen = head < 0 ? [...Array(a.heads).keys()] : [head];
  for (const h of chosen) {
    const row = ((application * a.heads + h) * a.loops.length + place) * a.cells + i * (i + 1) / 2;
    for (let j = 0; j <= i; j++) weights[j] += (a.steps[row + j] / a.levels) ** 2 / chosen.length;
  }
  return weights;
}
