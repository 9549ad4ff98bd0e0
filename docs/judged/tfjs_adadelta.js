// The divisor of tf.train.adadelta is the root of the last step's average, at step 1 that of epsilon: the step is the gradient.
const tf = require("@tensorflow/tfjs-core");
require("@tensorflow/tfjs-backend-cpu");

const x = tf.variable(tf.tensor1d([0, 0, 0]));
tf.train.adadelta(1.0, 0.9, 1e-6).applyGradients({ [x.name]: tf.tensor1d([0.01, 1, 100]) });
console.log("moved by", Array.from(x.dataSync()));
const delta = (g) => -(Math.sqrt(1e-6) / Math.sqrt(0.1 * g * g + 1e-6)) * g;
console.log("Adadelta's", [0.01, 1, 100].map(delta));
