// An optimizer keys its state by the place of a variable among the gradients given, not by its name: b moves by a's momentum.
const tf = require("@tensorflow/tfjs-core");
require("@tensorflow/tfjs-backend-cpu");

const [a, b] = ["a", "b"].map((name) => tf.variable(tf.scalar(0), true, name));
const optimizer = tf.train.momentum(1, 0.5);
optimizer.applyGradients({ a: tf.scalar(100), b: tf.scalar(0) });
optimizer.applyGradients({ b: tf.scalar(0) }); // this step has no gradient of a
console.log("b, whose gradients were all 0:", b.dataSync()[0]);
