// What transformers.js gives of exported models, beside the vectors that all clients must give.
//
//     npm install @huggingface/transformers
//     node tests/consumers/transformers_js.mjs FOLDER
//
// FOLDER is what tests/consumers/clients.py saved: expected.json with sentences and vectors of each kind, and onnx/KIND/.
// A line of JSON for each kind and dtype: the largest difference of unit vectors, the smallest cosine, and in how many of
// the sentences the nearest other one is the same. A refused model has its error in words.

import { existsSync, readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const here = createRequire(join(process.cwd(), "package.json")); // packages lie where the command is run
const { env, pipeline } = await import(pathToFileURL(here.resolve("@huggingface/transformers")));
const folder = resolve(process.argv[2]);
const { sentences, vectors } = JSON.parse(readFileSync(join(folder, "expected.json"), "utf8"));
env.allowRemoteModels = false;
env.localModelPath = join(folder, "onnx");

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
const unit = (a) => a.map((x) => x / (Math.sqrt(dot(a, a)) || 1));
const nearest = (all) => all.map((a, i) => {
  const scores = all.map((b, j) => (i === j ? -2 : dot(a, b)));
  return scores.indexOf(Math.max(...scores));
});

// How the model's files say that its tokens are pooled; a table has no such file
function pooling(kind) {
  const place = join(folder, "onnx", kind);
  const settings = readdirSync(place).filter((name) => name.endsWith("_Pooling"));
  if (settings.length === 0) return "mean";
  const { pooling_mode_cls_token, pooling_mode_lasttoken } = JSON.parse(
    readFileSync(join(place, settings[0], "config.json"), "utf8"),
  );
  return pooling_mode_cls_token ? "cls" : pooling_mode_lasttoken ? "last_token" : "mean";
}

// Of the texts that the model's limit does not cut, and the largest difference of those that it cuts
function compare(expected, found, whole) {
  const [a, b] = [expected.map(unit), found.map(unit)];
  const differences = a.map((x, i) => Math.max(...x.map((value, j) => Math.abs(value - b[i][j]))));
  const fits = a.map((_, i) => i).filter((i) => whole[i]);
  const [first, second] = [nearest(fits.map((i) => a[i])), nearest(fits.map((i) => b[i]))];
  return {
    difference: Math.max(...fits.map((i) => differences[i])),
    cosine: Math.min(...fits.map((i) => dot(a[i], b[i]))),
    first_hits: first.filter((x, i) => x === second[i]).length / fits.length,
    difference_of_cut: Math.max(0, ...differences.filter((_, i) => !whole[i])),
  };
}

async function embed(kind, dtype) {
  const extractor = await pipeline("feature-extraction", kind, { dtype });
  const limit = extractor.tokenizer.model_max_length ?? Infinity;
  const whole = sentences.map((text) => extractor.tokenizer(text).input_ids.dims[1] <= limit);
  const found = [];
  for (let i = 0; i < sentences.length; i += 4) { // in batches, which are padded
    const batch = await extractor(sentences.slice(i, i + 4), { pooling: pooling(kind), normalize: true });
    found.push(...batch.tolist());
  }
  return [found, whole];
}

for (const [kind, expected] of Object.entries(vectors)) {
  for (const [dtype, file] of [["fp32", "model.onnx"], ["q8", "model_quantized.onnx"]]) {
    if (!existsSync(join(folder, "onnx", kind, "onnx", file))) continue;
    const line = { client: "transformers.js", version: env.version, kind, dtype, pooling: pooling(kind) };
    try {
      Object.assign(line, compare(expected, ...(await embed(kind, dtype))));
    } catch (error) {
      line.error = String(error.message ?? error).split("\n")[0];
    }
    console.log(JSON.stringify(line));
  }
}
