// tf.train's optimizers: a line of JSON in, one out. Arrays are base64 of little-endian float32.
//   {"make": "adam", "args": [0.1, 0.9], "weights": "...", "shape": [3, 8]}   a fresh optimizer and variable
//   {"grad": "...", "lr": 0.05}                                               a step; answered by {"weights": "..."}
"use strict";

const tf = require("@tensorflow/tfjs");

let optimizer, variable;

const floats = (text) => new Float32Array(new Uint8Array(Buffer.from(text, "base64")).buffer);
const text = (x) => Buffer.from(x.buffer, x.byteOffset, x.byteLength).toString("base64");

function answer(line) {
  if (line.make) {
    optimizer = tf.train[line.make](...line.args);
    if (variable) variable.dispose();
    variable = tf.variable(tf.tensor(floats(line.weights), line.shape, "float32"));
    return { version: tf.version.tfjs };
  }
  if (optimizer.setLearningRate) optimizer.setLearningRate(line.lr);
  else optimizer.learningRate = line.lr;
  optimizer.applyGradients({ [variable.name]: tf.tensor(floats(line.grad), variable.shape, "float32") });
  return { weights: text(variable.dataSync()) };
}

require("readline")
  .createInterface({ input: process.stdin })
  .on("line", (line) => process.stdout.write(JSON.stringify(answer(JSON.parse(line))) + "\n"));
