// What clients of JavaScript give of a saved model, as clients.py prints it.
//
//     npm install @huggingface/transformers node-llama-cpp
//     node tests/consumers/clients.mjs FOLDER              transformers.js, on the copies for ONNX
//     node tests/consumers/clients.mjs FOLDER avg=FILE     llama.cpp, on a GGUF file of a model
//
// FOLDER is what clients.py saved. Neither client cuts a text, so what is longer than the model's limit is left out.

import { existsSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";

const QUERIES = 40; // as in clients.py
const NEAR = { onnx: 2e-5, GGUF: 5e-4 }; // llama.cpp takes GELU from a table in half precision
const here = createRequire(join(process.cwd(), "package.json")); // packages lie where the command is run
const load = (name) => import(pathToFileURL(here.resolve(name)));
const folder = resolve(process.argv[2]);
const files = process.argv.slice(3).map((word) => word.split("="));
const { sentences, vectors } = JSON.parse(readFileSync(join(folder, "expected.json"), "utf8"));

const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
const unit = (a) => a.map((x) => x / Math.sqrt(dot(a, a)));

// How many queries have a first hit whose cosine, by the expected vectors, is the highest
function hits(found, expected) {
  const first = (all, query) => {
    const cosines = all.slice(QUERIES).map((text) => dot(all[query], text));
    return cosines.indexOf(Math.max(...cosines));
  };
  const good = (query) => {
    const cosine = (place) => dot(expected[query], expected[QUERIES + place]);
    return cosine(first(found, query)) > cosine(first(expected, query)) - 1e-6;
  };
  return [...Array(QUERIES).keys()].filter(good).length;
}

async function read(about, model, expected, embed) {
  const line = { ...about, model };
  try {
    const [a, b] = [[], []];
    for (let i = 0; i < sentences.length; i += 1) {
      const vector = await embed(sentences[i]);
      if (vector === null) continue; // too long
      a.push(unit(expected[i]));
      b.push(unit(vector));
    }
    line.difference = Math.max(...a.map((x, i) => Math.max(...x.map((value, j) => Math.abs(value - b[i][j])))));
    line.hits = hits(b, a);
    line.right = line.difference < NEAR[about.read] && line.hits === QUERIES;
  } catch (error) {
    line.error = String(error.message ?? error).split("\n")[0];
  }
  console.log(JSON.stringify(line));
}

async function transformersJs() {
  const { env, pipeline } = await load("@huggingface/transformers");
  env.allowRemoteModels = false;
  env.localModelPath = join(folder, "onnx");
  const about = { client: "transformers.js", package: "npm", version: env.version, read: "onnx" };
  for (const [model, expected] of Object.entries(vectors)) {
    if (!existsSync(join(env.localModelPath, model))) continue;
    const extractor = await pipeline("feature-extraction", model, { dtype: "fp32" });
    const limit = extractor.tokenizer.model_max_length ?? Infinity;
    await read(about, model, expected, async (text) => {
      if (extractor.tokenizer(text).input_ids.dims[1] > limit) return null;
      const [vector] = (await extractor(text, { pooling: "mean", normalize: true })).tolist();
      return vector;
    });
  }
}

async function llamaCpp() {
  const { getLlama, getModuleVersion } = await load("node-llama-cpp");
  const version = await getModuleVersion();
  const llama = await getLlama({ gpu: false, build: "never", logLevel: "error" });
  const about = { client: "llama.cpp", package: "node-llama-cpp", version, read: "GGUF" };
  for (const [kind, file] of files) {
    const model = await llama.loadModel({ modelPath: resolve(file) });
    const context = await model.createEmbeddingContext();
    await read(about, kind, vectors[kind], async (text) => {
      if (model.tokenize(text).length + 2 > model.trainContextSize) return null;
      return (await context.getEmbeddingFor(text)).vector;
    });
  }
  process.exit(0);
}

await (files.length ? llamaCpp() : transformersJs());
