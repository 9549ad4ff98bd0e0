// tf.train.rmsprop(centered=true) subtracts epsilon under the root instead of adding it: equal gradients give NaN.
const tf = require("@tensorflow/tfjs-core");
require("@tensorflow/tfjs-backend-cpu");

const x = tf.variable(tf.tensor1d([0, 0]));
const optimizer = tf.train.rmsprop(0.1, 0.9, 0, 1e-7, true);
for (let step = 0; step < 200; step++) optimizer.applyGradients({ [x.name]: tf.tensor1d([1e-4, 1]) });
console.log(Array.from(x.dataSync()));
